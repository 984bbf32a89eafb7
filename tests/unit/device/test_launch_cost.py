"""What a sequence of launches lasts, by what one of them costs."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from retune.core.target import GENERIC_CPU, GENERIC_GPU, DeviceSpec
from retune.device.opencl.launch_cost import NO_LAUNCHES, LaunchCost, launch_cost
from retune.device.opencl.runtime import Device

COST = LaunchCost(each_us=4.0, ends_us=10.0)


@pytest.mark.parametrize(
    ("kernels", "us"),
    [
        ([], 10.0),
        ([1.0] * 5, 10.0 + 4 * 4.0 + 1.0),  # kernels wait for the host
        ([20.0] * 5, 10.0 + 5 * 20.0),
        ([40.0, 1.0, 1.0], 10.0 + 42.0),  # the host is ahead
    ],
)
def test_kernels_wait_for_the_host_or_it_for_them(kernels: list[float], us: float):
    assert COST.sequence_us(kernels) == pytest.approx(us)
    assert NO_LAUNCHES.sequence_us(kernels) == pytest.approx(sum(kernels))


def test_a_sequence_lasts_as_long_as_its_kernels_at_least():
    kernels = [3.0, 90.0, 2.0, 7.0]
    assert COST.sequence_us(kernels) >= sum(kernels)
    assert COST.sequence_us([*kernels, 1.0]) > COST.sequence_us(kernels)


class Paced:
    """A device on which a launch takes 3 us, and the ends of a sequence 20."""

    def __init__(self, spec: DeviceSpec) -> None:
        self.spec = spec

    def __getattr__(self, name: str) -> object:
        return lambda *_: SimpleNamespace()

    def time(self, launches: Sequence[object]) -> float:
        return 1e-6 * (20.0 + 3.0 * len(launches))


def test_costs_are_found_by_sequences_of_two_lengths():
    found = launch_cost(cast("Device", Paced(GENERIC_GPU)))
    assert (found.each_us, found.ends_us) == pytest.approx((3.0, 20.0))
    assert launch_cost(cast("Device", Paced(GENERIC_CPU))) == NO_LAUNCHES

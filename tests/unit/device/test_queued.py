"""Time behind a kernel that holds the queue: no single sample of that kernel decides."""

from collections.abc import Sequence

import pytest

from retune.core.target import GENERIC_GPU
from retune.device.opencl.holding import LEAST_LAUNCH_S, QUEUED_LAUNCHES
from retune.device.opencl.runtime import Device, PreparedKernel

HOLD = PreparedKernel("hold", None, (), (1, 1, 1), (1, 1, 1))
WORK = PreparedKernel("work", None, (), (1, 1, 1), (1, 1, 1))
HOLD_S, WORK_S = 3e-3, 10e-6


class Gpu(Device):
    """A device whose launches take fixed times, but for those that are made to last longer."""

    def __init__(self, delays: Sequence[float] = ()) -> None:
        self.spec = GENERIC_GPU
        self.timed: list[int] = []
        """Launches behind the holding one, of each time that was taken."""
        self._delays = iter(delays)

    def _hold(self, launches: int) -> PreparedKernel:
        return HOLD

    def time(self, launches: Sequence[PreparedKernel], number: int = 1) -> float:
        assert launches[0] is HOLD
        self.timed.append(len(launches) - 1)
        return HOLD_S + WORK_S * self.timed[-1] + next(self._delays, 0.0)


def test_the_holding_kernel_does_not_count():
    assert Gpu().time_queued([WORK, WORK], 5) == pytest.approx(10 * WORK_S)


def test_long_work_goes_in_parts_with_the_holding_kernel_between_them():
    gpu = Gpu()
    assert gpu.time_queued([WORK], QUEUED_LAUNCHES + 44) == pytest.approx(300 * WORK_S)
    assert gpu.timed == [0, QUEUED_LAUNCHES, 0, 44, 0]


@pytest.mark.parametrize("place", [0, 2, 3])
def test_one_slow_or_fast_sample_of_the_holding_kernel_changes_nothing(place: int):
    for delay in (2e-3, -2e-3):
        delays = [delay if i == place else 0.0 for i in range(4)]
        assert Gpu(delays).time_queued([WORK], 10) == pytest.approx(10 * WORK_S)


def test_no_time_is_shorter_than_launches_can_be():
    assert Gpu([0.0, -1.0]).time_queued([WORK], 10) == pytest.approx(10 * LEAST_LAUNCH_S)

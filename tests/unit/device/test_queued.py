"""Time behind a kernel that holds the queue: others that use the device make nothing shorter."""

from collections.abc import Sequence

import pytest

from retune.core.target import GENERIC_GPU
from retune.device.opencl.holding import ATTEMPTS, LEAST_LAUNCH_S, QUEUED_LAUNCHES
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
def test_a_slow_sample_of_the_holding_kernel_changes_nothing(place: int):
    delays = [2e-3 if i == place else 0.0 for i in range(4)]
    assert Gpu(delays).time_queued([WORK], 10) == pytest.approx(10 * WORK_S)


@pytest.mark.parametrize("disturbed", [(0, 2), (2, 3), (0, 2, 3)])
def test_nothing_seems_shorter_where_others_use_the_device(disturbed: tuple[int, ...]):
    """Two or all of the holding kernel's samples are longer than the work itself is."""
    gpu = Gpu([2e-3 if i in disturbed else 0.0 for i in range(4)])
    assert gpu.time_queued([WORK], 10) == pytest.approx(10 * WORK_S)


def test_no_time_is_shorter_than_launches_can_be():
    gpu = Gpu([0.0, -1.0, 0.0, 0.0] * ATTEMPTS)
    assert gpu.time_queued([WORK], 10) == pytest.approx(10 * LEAST_LAUNCH_S)
    assert len(gpu.timed) == 4 * ATTEMPTS

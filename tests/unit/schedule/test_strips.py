"""Windows over few channels by strips: the meaning is kept, other stages are refused."""

import pytest

from retune.core.errors import ScheduleError
from retune.ir.evaluate import evaluate_int
from retune.ir.stmt import from_dag
from retune.ir.te import Dag
from retune.ir.verify import verify
from retune.schedule.replay import replay
from retune.schedule.schedule import Schedule
from tests.support.dags import conv2d, half_conv2d
from tests.support.oracle import assert_same_meaning


@pytest.mark.parametrize(
    ("dag", "sizes"),
    [
        (half_conv2d(5, 5, 3, 4, 3, 2), [4, 16, 8]),
        (conv2d(2, 4, 5, 3, 4, stride=2), [4, 12, 4]),
        (conv2d(1, 3, 4, 2, 3, pad=0), [2, 6, 1]),
        (conv2d(1, 8, 8, 3, 4, 4, stride=4, pad=0), [3, 16, 4]),
    ],
    ids=["16 bits", "batch", "no zeros", "patches"],
)
def test_the_meaning_is_kept(dag: Dag, sizes: list[int]):
    s = Schedule(from_dag(dag))
    strips, weights = s.restate("conv", "strips", sizes)
    verify(s.program)
    assert evaluate_int(s.block(strips).buffer.shape[-1]) % sizes[2] == 0
    assert_same_meaning(dag, s.program)
    s.precompute(weights)
    s.pack(weights)
    assert_same_meaning(dag, s.program)
    assert replay(from_dag(dag), s.trace).program == s.program


@pytest.mark.parametrize(
    ("dag", "sizes", "reason"),
    [
        (conv2d(1, 4, 4, 4, 4, groups=2), [4, 12, 4], "expected channels in turn"),
        (conv2d(1, 5, 5, 3, 4, dilation=2), [4, 12, 4], "expected channels in turn"),
        (conv2d(1, 4, 4, 3, 4), [2, 12, 4], "expected room for 3 pixels of 3 channels"),
        (conv2d(1, 4, 4, 3, 4), [4, 10, 4], "got 10 steps with 4 for a pixel"),
    ],
    ids=["groups", "dilation", "pixel", "run"],
)
def test_what_has_no_strips_is_refused(dag: Dag, sizes: list[int], reason: str):
    with pytest.raises(ScheduleError, match=reason):
        Schedule(from_dag(dag)).restate("conv", "strips", sizes)

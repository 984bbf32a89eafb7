"""Sums of products with more steps, of zeros: the meaning is kept, other stages are refused."""

import pytest

from retune.core.errors import ScheduleError
from retune.ir.stmt import from_dag
from retune.ir.te import Dag
from retune.ir.verify import verify
from retune.schedule.replay import replay
from retune.schedule.schedule import Schedule
from retune.targets.fusion import heaviest_reduction
from tests.support.dags import attended, conv2d, dense, pool
from tests.support.oracle import assert_same_meaning


def name_of(dag: Dag) -> str:
    """The reduction's."""
    block = heaviest_reduction(from_dag(dag))
    assert block is not None
    return block.name


@pytest.mark.parametrize(
    ("dag", "steps"),
    [
        (attended(3, 5, 4, keys=False), 8),
        (attended(3, 5, 4, keys=True), 6),
        (dense(2, 7, 3), 12),
        (conv2d(1, 3, 4, 3, 5), 4),
    ],
    ids=["values", "keys", "constants", "channels of a window"],
)
def test_the_meaning_is_kept(dag: Dag, steps: int):
    s = Schedule(from_dag(dag))
    copies = s.restate(name_of(dag), "lengthened", [steps])
    verify(s.program)
    assert len(copies) == 2
    assert_same_meaning(dag, s.program)
    assert replay(from_dag(dag), s.trace).program == s.program


@pytest.mark.parametrize(
    ("dag", "steps", "reason"),
    [
        (attended(3, 5, 4, keys=False), 5, "expected fewer last steps, got 5"),
        (pool(1, 4, 4, 3, 2, 2, average=False), 4, "expected a sum of products"),
    ],
    ids=["no more", "no products"],
)
def test_other_stages_are_refused(dag: Dag, steps: int, reason: str):
    with pytest.raises(ScheduleError, match=reason):
        Schedule(from_dag(dag)).restate(name_of(dag), "lengthened", [steps])

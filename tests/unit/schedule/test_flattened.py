"""Results over several axes as rows of one: the meaning is kept, fewer axes are refused."""

import pytest

from retune.core.errors import ScheduleError
from retune.ir.stmt import from_dag
from retune.ir.te import Dag
from retune.ir.verify import verify
from retune.schedule.replay import replay
from retune.schedule.schedule import Schedule
from tests.support.dags import batched_product, conv2d, half_conv2d
from tests.support.oracle import assert_same_meaning


@pytest.mark.parametrize(
    ("dag", "name", "axes", "rows"),
    [
        (half_conv2d(4, 5, 3, 4, images=2), "conv", [0, 3], 40),
        (conv2d(2, 5, 7, 3, 4, stride=2, residual=True), "conv", [1, 3], 12),
        (batched_product(2, 3, 4, 5), "y", [0, 2], 6),
    ],
    ids=["all pixels", "those of an image", "rows of matrices"],
)
def test_the_meaning_is_kept(dag: Dag, name: str, axes: list[int], rows: int):
    s = Schedule(from_dag(dag))
    (flat,) = s.restate(name, "flattened", axes)
    verify(s.program)
    assert str(s.block(flat).buffer.shape[axes[0]]) == str(rows)
    assert_same_meaning(dag, s.program)
    if s.block(name).buffer not in s.program.outputs:
        s.compute_inline(name)
        assert_same_meaning(dag, s.program)
    assert replay(from_dag(dag), s.trace).program == s.program


@pytest.mark.parametrize("axes", [[1, 2], [3, 5]])
def test_fewer_than_two_axes_are_refused(axes: list[int]):
    with pytest.raises(ScheduleError, match="expected two of 4 axes or more"):
        Schedule(from_dag(conv2d(1, 4, 4, 3, 4))).restate("conv", "flattened", axes)

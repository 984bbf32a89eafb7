"""Narrow groups of channels joined to wide ones: the meaning is kept, other stages are refused."""

import pytest

from retune.core.errors import ScheduleError
from retune.ir.expr import Expr, Var
from retune.ir.stmt import from_dag
from retune.ir.te import Dag, compute, placeholder, reduce_axis
from retune.ir.verify import verify
from retune.schedule.replay import replay
from retune.schedule.schedule import Schedule
from tests.support.dags import conv2d, half_conv2d
from tests.support.oracle import assert_same_meaning


@pytest.mark.parametrize(
    ("dag", "wide"),
    [
        (conv2d(1, 3, 2, 8, 8, groups=4, residual=True), 4),
        (conv2d(2, 2, 3, 12, 24, 1, pad=0, groups=6), 12),
        (conv2d(1, 2, 2, 12, 8, groups=2), 8),
        (half_conv2d(2, 3, 8, 8, groups=4), 4),
    ],
    ids=["residual", "more made than read", "all groups", "16 bits"],
)
def test_the_meaning_is_kept(dag: Dag, wide: int):
    s = Schedule(from_dag(dag))
    (weights,) = s.restate("conv", "joined", [wide])
    verify(s.program)
    assert_same_meaning(dag, s.program)
    s.precompute(weights)
    s.pack(weights)
    assert_same_meaning(dag, s.program)
    assert replay(from_dag(dag), s.trace).program == s.program


def test_what_cannot_be_joined_is_refused():
    x, c = placeholder("x", (4, 8)), reduce_axis("c", 2)
    w = placeholder("w", (2, 8), constant=True)

    def grouped(i: Var, f: Var) -> Expr:
        return x[i, f // 2 * 2 + c.var] * (w[c.var, f] - 1.0)

    shifted = Dag((compute("conv", (4, 8), grouped, [x, w], reduce=(c,)),))
    for dag, wide, reason in (
        (conv2d(1, 4, 4, 8, 8), 8, "expected groups"),
        (conv2d(1, 4, 4, 8, 8, groups=4), 3, "expected a multiple of 2 that divides 8, got 3"),
        (conv2d(1, 4, 4, 12, 12, groups=6), 8, "expected a multiple of 2 that divides 12, got 8"),
        (shifted, 4, "expected weights"),
    ):
        with pytest.raises(ScheduleError, match=reason):
            Schedule(from_dag(dag)).restate("conv", "joined", [wide])

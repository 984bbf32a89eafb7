"""Results with an axis for their groups: the meaning is kept, other stages are refused."""

import pytest

from retune.core.errors import ScheduleError
from retune.ir.expr import Expr, Var
from retune.ir.stmt import from_dag
from retune.ir.te import Dag, compute, placeholder, reduce_axis
from retune.ir.verify import verify
from retune.schedule.access import Accesses
from retune.schedule.replay import replay
from retune.schedule.schedule import Schedule
from tests.support.dags import conv2d, half_conv2d
from tests.support.oracle import assert_same_meaning

CONVOLUTIONS = {
    "residual": conv2d(1, 3, 2, 8, 8, groups=4, residual=True),
    "more made than read": conv2d(2, 2, 3, 12, 24, 1, pad=0, groups=6),
    "strided": conv2d(1, 5, 4, 12, 12, groups=2, stride=2),
    "16 bits": half_conv2d(2, 3, 8, 8, groups=4),
}


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_the_meaning_is_kept(name: str, tiled: bool):
    dag = CONVOLUTIONS[name]
    s = Schedule(from_dag(dag))
    group = Accesses.of(s.block("conv"), s.program.body).group
    assert group is not None
    if tiled:
        s.split(s.loops("out")[-1], [group])
    assert s.restate("conv", "grouped", []) == []
    verify(s.program)
    assert_same_meaning(dag, s.program)
    assert replay(from_dag(dag), s.trace).program == s.program
    made = s.block("conv")
    assert Accesses.of(made, s.program.body).group is None, "a plain product"
    if tiled:  # whoever reads the results by groups reads them plainly
        assert "//" not in str(s.block("out").value)
        s.compute_at("conv", s.loops("out")[-2])
        assert_same_meaning(dag, s.program)


def output() -> Dag:
    """A product by groups that nothing reads."""
    x, c = placeholder("x", (4, 8)), reduce_axis("c", 2)
    w = placeholder("w", (2, 8), constant=True)

    def value(i: Var, f: Var) -> Expr:
        return x[i, f // 2 * 2 + c.var] * w[c.var, f]

    return Dag((compute("conv", (4, 8), value, [x, w], reduce=(c,)),))


@pytest.mark.parametrize(
    ("dag", "sizes"),
    [(conv2d(1, 4, 4, 8, 8), []), (output(), []), (CONVOLUTIONS["strided"], [6])],
    ids=["no groups", "output", "sizes"],
)
def test_other_stages_are_refused(dag: Dag, sizes: list[int]):
    with pytest.raises(ScheduleError, match=r"grouped\(conv\): expected groups"):
        Schedule(from_dag(dag)).restate("conv", "grouped", sizes)

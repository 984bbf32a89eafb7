"""What tests of lookups share with others."""

from retune.core.dtypes import INT32, UINT8
from retune.ir.expr import cast
from retune.ir.stmt import from_dag
from retune.ir.te import Dag, compute, placeholder
from retune.schedule.schedule import Schedule


def looked_up(
    codes: str = UINT8, table: str = UINT8, *, count: int = 32, constant: bool = True
) -> Dag:
    """What a table has for codes, that of the lowest code first."""
    x = placeholder("x", (count,), codes)
    t = placeholder("t", (256,), table, constant=constant)
    least = 0 if codes == UINT8 else 128
    return Dag((compute("y", (count,), lambda i: t[cast(x[i], INT32) + least], [x, t]),))


def by_lanes(dag: Dag, lanes: int) -> Schedule:
    s = Schedule(from_dag(dag, "net"))
    s.vectorize(s.split("y.i", [lanes])[1])
    return s

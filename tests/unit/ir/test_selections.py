"""What is read whatever selections decide."""

from retune.ir.expr import Var, select
from retune.ir.selections import certain_loads
from retune.ir.te import placeholder

VI = Var("i")


def test_certain_loads_are_those_of_both_branches():
    x, y, z = (placeholder(n, (8,)) for n in "xyz")
    value = select(x[VI] < 0.5, y[VI] + z[VI], z[VI] * 2.0)
    assert [str(load) for load in certain_loads(value)] == ["x[i]", "z[i]"]

"""Masks of zeros become guards, through products and conversions; others stay."""

from retune.codegen.passes.pipeline import masks_to_guards
from retune.core.dtypes import INT8, INT32, UINT8
from retune.ir.expr import Expr, all_of, cast, const, select
from retune.ir.reduction import decompose_all
from retune.ir.stmt import blocks, from_dag
from retune.ir.te import Dag, compute, placeholder, reduce_axis
from tests.support.oracle import assert_same_meaning


def window(border: int, dtype: str) -> Dag:
    """Sums of three neighbours of bytes, each times a weight, with a border around."""
    x, w = placeholder("x", (6, 8), dtype), placeholder("w", (3, 8), INT8, constant=True)
    r = reduce_axis("r", 3)

    def step(i: Expr, c: Expr) -> Expr:
        inside = all_of(i + r.var >= 1, i + r.var < 7)
        data = select(inside, x[i + r.var - 1, c], const(border, dtype))
        return cast(data, INT32) * cast(w[r.var, c], INT32)

    return Dag((compute("y", (6, 8), step, [x, w], reduce=[r]),))


def guarded(dag: Dag) -> bool:
    program = masks_to_guards(decompose_all(from_dag(dag)))
    assert_same_meaning(dag, program)
    return any(block.guard is not None for block in blocks(program.body))


def test_zeros_that_are_converted_become_a_guard():
    assert guarded(window(0, UINT8))
    assert guarded(window(0, INT8))


def test_another_border_stays_a_selection():
    assert not guarded(window(3, UINT8))

"""Which blocks can run as the lanes of a vector."""

from retune.codegen.kernel import NARROW_TYPES, VECTOR_TYPES
from retune.ir.expr import Binary, Cast, Expr, Load, Select, Var, const, loads, variables
from retune.ir.flat import FlatIndices
from retune.ir.simplify import affine_terms
from retune.ir.stmt import Block

_EXTREMES = ("min", "max")
"""What narrow vectors do in their own type, as no result leaves it."""


def vectorizable(block: Block, var: Var, flat: FlatIndices, *, reduce: bool) -> bool:
    """True when the block can run as vector lanes of `var`: plain types and adjacent stores.

    Lanes of a `reduce` loop all go to one element instead, so its index must not change.
    """
    if block.buffer.dtype not in VECTOR_TYPES:
        return False
    if any(load.dtype not in VECTOR_TYPES for load in loads(block.value)):
        return False
    form = affine_terms(flat(block.buffer, block.indices), [var])
    if form is None or form[0].get(var) != (None if reduce else const(1)):
        return False
    if reduce and block.reducer is None:
        return False
    if block.guard is not None and var in variables(block.guard):
        return False
    if block.buffer.dtype in NARROW_TYPES and block.reducer not in (None, *_EXTREMES):
        return False
    return _lanes_only_in_loads(block.value, var)


def _lanes_only_in_loads(expr: Expr, var: Var) -> bool:
    match expr:
        case Load():
            return True
        case Var():
            return expr != var
        case Select(condition, _, _) if var in variables(condition) and not loads(condition):
            return False  # a mask over indices guards its reads: lanes must be apart
        case Cast(value, dtype):
            plain = value.dtype in VECTOR_TYPES and dtype in VECTOR_TYPES
            return plain and _lanes_only_in_loads(value, var)
        case Binary(op, a, _) if a.dtype in NARROW_TYPES and op not in _EXTREMES:
            return False
        case Select(condition, then, _) if then.dtype in NARROW_TYPES and loads(condition):
            return False  # a test of numbers has lanes of their size
        case _:
            return all(_lanes_only_in_loads(child, var) for child in expr.children)

"""Vectors and registers of a nest: blocks that run as lanes, buffers without memory.

A `register` buffer whose every index is settled by unrolled and vectorized loops needs no memory:
each of its vectors is a named variable. One that some serial loop indexes is a private array.
"""

from collections.abc import Iterator

from retune.codegen.kernel import vectorizes
from retune.core.dtypes import BOOL
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import (
    EITHER,
    Binary,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Var,
    const,
    loads,
    variables,
)
from retune.ir.flat import FlatIndices
from retune.ir.simplify import affine_terms, from_polynomial, polynomial
from retune.ir.stmt import STRAIGHT, Block, For, Indices, Stmt, paths

_EXTREMES = ("min", "max")
"""What narrow vectors do in their own type, as no result leaves it."""


def vectorizable(block: Block, var: Var, flat: FlatIndices, *, reduce: bool) -> bool:
    """True when the block can run as vector lanes of `var`: plain types and adjacent stores.

    Lanes of a `reduce` loop all go to one element instead, so its index must not change.
    """
    if not vectorizes(block.buffer.dtype):
        return False
    varying = [load for load in loads(block.value) if var in variables(load)]
    if not all(vectorizes(load.dtype) for load in varying):
        return False  # what all lanes share is one number of any type
    truths = [load for load in varying if load.dtype == BOOL]
    if block.buffer.dtype == BOOL:
        truths.append(Load(block.buffer, block.indices))
    if not all(_lies_in_memory(each, var, flat) for each in truths):
        return False
    form = affine_terms(flat(block.buffer, block.indices), [var])
    if form is None or form[0].get(var) != (None if reduce else const(1)):
        return False
    if reduce and block.reducer is None:
        return False
    if block.guard is not None and var in variables(block.guard):
        return False
    if block.value.dtype.is_narrow and block.reducer not in (None, *_EXTREMES):
        return False
    return _lanes_only_in_loads(block.value, var)


def _lies_in_memory(truths: Load, var: Var, flat: FlatIndices) -> bool:
    """Whether lanes of truths are adjacent bytes: registers and shuffles hold none."""
    form = affine_terms(flat(truths.buffer, truths.indices), [var])
    adjacent = form is not None and form[0].get(var) == const(1)
    return adjacent and truths.buffer.scope in ("global", "constant")


def _lanes_only_in_loads(expr: Expr, var: Var) -> bool:
    match expr:
        case Load():
            return True
        case Var():
            return expr != var
        case Select(condition, _, _) if var in variables(condition) and not loads(condition):
            return False  # a mask over indices guards its reads: lanes must be apart
        case Call(function, (test, *values), _) if function == EITHER:
            return lane_bound(test, var) is not None and all(
                _lanes_only_in_loads(child, var) for child in values
            )
        case Cast(value, dtype):
            plain = vectorizes(value.dtype) or var not in variables(value)
            tested = dtype == BOOL and value.dtype.is_narrow  # by lanes of their size
            plain = plain and vectorizes(dtype) and not tested
            return plain and _lanes_only_in_loads(value, var)
        case Binary(op, a, _) if a.dtype.is_narrow and op not in _EXTREMES:
            return False
        case Select(condition, then, _) if then.dtype.is_narrow and loads(condition):
            return False  # a test of numbers has lanes of their size
        case _:
            return all(_lanes_only_in_loads(child, var) for child in expr.children)


def lane_bound(test: Expr, var: Var) -> Expr | None:
    """The least lane for which a test holds that is `bound <= lane` of lanes `var`."""
    if not isinstance(test, Binary) or test.op != "le":
        return None
    form = affine_terms(polynomial(test.b - test.a), [var])
    if form is None or form[0] != {var: const(1)}:
        return None
    return from_polynomial(polynomial(-form[1]))


def _accesses(nest: Stmt, buffer: Buffer) -> Iterator[tuple[Indices, tuple[For, ...]]]:
    """Every read and write of a buffer in a nest, each with the loops around it."""
    for block, path in paths(nest):
        if block.buffer == buffer:
            yield block.indices, path
        yield from ((load.indices, path) for load in loads(block.value) if load.buffer == buffer)


def register_lanes(
    nest: Stmt, buffer: Buffer, vectorized: frozenset[Var], flat: FlatIndices
) -> int:
    """Lanes of the buffer's named registers; 0 if it has to be an array.

    `vectorized` are the loops that will really run as vector lanes.
    """
    lanes: set[int] = set()
    steps: set[int] = set()
    for indices, path in _accesses(nest, buffer):
        settled = {p.var for p in path if p.kind in STRAIGHT}
        form = affine_terms(flat(buffer, indices), settled)
        if form is None or not isinstance(form[1], Const):
            return 0
        width = 1
        for loop in path:
            coefficient = form[0].get(loop.var)
            if coefficient is None:
                continue
            if not isinstance(coefficient, Const):
                return 0
            step = int(coefficient.value)
            if loop.var in vectorized and step:
                if step != 1:
                    return 0
                width = evaluate_int(loop.extent)
            else:
                steps.add(step)
        lanes.add(width)
        steps.add(int(form[1].value))
    if len(lanes) != 1:
        return 0
    width = lanes.pop()
    return width if all(step % width == 0 for step in steps) else 0

"""Passes from a concrete program to one whose nests can be printed as kernels.

Each pass is Program -> Program, valid in, valid out; `lower.PASSES` is the order.
"""

from collections.abc import Iterator
from dataclasses import replace

from retune.core.dims import example
from retune.ir.evaluate import known_extent
from retune.ir.expr import (
    EITHER,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Select,
    all_of,
    conjuncts,
    const,
    loads,
    size_variables,
    variables,
    walk,
)
from retune.ir.simplify import Ranges, Simplifying, bounds, range_below
from retune.ir.stmt import (
    Block,
    For,
    Program,
    Stmt,
    blocks,
    identity,
    loops,
    map_exprs,
    rewrite,
    substitute_stmt,
    with_body,
)


def drop_unit_loops(program: Program) -> Program:
    """Loops of one iteration are gone; their variable is zero."""

    single = {n.var for n in loops(program.body) if n.extent == const(1)}
    if not single:
        return program

    def rule(node: Stmt) -> Stmt | None:
        return node.body if isinstance(node, For) and node.var in single else None

    body = substitute_stmt(rewrite(program.body, rule), dict.fromkeys(single, const(0)))
    return with_body(program, body)


def simplify_indices(program: Program) -> Program:
    """Every expression in normal form, guards and selections decided where loop ranges can."""
    ranges = {loop.var: range_below(loop.extent) for loop in loops(program.body)}
    return with_body(program, map_exprs(program.body, Simplifying(ranges)))


def whole_vectors(program: Program) -> Program:
    """No guard tells lanes apart that the sizes at hand fill: they are noted to do so.

    Rewrite, for 64 tokens:
        for j in range(4): for lane: B  # where j*16 + lane < tokens    ->    B for tokens >= 64
    """
    lanes = {n.var for n in loops(program.body) if n.kind in ("vectorize", "intrinsic")}
    terms = {
        term: None
        for block in blocks(program.body)
        for term in (*conjuncts(block.guard), *_counted(block.value))
        if size_variables(term) and not lanes.isdisjoint(variables(term))
    }
    ranges = {loop.var: range_below(loop.extent) for loop in loops(program.body)} if terms else {}
    filled = [_is_filled(term, ranges) for term in terms]
    return simplify_indices(program) if any(filled) else program


def _counted(value: Expr) -> Iterator[Expr]:
    """The conditions under which steps of a tile that was moved back count."""
    for node in walk(value):
        if isinstance(node, Call) and node.function == EITHER:
            yield from conjuncts(node.args[0])


def _is_filled(term: Expr, ranges: Ranges) -> bool:
    """Whether an extent is above all places that are compared with it, for the sizes at hand."""
    if not isinstance(term, Binary) or term.op != "lt":
        return False
    span, extent = bounds(term.a, ranges), known_extent(term.b)
    if span is None or extent is None or example(extent) <= span.high:
        return False
    return extent >= span.high + 1


def masks_to_guards(program: Program) -> Program:
    """Masks of reduction steps as guards of their blocks; instructions take masks as they are.

    Padding that was inlined into a reduction reads as `select(inside, data, 0) * weight`. Adding
    zero changes nothing, so the whole step may be skipped where the mask is false; a guard can then
    be hoisted out of loops, and vanishes where the ranges of the loops prove it.
    """
    taken = {block for n in loops(program.body) if n.intrinsic for block in blocks(n)}

    def rule(node: Stmt) -> Stmt | None:
        if not isinstance(node, Block) or node.reducer is None or node in taken:
            return None
        neutral = identity(node.reducer, node.buffer.dtype)
        condition, value = _unmasked(node.value, neutral, products=node.reducer == "sum")
        if condition is None:
            return None
        guard = condition if node.guard is None else all_of(node.guard, condition)
        return replace(node, value=value, guard=guard)

    return with_body(program, rewrite(program.body, rule))


def _unmasked(value: Expr, neutral: Const, *, products: bool) -> tuple[Expr | None, Expr]:
    """The condition under which the value is not neutral, and the value where it holds.

    A mask that is read from memory stays where it is.
    """
    match value:
        case Select(condition, then, otherwise) if otherwise == neutral and not loads(condition):
            return condition, then
        case Cast(inner, dtype) if products:  # zero is zero in all types
            condition, inner = _unmasked(inner, const(0, inner.dtype), products=True)
            return condition, Cast(inner, dtype)
        case Binary("mul", a, b) if products:
            for masked, other, first in ((a, b, True), (b, a, False)):
                condition, inner = _unmasked(masked, const(0, masked.dtype), products=True)
                if condition is not None:
                    return condition, (inner * other if first else other * inner)
            return None, value
        case _:
            return None, value

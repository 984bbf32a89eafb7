"""Passes from a concrete program to one whose nests can be printed as kernels.

Each pass is Program -> Program, valid in, valid out; `lower.PASSES` is the order.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import reduce as fold

from retune.core.dims import example, reach
from retune.core.dtypes import BOOL
from retune.ir.evaluate import evaluate_int, known_extent
from retune.ir.expr import (
    EITHER,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Rewriter,
    Select,
    Var,
    all_of,
    binary,
    conjuncts,
    const,
    either,
    loads,
    size_variables,
    variables,
    walk,
)
from retune.ir.simplify import (
    Ranges,
    Simplifying,
    bounds,
    from_polynomial,
    polynomial,
    range_below,
    simplify,
)
from retune.ir.stmt import (
    FEW,
    Block,
    For,
    Program,
    Seq,
    Stmt,
    blocks,
    guarded,
    identity,
    inside,
    loops,
    map_accesses,
    map_exprs,
    marked,
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
    """No guard tells lanes apart that the sizes at hand fill.

    Sizes that do not fill them have a copy of the nest with guards. Where items work together there
    is none, and the sizes are noted to fill the lanes.

    Rewrite, for 64 tokens:
        for j in range(4): for lane: B  # where j*16 + lane < tokens
        ->
        for few in range(1): for j: for lane: B  # where j*16 + lane < tokens and tokens < 64
        for usual in range(1): for j: for lane: B  # where 64 <= tokens
    """
    lanes = {n.var for n in loops(program.body) if n.kind in ("vectorize", "intrinsic")}
    terms = {
        term: None
        for block in blocks(program.body)
        for term in (*conjuncts(block.guard), *_counted(block.value))
        if isinstance(term, Binary) and size_variables(term)
        if not lanes.isdisjoint(variables(term))
    }
    ranges = {loop.var: range_below(loop.extent) for loop in loops(program.body)} if terms else {}
    needed = {term: least for term in terms if (least := _filling(term, ranges)) is not None}
    if not needed:
        return program
    open_ = {term: n for term, n in needed.items() if reach(evaluate_int(term.b))[0] < n}
    if open_ and not works_together(program.body):
        program = _with_copy_for_few(program, open_)
    else:
        filled = [evaluate_int(term.b) >= n for term, n in needed.items()]
        assert all(filled), "the sizes at hand fill them"
    return simplify_indices(program)


def works_together(body: Stmt) -> bool:
    """Whether items of a group share memory, or wait for each other."""
    bound = any(loop.kind.startswith("local") for loop in loops(body))
    return bound or inside(body).waits or any(b.buffer.scope == "local" for b in blocks(body))


def _with_copy_for_few(program: Program, needed: Mapping[Binary, int]) -> Program:
    """The nest for sizes that settle these terms, behind a copy for others."""
    pairs = {(str(extent), n): (extent, n) for term, n in needed.items() for extent in [term.b]}
    enough = all_of(*(const(n) <= extent for extent, n in pairs.values()))
    short = fold(
        lambda a, b: binary("or", a, b), (extent < const(n) for extent, n in pairs.values())
    )
    settled = Settling({*needed})
    copied = {
        b: replace(b, name=f"{b.name}.{FEW}")
        for b in program.scratch
        if b.scope in ("register", "private")
    }

    def within(stmt: Stmt) -> Stmt:
        if isinstance(stmt, For) and stmt.kind.startswith("group"):
            return stmt.around(within(stmt.body))
        few = map_accesses(marked(stmt, FEW), lambda buffer, at: (copied.get(buffer, buffer), at))
        usual = map_exprs(stmt, settled)
        return Seq(
            (
                copy_of(guarded(few, short), FEW, notes=((FEW, 1),)),
                copy_of(guarded(usual, enough), "usual"),
            )
        )

    stmts = program.body.stmts
    body = within(stmts[0] if len(stmts) == 1 else program.body)
    return replace(with_body(program, body), scratch=(*program.scratch, *copied.values()))


class Settling(Rewriter):
    """Expressions in which some conditions hold."""

    def __init__(self, conditions: Collection[Expr]) -> None:
        super().__init__()
        self._conditions = conditions

    def rewritten(self, expr: Expr) -> Expr:
        if expr in self._conditions:
            return const(True, BOOL)
        expr = super().rewritten(expr)
        match expr:
            case Binary("and", a, b):
                return binary("and", a, b)
            case Call(function, (test, *values)) if function == EITHER:
                return either(test, *values)
            case _:
                return expr


def copy_of(stmt: Stmt, mark: str, notes: tuple[tuple[str, str | int], ...] = ()) -> For:
    """The statement as a copy of a nest: inside a loop of one iteration, of a name that no size
    has."""
    return For(Var(f"copy.{mark}"), const(1), stmt, notes=notes)


def _counted(value: Expr) -> Iterator[Expr]:
    """The conditions under which steps of a tile that was moved back count."""
    for node in walk(value):
        if isinstance(node, Call) and node.function == EITHER:
            yield from conjuncts(node.args[0])


def _filling(term: Binary, ranges: Ranges) -> int | None:
    """How long an extent must be to be above all positions that are compared with it, where the one
    at hand is; None if it is not, or for another term."""
    extent = known_extent(term.b)
    if term.op != "lt" or extent is None:
        return None
    span = bounds(term.a, ranges)
    found = [_moved_back(term, ranges), None if span is None else span.high + 1]
    return next((n for n in found if n is not None and n <= example(extent)), None)


def _moved_back(term: Binary, ranges: Ranges) -> int | None:
    """The tile's length, for a position in a tile that is moved back where it would end behind the
    extent: `position + min(start, max(extent - length, 0)) < extent`."""
    positions = polynomial(term.a)
    for monomial, coefficient in positions.items():
        match monomial:
            case (Binary("min", _, Binary("max", last, _)),) if coefficient == 1:
                position = from_polynomial({m: c for m, c in positions.items() if m != monomial})
                length, span = simplify(term.b - last), bounds(position, ranges)
                if isinstance(length, Const) and span is not None and span.high < length.value:
                    return int(length.value)
            case _:
                pass
    return None


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

"""Short last tiles along open extents. Read `short_last_tiles`.

A register tile has a fixed number of rows. Of an extent that depends on sizes the last tile is
moved back, and calculates again what the one before it did: of nine rows in tiles of eight, seven.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from retune.codegen.passes.pipeline import (
    copy_of,
    marked,
    simplify_indices,
    works_together,
)
from retune.core.dtypes import BOOL
from retune.ir.expr import (
    Binary,
    Buffer,
    Const,
    Expr,
    Rewriter,
    SizeVar,
    Var,
    conjuncts,
    const,
    maximum,
    minimum,
    size_variables,
    variables,
    walk,
)
from retune.ir.simplify import Polynomial, polynomial, simplify
from retune.ir.stmt import (
    FEW,
    Block,
    For,
    Program,
    Seq,
    Stmt,
    expressions,
    guarded,
    loops,
    map_accesses,
    map_exprs,
    paths,
    rewrite,
    touched,
    with_body,
)

_PARTS = 3
"""Of a tile: short ones are some of them."""
_LEAST_TILE = 4
"""Rows of a tile that is worth a copy of its nest."""
_OWN = ("register", "private")
"""Memory that no other work-item sees."""

_Path = tuple[Block, Sequence[For]]


def short_last_tiles(program: Program) -> Program:
    """The last register tile along an open extent has a third of the rows, or two, where these are
    enough.

    Rewrite, for tiles of nine rows:
        for t: for r in range(9): B(r + min(t*9, n - 9))  # where t*9 < n
        ->
        for t:
          for short3 in range(1):
            for r in range(3): B(r + min(t*9, n - 3))  # where t*9 < n and n < t*9 + 4
          for short6 in range(1):
            for r in range(6): B(r + min(t*9, n - 6))  # where t*9 + 3 < n and n < t*9 + 7
          for whole in range(1):
            for r in range(9): B(r + min(t*9, n - 9))  # where t*9 + 6 < n

    Of the axes of a tile it is the one with most rows. Nests with copies for short extents, and
    those whose items work together, stay as they are.
    """
    body = program.body
    if works_together(body) or any(FEW in dict(n.notes) or n.intrinsic for n in loops(body)):
        return program
    tile = max(_moved_tiles(body), key=lambda found: found.length, default=None)
    if tile is None:
        return program
    elsewhere = {
        buffer
        for block, path in paths(body)
        if tile.around not in {n.var for n in path}
        for buffer in touched(block)
    }
    own = [b for b in program.scratch if b.scope in _OWN and b not in elsewhere]
    copied: list[Buffer] = []

    def rule(node: Stmt) -> Stmt | None:
        if not isinstance(node, For) or node.var != tile.around:
            return None
        return node.around(_copies(tile, node.body, own, copied))

    made = with_body(program, rewrite(body, rule))
    return simplify_indices(replace(made, scratch=(*program.scratch, *copied)))


def _copies(tile: "_MovedTile", stmt: Stmt, own: Sequence[Buffer], copied: list[Buffer]) -> Stmt:
    """A copy for each length of the tile, inside groups; `own` buffers are `copied` for each."""
    if isinstance(stmt, For) and stmt.kind.startswith("group"):
        return stmt.around(_copies(tile, stmt.body, own, copied))
    found: list[Stmt] = []
    less: int | None = None
    for rows in tile.short_lengths:
        mark, short = f"short{rows}", guarded(tile.shortened(stmt, rows), tile.beyond(less))
        names = {b: replace(b, name=f"{b.name}.{mark}") for b in own}
        copied.extend(names.values())
        short = map_accesses(short, lambda b, at, names=names: (names.get(b, b), at))
        found.append(copy_of(marked(short, mark), mark, notes=((FEW, 1),)))
        less = rows
    return Seq((*found, copy_of(guarded(stmt, tile.beyond(less)), "whole")))


@dataclass(frozen=True, slots=True, kw_only=True)
class _MovedTile:
    """A register tile that is moved back where it would end behind an open extent."""

    start: Expr
    """Where it would start."""
    end: Expr
    """The extent."""
    moved: Expr
    """Where it does start."""
    length: int
    around: Var
    """The innermost loop that the start depends on."""
    rows: frozenset[Var]
    """The loops over its rows, which are written out."""

    @property
    def short_lengths(self) -> list[int]:
        """Rows of short ones, ascending."""
        return sorted({-(-self.length * part // _PARTS) for part in range(1, _PARTS)})

    def beyond(self, rows: int | None) -> Expr:
        """Whether so many rows are not enough; True for None."""
        return const(True, BOOL) if rows is None else self.start + rows < self.end

    def shortened(self, stmt: Stmt, rows: int) -> Stmt:
        """The statement for tiles of so many rows, where these are enough."""
        moved = minimum(self.start, maximum(self.end - rows, 0))

        def rule(node: Stmt) -> Stmt | None:
            if isinstance(node, For) and node.var in self.rows:
                return replace(node, extent=const(rows))
            return None

        short = rewrite(map_exprs(stmt, _Replacing({self.moved: moved})), rule)
        return guarded(short, self.end < self.start + rows + 1)


class _Replacing(Rewriter):
    """Expressions with others instead of some parts."""

    def __init__(self, parts: Mapping[Expr, Expr]) -> None:
        super().__init__()
        self._parts = parts

    def rewritten(self, expr: Expr) -> Expr:
        found = self._parts.get(expr)
        return super().rewritten(expr) if found is None else found


def _moved_tiles(body: Stmt) -> Iterator[_MovedTile]:
    """The tiles whose rows alone are added to where they start."""
    every = list(paths(body))
    guards = {
        (term.a, term.b): path
        for block, path in every
        for term in conjuncts(block.guard)
        if isinstance(term, Binary) and term.op == "lt" and size_variables(term.b)
    }
    for (start, end), path in guards.items():
        counting = [n for n in path if n.var in variables(start)]
        if not counting or any(n.kind in ("unroll", "vectorize") for n in counting):
            continue
        found = {
            (node, length)
            for block, _ in every
            for expr in expressions(block)
            for node in walk(expr)
            if (length := _length(node, start, end)) >= _LEAST_TILE
        }
        around = counting[-1]
        for moved, length in found if len(found) == 1 else ():
            rows = _rows(every, moved, length, around)
            if rows:
                yield _MovedTile(
                    start=start, end=end, moved=moved, length=length, around=around.var, rows=rows
                )


def _length(node: Expr, start: Expr, end: Expr) -> int:
    """Of a tile that starts at `min(start, end - length)`; 0 for another expression."""
    if not isinstance(node, Binary) or node.op != "min" or start not in (node.a, node.b):
        return 0
    last = node.b if node.a == start else node.a
    if isinstance(last, Binary) and last.op == "max" and last.b == const(0):
        last = last.a
    length = simplify(end - last)
    return int(length.value) if isinstance(length, Const) else 0


def _rows(every: Sequence[_Path], moved: Expr, length: int, around: For) -> frozenset[Var]:
    """The loops over the tile's rows; none if something else depends on where it starts."""
    found: set[Var] = set()
    for block, path in every:
        unrolled = {n.var for n in path if n.kind == "unroll" and n.extent == const(length)}
        for total in (t for expr in expressions(block) for t in _sums(expr)):
            if not any(moved in monomial for monomial in total):
                continue
            factor = total.get((moved,))
            rows = [var for var in unrolled if total.get((var,)) == factor]
            if factor is None or len(rows) != 1 or around not in path:
                return frozenset()
            found.update(rows)
    return frozenset(found)


def _sums(expr: Expr) -> Iterator[Polynomial]:
    """The expression as a sum, and those that its atoms consist of."""
    total = polynomial(expr)
    yield total
    for atom in {atom for monomial in total for atom in monomial}:
        if not isinstance(atom, Var | SizeVar | Const):
            for child in atom.children:
                yield from _sums(child)

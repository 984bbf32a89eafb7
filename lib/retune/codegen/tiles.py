"""Loops that an intrinsic of tiles does become operations on matrix registers.

A tile is one value of a type of its own, `kernel.Tile`: the accumulators of a reduction become such
values, which its loops hold in registers, and are stored where they end, for what reads them there
element by element. What the operands are read by becomes loads of tiles.

    for r, c: y[r, c] = 0               y.tile[0] = 0
    for k:                        ->    for k:
      for r, w, c, q: y[r, c] += ..       y.tile[0] = tile8(x[..], w[..], y.tile[0])
                                        y[0, 0] = y.tile[0]

Read `tile_to_call`; `codegen.matrix_registers` gives the registers their numbers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from retune.codegen.kernel import Tile
from retune.core.dtypes import DType
from retune.core.errors import CodegenError
from retune.intrinsics import Match, TileIndex
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Buffer, Call, Expr, Load, Var, const, substitute, variables
from retune.ir.flat import elements
from retune.ir.simplify import from_polynomial, polynomial, simplify
from retune.ir.stmt import Block, For, Seq, Stmt, blocks, loops, nested, rewrite, substitute_stmt


def tile_to_call(nest: Stmt, loop: For, match: Match) -> Stmt:
    """The nest with the loops that an intrinsic of tiles does as an operation on tiles.

    Raises: CodegenError where its results do not lie in tiles.
    """
    return _Held(nest, loop, match).whole()


def read_as(load: Load, dtype: DType, index: Expr, width: int = 1) -> Load:
    """What lies there by values of another type, of so many elements each."""
    size = const(-(-elements(load.buffer) // width))
    return Load(Buffer(load.buffer.name, (size,), dtype, load.buffer.scope), (index,))


def divided(index: Expr, unit: int) -> Expr:
    """The number of the tile, or word, that starts at an element.

    Raises: CodegenError where none does.
    """
    terms = polynomial(index)
    if any(step % unit for step in terms.values()):
        raise CodegenError(f"expected whole parts of {unit} elements at {index}")
    return from_polynomial({m: step // unit for m, step in terms.items()})


class _Held:
    """The accumulators of one reduction, held in matrix registers."""

    def __init__(self, nest: Stmt, loop: For, match: Match) -> None:
        self._nest, self._loop, self._match = nest, loop, match
        own = match.loops
        inside = {n.var: evaluate_int(n.extent) for n in loops(loop)}
        self._extents = {axis: inside[var] for axis, var in own.items()}
        block, place = match.block, match.result
        if place is None:
            raise CodegenError(f"{block.name}: its results do not lie in tiles")
        rows, columns = (axis.var for axis in match.entry.op.axes)
        kind = self._tile(block.buffer.dtype, (rows, columns), place)
        sizes = {own[rows]: kind.rows, own[columns]: kind.columns}
        units = [max([1, *(sizes.get(v, 1) for v in variables(i))]) for i in block.indices]
        extents = zip(block.buffer.shape, units, strict=True)
        shape = tuple(const(-(-evaluate_int(extent) // unit)) for extent, unit in extents)
        zero: dict[Var, Expr] = dict.fromkeys(own.values(), const(0))
        self._first = tuple(simplify(substitute(i, zero)) for i in block.indices)
        self._number = tuple(map(divided, self._first, units))
        self._held = Buffer(f"{block.buffer.name}.tile", shape, kind, "register")

    def _tile(self, dtype: DType, indices: Sequence[Expr], place: TileIndex) -> Tile:
        """The type of a tile that the pattern accesses so."""
        row, along = indices
        steps = polynomial(along).items()
        last = sum(step * (self._extents[v] - 1) for (v,), step in steps if isinstance(v, Var))
        assert isinstance(row, Var), "patterns number their rows"
        return Tile(dtype, self._extents[row], last + 1, place.pitch)

    def whole(self) -> Stmt:
        """The nest with the registers set, added to, and stored."""
        block, held = self._match.block, self._held
        value = Call(self._match.entry.name, tuple(self._operands()), held.dtype)
        added = replace(block, buffer=held, indices=self._number, value=value)

        def rule(node: Stmt) -> Stmt | None:
            if node is self._loop:
                return added
            starts = isinstance(node, Seq) and any(self._sets(child) for child in node.stmts)
            if not isinstance(node, Seq) or not starts:
                return None
            return Seq(tuple(s for child in node.stmts for s in self._around(child)))

        return rewrite(self._nest, rule)

    def _sets(self, stmt: Stmt) -> bool:
        """Whether the statement sets the accumulators to their start."""
        return [b.name for b in blocks(stmt)] == [f"{self._match.block.name}.init"]

    def _around(self, child: Stmt) -> Iterable[Stmt]:
        """The sum between what sets its tiles and what stores them; other statements as they are.

        What sets the accumulators element by element is left out.
        """
        block = self._match.block
        if [b.name for b in blocks(child)] != [block.name]:
            return () if self._sets(child) else (child,)
        around = [n for n in loops(child) if not n.reduce]
        zero = const(0, self._held.dtype)
        start = Block(f"{block.name}.init", self._held, self._number, zero)
        load = Load(self._held, self._number)
        stored = Block(f"{block.name}.store", block.buffer, self._first, load)
        return (_nested(around, start, "init"), child, _nested(around, stored, "store"))

    def _operands(self) -> Iterable[Load]:
        """Loads of the operands' tiles, in the intrinsic's order."""
        for number, load in enumerate(self._match.reads):
            place = self._match.tile(number)
            assert place is not None, "whoever gives it to the instruction asks that first"
            kind = self._tile(load.dtype, self._match.wanted(number).indices, place)
            yield read_as(load, kind, place.origin)


def _nested(loops: Sequence[For], block: Block, suffix: str) -> Stmt:
    """The block in loops of its own like those."""
    names = {n.var: Var(f"{n.var.name}.{suffix}") for n in loops}
    renamed = [replace(n, var=names[n.var]) for n in loops]
    return nested(renamed, substitute_stmt(block, names))

"""Loops that the items of a warp do together become calls of a function of what each has read.

The program says what each item computes for itself. An instruction of warps computes the same for
all of them, but takes operands from other items than those that they are for: each item reads a
share. Where it lies follows from the item's own place, with other items' numbers in it. So nothing
changes but the addresses, and the sums stay in the registers in which they were.

    for j in 2, k in 8, i in 4, q in 4:
      y[j, i] += x[p, j, 4*k + q]*w[k, c, i, q]
    ->
    for i in 4:  # vectorize
      y[0, i] += warp8(x[c // 2, c % 2, p], w[2*p, c, i], w[2*p + 1, c, i], y[1, i])

`x` is now read by words of eight bytes, and `w` by words of four. Read `warp_to_call`.
"""

from collections.abc import Sequence
from dataclasses import replace

from retune.codegen.kernel import Array, Function, Memory, Statement
from retune.codegen.tiles import divided, read_as
from retune.core.dtypes import INT32, packed
from retune.intrinsics import Match, intrinsic, item_loops
from retune.intrinsics.warp8 import SHARE, WORD
from retune.ir.expr import Call, Const, Expr, Load, Select, Var, const, substitute
from retune.ir.simplify import simplify
from retune.ir.stmt import For, Stmt, blocks, loops, rewrite

EXCHANGE = "exchange"
"""The array in local memory by which items tell each other what they read, where a way needs it."""


def with_exchange(
    statements: Sequence[Statement], function: Function, items: int
) -> tuple[Statement, ...]:
    """The body of a kernel of so many items, with the memory by which its way exchanges shares."""
    way = next(w for w in intrinsic(function.op).ways if w.name == function.way)
    if not way.exchanged:
        return tuple(statements)
    memory = Memory(EXCHANGE, INT32, "local")
    return (Array(memory, way.exchanged * items), *statements)


def warp_to_call(nest: Stmt, loop: For, match: Match) -> Stmt:
    """The nest with a call in place of a loop; the sums are set to their start by vectors."""
    items = item_loops(match.entry, nest, loop)
    assert items is not None, "whoever gives it to the instruction asks that first"
    row, column = (match.loops[axis.var] for axis in match.entry.op.axes)
    (lanes,) = (n for n in loops(loop) if n.var == column)
    block = match.block
    own = {v: const(0) for v in match.loops.values() if v != column}
    first, second = (
        tuple(simplify(substitute(i, {**own, row: const(n)})) for i in block.indices)
        for n in range(2)
    )
    words = (_pixel(match, items, row), *_channels(match, items, column))
    call = Call(match.entry.name, (*words, Load(block.buffer, second)), block.buffer.dtype)
    added: Stmt = replace(lanes, body=replace(block, indices=first, value=call), kind="vectorize")

    def rule(node: Stmt) -> Stmt | None:
        if node is loop:
            return added
        if isinstance(node, For) and [b.name for b in blocks(node)] == [f"{block.name}.init"]:
            if node.var.name == f"{row.name}.init":
                return replace(node, kind="unroll")
            if node.var.name == f"{column.name}.init":
                return replace(node, kind="vectorize")
        return None

    return rewrite(nest, rule)


def _pixel(match: Match, items: tuple[Var, Var], row: Var) -> Expr:
    """The item's words of a pixel: of half the items along local.1, one row each."""
    (load, _), place = match.reads, match.tile(0)
    assert place is not None, "whoever gives it to the instruction asks that first"
    first, second = items
    theirs = {first: second // 2, row: second % 2}
    origin = substitute(place.origin + place.pitch * row, theirs) + SHARE * WORD * first
    word = _word(load, origin, SHARE * WORD)
    choice = match.mask(0)
    if choice is None:
        return word
    assert isinstance(choice.otherwise, Const), "it was matched so"
    filled = (int(choice.otherwise.value) & 0xFF) * 0x01010101
    return Select(substitute(choice.condition, theirs), word, Const(filled, word.dtype))


def _channels(match: Match, items: tuple[Var, Var], column: Var) -> list[Expr]:
    """The item's words of its channels, which are lanes."""
    (_, load), place = match.reads, match.tile(1)
    assert place is not None, "whoever gives it to the instruction asks that first"
    rows = (place.origin + place.pitch * (SHARE * items[0] + n) for n in range(SHARE))
    return [_word(load, row + WORD * column, WORD) for row in rows]


def _word(load: Load, at: Expr, width: int) -> Load:
    """The word that starts at an element. Raises: CodegenError where none does."""
    return read_as(load, packed(load.dtype, width), divided(at, width), width)

"""Four-element dot products: what hardware multiplies and adds of bytes at once.

Instructions for them (x86 VNNI, Arm's dot product, OpenCL 3.0's integer dot product) take a word
of four bytes from each operand. `dot_problem` says why one cannot do a loop, `dot_operands` what it
multiplies, `word_index` where the word of an operand lies. The loop itself stays a loop of kind
`dot4` in the program, so it means what any reduce loop means.
"""

from dataclasses import dataclass

from retune.ir.expr import (
    Binary,
    Buffer,
    Cast,
    Const,
    Expr,
    Load,
    Scope,
    Var,
    loads,
    variables,
)
from retune.ir.flat import flat_index
from retune.ir.simplify import from_polynomial, polynomial
from retune.ir.stmt import Block, For, Stmt, blocks, walk

WIDTH = 4
"""Bytes of a word: products that one instruction adds."""
BYTES = ("uint8", "int8")
"""Element types of the first operand; the second one is int8."""


@dataclass(frozen=True, slots=True)
class DotOperands:
    """The two reads whose products are added."""

    a: Load
    """uint8 or int8."""
    b: Load
    """int8."""


def dot_problem(nest: Stmt, loop: For, unordered: Scope | None = None) -> str:
    """Why no instruction can do a loop of the nest; empty where one can.

    Buffers of the scope `unordered` may yet be laid out in another order.
    """
    if not is_dot_loop(loop):
        notes = "" if loop.reduce else " that does not reduce"
        notes += "" if isinstance(loop.body, Block) else " around more than that"
        return f"expected a reduce loop of {WIDTH} steps around one block, got {loop.extent}{notes}"
    assert isinstance(loop.body, Block)
    operands = dot_operands(loop.body, loop.var)
    if operands is None:
        return (
            f"expected int32 sums of products of two bytes, the second one int8; "
            f"got {loop.body.reducer} of {loop.body.value}"
        )
    for load in (operands.a, operands.b):
        if load.buffer.scope != unordered and word_index(load, loop.var) is None:
            return (
                f"the four bytes of {load} must lie side by side in one word; split the "
                "last axis by 4, of an operand whose rows are multiples of 4, or pack a constant"
            )
        if other := _touched_by_bytes(nest, loop, load.buffer):
            return f"{load.buffer} is read by words, but {other} of the same nest touches its bytes"
    return ""


def _touched_by_bytes(nest: Stmt, loop: For, buffer: Buffer) -> str:
    """The first block, by name, that touches the buffer and is no dot product; or empty."""
    loops = [n for n in walk(nest) if isinstance(n, For)]
    dots = [n.body for n in loops if (n.kind == "dot4" or n is loop) and is_dot_loop(n)]
    for block in blocks(nest):
        touched = {block.buffer, *(load.buffer for load in loads(block.value))}
        if buffer in touched and block not in dots:
            return block.name
    return ""


def dot_operands(block: Block, var: Var) -> DotOperands | None:
    """The operands if the block adds int32 products of two bytes; None for anything else.

    A uint8 operand is `a`, whichever side of the product it stands on. All steps of `var` are
    done or none.
    """
    value = block.value
    if block.reducer != "sum" or block.buffer.dtype != "int32":
        return None
    if block.guard is not None and var in variables(block.guard):
        return None
    if not isinstance(value, Binary) or value.op != "mul":
        return None
    sides = [_byte(value.a), _byte(value.b)]
    if sides[1] is not None and sides[1].dtype == "uint8":
        sides.reverse()
    a, b = sides
    if a is None or b is None or a.dtype not in BYTES or b.dtype != "int8":
        return None
    return DotOperands(a, b)


def _byte(expr: Expr) -> Load | None:
    """The read of a byte that an int32 value converts."""
    if isinstance(expr, Cast) and expr.dtype == "int32" and isinstance(expr.value, Load):
        return expr.value
    return None


def word_index(load: Load, var: Var) -> Expr | None:
    """Number of the word that holds `load` for each value of `var`; None where there is none.

    There is one if `var` runs over adjacent bytes and all else moves by whole words.
    """
    terms = polynomial(flat_index(load.buffer, load.indices))
    if terms.pop((var,), 0) != 1:
        return None
    for monomial, coefficient in terms.items():
        if coefficient % WIDTH or any(var in variables(atom) for atom in monomial):
            return None
    return from_polynomial({m: c // WIDTH for m, c in terms.items()})


def is_dot_loop(loop: For) -> bool:
    """Whether the loop is a reduction of four steps around one block."""
    return loop.reduce and loop.extent == Const(WIDTH) and isinstance(loop.body, Block)

"""Barriers of a work-group: placed between conflicting uses of local memory.

A statement that reads what an earlier one wrote to local memory, or that overwrites what an
earlier one read or wrote, waits until all items are past the earlier one. Every item comes to
every barrier: they stand in loops of constant extents, never behind a guard.
"""

from retune.ir.expr import Binary, Buffer, Const, Expr, loads
from retune.ir.simplify import simplify
from retune.ir.stmt import (
    Barrier,
    Block,
    For,
    Indices,
    Program,
    Seq,
    Stmt,
    blocks,
    rewrite,
    sequence,
    with_body,
)


def place_barriers(program: Program) -> Program:
    """Barriers between statements, and at the ends of loops, whose uses are in conflict.

    Rewrite, where s is local memory:
        for k in range(4):          for k in range(4):
          s[item] = x[k, item]        s[item] = x[k, item]
          y += s[item + 1]      ->    barrier
                                      y += s[item + 1]
                                      barrier
    """
    if not any(b.buffer.scope == "local" for b in blocks(program.body)):
        return program

    def rule(node: Stmt) -> Stmt | None:
        match node:
            case Seq(stmts):
                return Seq(tuple(_apart(stmts)))
            case For(body=body) if node.in_order and _repeats_after_barrier(body):
                inside = sequence(body, Barrier())
                waits = isinstance(inside.stmts[-2], Barrier)
                return None if waits else node.around(inside)
            case _:
                return None

    return with_body(program, rewrite(program.body, rule))


_Use = tuple[Buffer, Expr | None]
"""A local buffer, and which of its slots is used if that is a step modulo their number."""
_Uses = tuple[set[_Use], set[_Use]]
"""What statements read, and write."""


def _uses(stmt: Stmt) -> _Uses:
    inside = blocks(stmt)
    read = (load for b in inside for load in loads(b.value) if load.buffer.scope == "local")
    return (
        {(load.buffer, _slot(load.indices)) for load in read},
        {(b.buffer, _slot(b.indices)) for b in inside if b.buffer.scope == "local"},
    )


def _slot(indices: Indices) -> Expr | None:
    first = indices[0] if indices else None
    return first if isinstance(first, Binary) and first.op == "mod" else None


def _conflict(some: set[_Use], others: set[_Use]) -> bool:
    """Whether some of these uses may be of the same elements."""
    return any(
        buffer == other and not _apart_by_slots(slot, found)
        for buffer, slot in some
        for other, found in others
    )


def _apart_by_slots(a: Expr | None, b: Expr | None) -> bool:
    """Whether two slots are different ones in each iteration: their steps differ by a number."""
    if not isinstance(a, Binary) or not isinstance(b, Binary) or a.b != b.b:
        return False
    distance = simplify(a.a - b.a)
    return isinstance(distance, Const) and isinstance(a.b, Const) and distance.value % a.b.value > 0


def _apart(stmts: tuple[Stmt, ...]) -> list[Stmt]:
    """The statements, with a barrier before each one that conflicts with those before it."""
    placed: list[Stmt] = []
    read, written = set[_Use](), set[_Use]()
    for stmt in stmts:
        own_read, own_written = _uses(stmt)
        conflict = _conflict(written, own_read | own_written) or _conflict(read, own_written)
        waits = conflict and not _starts_with_barrier(stmt)
        if waits:
            placed.append(Barrier())
        if waits or isinstance(stmt, Barrier):
            read, written = set[_Use](), set[_Use]()
        placed.append(stmt)
        read |= own_read
        written |= own_written
    return placed


def _repeats_after_barrier(body: Stmt) -> bool:
    """True when the next iteration of a loop over `body` has to wait for this one.

    One block alone may run on: each item keeps to its own elements.
    """
    if _starts_with_barrier(body):
        return False
    read, written = ({buffer for buffer, _ in found} for found in _uses(body))
    writers = [b for b in blocks(body) if b.buffer.scope == "local"]
    return bool(read & written) or len(written) < len(writers)


def _starts_with_barrier(stmt: Stmt) -> bool:
    """Whether items wait before all else that they do in it."""
    match stmt:
        case Barrier():
            return True
        case For(body=body):
            return stmt.in_order and _starts_with_barrier(body)
        case Seq(stmts):
            return bool(stmts) and _starts_with_barrier(stmts[0])
        case Block():
            return False

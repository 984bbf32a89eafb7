"""Where the items of a work-group have to wait for each other: uses of local memory in conflict.

A statement that reads what an earlier one wrote to local memory, or that overwrites what an
earlier one read or wrote, waits until all items are past the earlier one. Every item comes to
every barrier: they stand in loops of constant extents, never behind a guard.
"""

from retune.ir.expr import Buffer, loads
from retune.ir.stmt import (
    STRAIGHT,
    Barrier,
    For,
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
            case For(body=body) if _in_time(node) and _repeats_after_barrier(body):
                inside = sequence(body, Barrier())
                waits = isinstance(inside.stmts[-2], Barrier)
                return None if waits else node.around(inside)
            case _:
                return None

    return with_body(program, rewrite(program.body, rule))


_Uses = tuple[set[Buffer], set[Buffer]]
"""Local buffers that statements read, and write."""


def _uses(stmt: Stmt) -> _Uses:
    inside = blocks(stmt)
    read = {load.buffer for b in inside for load in loads(b.value) if load.buffer.scope == "local"}
    return read, {b.buffer for b in inside if b.buffer.scope == "local"}


def _apart(stmts: tuple[Stmt, ...]) -> list[Stmt]:
    """The statements, with a barrier before each one that conflicts with those before it."""
    placed: list[Stmt] = []
    read, written = set[Buffer](), set[Buffer]()
    for stmt in stmts:
        own_read, own_written = _uses(stmt)
        conflict = written & (own_read | own_written) or read & own_written
        if conflict:
            placed.append(Barrier())
        if conflict or isinstance(stmt, Barrier):
            read, written = set[Buffer](), set[Buffer]()
        placed.append(stmt)
        read |= own_read
        written |= own_written
    return placed


def _in_time(loop: For) -> bool:
    return loop.kind == "serial" or loop.kind in STRAIGHT


def _repeats_after_barrier(body: Stmt) -> bool:
    """True when the next iteration of a loop over `body` has to wait for this one.

    One block alone may run on: each item keeps to its own elements.
    """
    read, written = _uses(body)
    writers = [b for b in blocks(body) if b.buffer.scope == "local"]
    return bool(read & written) or len(written) < len(writers)

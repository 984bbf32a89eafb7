"""Where the items of a work-group have to wait for each other: uses of local memory in conflict.

A statement that reads what an earlier one wrote to local memory, or that overwrites what an
earlier one read or wrote, waits until all items are past the earlier one. Every item comes to
every barrier: they stand in loops of constant extents, never behind a guard.
"""

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class _Uses:
    """Local buffers that a statement reads and writes."""

    read: frozenset[Buffer] = frozenset()
    written: frozenset[Buffer] = frozenset()

    def conflicts(self, later: "_Uses") -> bool:
        return bool(self.written & (later.read | later.written) or self.read & later.written)

    def both(self, other: "_Uses") -> "_Uses":
        return _Uses(self.read | other.read, self.written | other.written)


def _uses(stmt: Stmt) -> _Uses:
    inside = blocks(stmt)
    read = {load.buffer for b in inside for load in loads(b.value) if load.buffer.scope == "local"}
    written = {b.buffer for b in inside if b.buffer.scope == "local"}
    return _Uses(frozenset(read), frozenset(written))


def _apart(stmts: tuple[Stmt, ...]) -> list[Stmt]:
    """The statements, with a barrier before each one that conflicts with those before it."""
    placed: list[Stmt] = []
    so_far = _Uses()
    for stmt in stmts:
        own = _uses(stmt)
        if so_far.conflicts(own):
            placed.append(Barrier())
            so_far = _Uses()
        elif isinstance(stmt, Barrier):
            so_far = _Uses()
        placed.append(stmt)
        so_far = so_far.both(own)
    return placed


def _in_time(loop: For) -> bool:
    return loop.kind == "serial" or loop.kind in STRAIGHT


def _repeats_after_barrier(body: Stmt) -> bool:
    """True when the next iteration of a loop over `body` has to wait for this one.

    One block alone may run on: each item keeps to its own elements.
    """
    own = _uses(body)
    writers = [b.buffer for b in blocks(body) if b.buffer.scope == "local"]
    return bool(own.read & own.written) or len(set(writers)) < len(writers)

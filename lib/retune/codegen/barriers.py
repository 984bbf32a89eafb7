"""Where the items of a work-group have to wait for each other: uses of local memory in conflict.

A statement that reads what an earlier one wrote to local memory, or that overwrites what an
earlier one read or wrote, waits until all items are past the earlier one. Every item comes to
every barrier: they stand in loops of constant extents, never behind a guard.
"""

from dataclasses import dataclass

from retune.ir.expr import Buffer, loads
from retune.ir.stmt import For, Seq, Stmt, blocks, walk


@dataclass(frozen=True, slots=True)
class _Uses:
    """Local buffers that a statement reads and writes."""

    read: frozenset[Buffer]
    written: frozenset[Buffer]

    def conflicts(self, later: "_Uses") -> bool:
        return bool(self.written & (later.read | later.written) or self.read & later.written)

    def both(self, other: "_Uses") -> "_Uses":
        return _Uses(self.read | other.read, self.written | other.written)


_NONE = _Uses(frozenset(), frozenset())


def _uses(stmt: Stmt) -> _Uses:
    inside = blocks(stmt)
    read = {load.buffer for b in inside for load in loads(b.value) if load.buffer.scope == "local"}
    written = {b.buffer for b in inside if b.buffer.scope == "local"}
    return _Uses(frozenset(read), frozenset(written))


def uses_local_memory(stmt: Stmt) -> bool:
    """True when some block writes local memory."""
    return any(b.buffer.scope == "local" for b in blocks(stmt))


def phases(stmts: tuple[Stmt, ...]) -> list[tuple[Stmt, ...]]:
    """The statements in runs between which a barrier is needed."""
    runs: list[list[Stmt]] = [[]]
    so_far = _NONE
    for stmt in stmts:
        own = _uses(stmt)
        if so_far.conflicts(own):
            runs.append([])
            so_far = _NONE
        runs[-1].append(stmt)
        so_far = so_far.both(own)
    return [tuple(run) for run in runs]


def repeats_after_barrier(body: Stmt) -> bool:
    """True when the next iteration of a loop over `body` has to wait for this one.

    One block alone may run on: each item keeps to its own elements.
    """
    own = _uses(body)
    writers = [b.buffer for b in blocks(body) if b.buffer.scope == "local"]
    return bool(own.read & own.written) or len(set(writers)) < len(writers)


def holds_barrier(stmt: Stmt) -> bool:
    """True when a barrier is needed somewhere inside the statement."""
    for node in walk(stmt):
        match node:
            case Seq(stmts) if len(phases(stmts)) > 1:
                return True
            case For(kind="serial" | "unroll") if repeats_after_barrier(node.body):
                return True
            case _:
                pass
    return False

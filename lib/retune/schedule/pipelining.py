"""Copies into local memory that run ahead of what reads them, and rows of such memory that lie in
other banks: further apart, or rotated.

Program -> program, meaning kept, ScheduleError where that is impossible; `Schedule` records them.
"""

from collections.abc import Sequence
from dataclasses import replace

from retune.core.errors import ScheduleError
from retune.ir.expr import Buffer, Const, Expr, Select, all_of, const, loads, select
from retune.ir.simplify import Simplifying, polynomial, range_below
from retune.ir.stmt import (
    AHEAD,
    Barrier,
    Block,
    Element,
    For,
    Indices,
    Program,
    Seq,
    Stmt,
    blocks,
    loops,
    map_accesses,
    marked,
    rewrite,
    substitute_stmt,
    touched,
    with_body,
)
from retune.schedule.loops import loop_named, replace_loop
from retune.schedule.stages import block_named, replace_scratch


def run_ahead(program: Program, name: str, stages: int) -> Program:
    """See Schedule.run_ahead."""
    who, loop = f"run_ahead({name}, {stages})", loop_named(program, name)
    if stages < 2:
        raise ScheduleError(f"{who}: expected two stages or more")
    copies, rest = _parts(loop)
    if loop.kind != "serial" or not copies or not rest:
        raise ScheduleError(f"{who}: expected a serial loop that starts with local copies")
    held = {b.buffer: _in_slots(b.buffer, stages) for copy in copies for b in blocks(copy)}
    inside = {b.name for b in blocks(loop)}
    for block in blocks(program.body):
        if block.name not in inside and not held.keys().isdisjoint(touched(block)):
            raise ScheduleError(f"{who}: {block.name} touches what is copied, outside of the loop")
    if any(b.buffer in held for stmt in rest for b in blocks(stmt)):
        raise ScheduleError(f"{who}: the rest of the loop writes what is copied")
    made = _pipelined(loop, copies, rest, held, stages)
    for old, new in held.items():
        program = replace_scratch(program, old, new)
    return replace_loop(program, name, lambda _: made)


def _parts(loop: For) -> tuple[list[Stmt], list[Stmt]]:
    """The copies at the start of each iteration, and what follows them."""
    stmts: list[Stmt] = [*loop.body.stmts] if isinstance(loop.body, Seq) else [loop.body]
    count = next((n for n, stmt in enumerate(stmts) if not _copies(stmt)), len(stmts))
    return stmts[:count], stmts[count:]


def _copies(stmt: Stmt) -> bool:
    """Whether it fills local memory, and reads none."""
    return bool(blocks(stmt)) and all(
        block.buffer.scope == "local"
        and block.reducer is None
        and all(load.buffer.scope in ("global", "constant") for load in loads(block.value))
        for block in blocks(stmt)
    )


def _in_slots(buffer: Buffer, stages: int) -> Buffer:
    return replace(buffer, shape=(const(stages), *buffer.shape))


def _pipelined(
    loop: For,
    copies: Sequence[Stmt],
    rest: Sequence[Stmt],
    held: dict[Buffer, Buffer],
    stages: int,
) -> Seq:
    """The copies of the first iterations, and the loop over those further ahead and the rest."""
    ahead = loop.var + (stages - 1)

    def at(stmt: Stmt, step: Expr) -> Stmt:
        def slot(buffer: Buffer, indices: Indices) -> Element | None:
            return (held[buffer], (step % stages, *indices)) if buffer in held else None

        return map_accesses(stmt, slot)

    def copied(step: Expr) -> list[Stmt]:
        """The copies for an iteration, in its slot; of zeros if there is none."""
        found = (
            _zeros_unless(substitute_stmt(c, {loop.var: step}), step < loop.extent) for c in copies
        )
        return [rewrite(at(stmt, step), _ahead) for stmt in found]

    start = marked(For(loop.var, const(stages - 1), Seq(tuple(copied(loop.var)))), "first")
    wait = Barrier(pending=(stages - 2) * len(copies))
    body = (wait, *copied(ahead), *(at(stmt, loop.var) for stmt in rest))
    return Seq((start, loop.around(Seq(body))))


def _zeros_unless(copy: Stmt, condition: Expr) -> Stmt:
    """The copy with zeros where the condition does not hold. A guard would be a branch
    between what items copy and what they compute."""

    def rule(node: Stmt) -> Stmt | None:
        if not isinstance(node, Block):
            return None
        test, value, zero = condition, node.value, const(0, node.value.dtype)
        if isinstance(value, Select) and value.otherwise == zero:
            test, value = all_of(condition, value.condition), value.then
        return replace(node, value=select(test, value, zero))

    return rewrite(copy, rule)


def _ahead(node: Stmt) -> Stmt | None:
    if not isinstance(node, For):
        return None
    return replace(node, notes=tuple((dict(node.notes) | {AHEAD: 1}).items()))


def align_rows(program: Program, name: str, elements: Expr) -> Program:
    """See Schedule.align_rows."""
    buffer = _local_rows(program, f"align_rows({name})", name)
    apart = replace(buffer, shape=(*buffer.shape[:-1], buffer.shape[-1] + elements))
    body = map_accesses(program.body, lambda b, at: (apart, at) if b == buffer else None)
    return replace_scratch(with_body(program, body), buffer, apart)


def rotate_rows(program: Program, name: str, line: int, unit: int, every: int) -> Program:
    """See Schedule.rotate_rows."""
    who = f"rotate_rows({name}, {line}, {unit}, {every})"
    if min(line, unit, every) < 1:
        raise ScheduleError(f"{who}: expected positive numbers")
    buffer = _local_rows(program, who, name)
    columns = polynomial(buffer.shape[-1])
    if len(buffer.shape) < 2 or any(n % (line * unit) for n in columns.values()):
        raise ScheduleError(f"{who}: expected rows of whole lines of {line} x {unit} elements")
    known = (n for n in loops(program.body) if isinstance(n.extent, Const))
    simplified = Simplifying({n.var: range_below(n.extent) for n in known})

    def rotated(found: Buffer, at: Indices) -> Element | None:
        if found != buffer:
            return None
        *others, row, column = at
        number = simplified(column // unit)
        which = number // line
        turned = which * line + (number % line + row // every + which) % line
        moved = turned * unit + simplified(column % unit)
        return buffer, (*others, row, simplified(moved))

    return with_body(program, map_accesses(program.body, rotated))


def _local_rows(program: Program, who: str, name: str) -> Buffer:
    """The local memory that a stage fills. Raises: ScheduleError where it fills other memory."""
    buffer = block_named(program, name).buffer
    if buffer.scope != "local" or buffer not in program.scratch or not buffer.shape:
        raise ScheduleError(f"{who}: expected a stage in local memory")
    return buffer

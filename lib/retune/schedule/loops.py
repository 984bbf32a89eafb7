"""Primitives on loops: program -> program, meaning kept, ScheduleError where that is impossible.

These are the rewrites; `retune.schedule.schedule.Schedule` is what users call, and records them.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce as fold

from retune.core.errors import ScheduleError
from retune.ir.expr import (
    Const,
    Expr,
    Var,
    all_of,
    ceildiv,
    const,
    either,
    maximum,
    minimum,
    size_variables,
    substitute,
    variables,
)
from retune.ir.reduction import path_to, reduce_loops
from retune.ir.simplify import bounds, simplify
from retune.ir.stmt import (
    Block,
    For,
    Program,
    Stmt,
    block_variables,
    blocks,
    identity,
    loops,
    map_accesses,
    nested,
    replaced,
    rewrite,
    substitute_stmt,
    with_body,
)
from retune.schedule.effects import check_sums

Tail = str
"""`exact`: the factors divide the extent. `shift`: the last tile overlaps the one before it.
`guard`: iterations past the end are skipped by a condition. `fill`: as `shift`, but no size makes
the extent less than a tile. `clamp`: as `shift`; of an extent that depends on sizes, tiles overlap
that are as long as the factors behind the first one, the outer loop's iterations have equally many
of them, at most the first factor, and those past the end are skipped; the outer loop has a multiple
of some units of iterations. Where the extent may be 0, they have as many as the first factor."""
TAILS = ("exact", "shift", "guard", "fill", "clamp")


def loop_named(program: Program, name: str) -> For:
    """The loop over the variable `name`. Raises: ScheduleError naming the loops there are."""
    found = loops(program.body)
    for loop in found:
        if loop.var.name == name:
            return loop
    known = [loop.var.name for loop in found]
    raise ScheduleError(f"no loop {name!r} in {program.name}; loops are {', '.join(known)}")


def root_of(program: Program, loop: For) -> Stmt:
    """The root nest that the loop is in."""
    return next(root for root in program.body.stmts if any(n is loop for n in loops(root)))


def replace_loop(program: Program, name: str, change: Callable[[For], Stmt]) -> Program:
    """The program with `change` applied to the loop over `name`."""
    loop = loop_named(program, name)
    return with_body(program, replaced(program.body, loop, change(loop)))


def split(
    program: Program, name: str, factors: Sequence[Expr], tail: Tail, units: int = 1
) -> Program:
    """See Schedule.split."""
    loop = loop_named(program, name)
    if loop.kind != "serial":
        raise ScheduleError(f"split({name}): expected a serial loop, got {loop.kind}")
    inner = simplify(fold(lambda a, b: a * b, factors))
    exact = _divides(inner, loop.extent)
    sized = bool(size_variables(loop.extent)) and tail != "fill"
    clamped = tail == "clamp" and sized and not loop.reduce and len(factors) > 1
    tail = "exact" if exact else "shift" if tail in ("fill", "clamp") else tail
    if tail == "shift" and not loop.reduce:
        check_repeatable(f"split({name})", program, loop)
    outer_extent = loop.extent // inner if tail == "exact" else ceildiv(loop.extent, inner)
    parts = [Var(f"{name}.{i}") for i in range(len(factors) + 1)]
    counting = 2 if clamped and tail == "shift" else 1  # loops that say which tile it is
    tile = simplify(fold(lambda a, b: a * b, factors[counting - 1 :]))
    position = _positional(parts[counting:], factors[counting - 1 :])
    span = bounds(loop.extent, {})
    if counting > 1 and span is not None and span.low > 0:  # of no tiles there are no shares
        outer_extent = ceildiv(loop.extent, inner * units) * units
        factors = [simplify(ceildiv(ceildiv(loop.extent, tile), outer_extent)), *factors[1:]]
    start = (parts[0] if counting == 1 else parts[0] * factors[0] + parts[1]) * tile
    base = start
    if tail == "shift":
        last = loop.extent - tile
        base = minimum(start, maximum(last, 0) if sized else last)
    value = simplify(base + position)
    body = substitute_stmt(loop.body, {loop.var: value})
    if tail == "shift" and loop.reduce:
        inside = simplify(position) < loop.extent if sized else all_of()
        body = _once(start <= value, inside, body)
    elif tail == "guard" or (tail == "shift" and sized):
        body = _guard(loop, (value if tail == "guard" else simplify(position)) < loop.extent, body)
    if counting > 1:
        body = _guard(loop, simplify(start) < loop.extent, body)
    overlap = tail == "shift" and not loop.reduce
    inside = [
        For(v, n, body, reduce=loop.reduce, shifted=(i < counting and overlap) or loop.shifted)
        for i, (v, n) in enumerate(zip(parts[1:], factors, strict=True), 1)
    ]
    body = nested(inside, body)
    outer = For(parts[0], simplify(outer_extent), body, reduce=loop.reduce)
    outer = replace(outer, shifted=overlap or loop.shifted)
    made = replace_loop(program, name, lambda _: outer)
    if tail == "shift":
        check_sums(f"split({name})", made)
    return made


def check_repeatable(who: str, program: Program, loop: For) -> None:
    """An iteration of `loop` may run twice: it starts each of its accumulations afresh.

    Raises: ScheduleError where a start value is set outside `loop`.
    """
    inside = blocks(loop.body)
    for block in inside:
        if block.reducer is None or not any(loop.var in variables(i) for i in block.indices):
            continue
        path = path_to(program.body, block) or []
        around = path[: next(i for i, p in enumerate(path) if p.var == loop.var)]
        if block.decomposed:
            started = any(b.name == f"{block.name}.init" for b in inside)
        else:
            started = not reduce_loops(around, block)
        if not started:
            raise ScheduleError(
                f"{who}: a shifted tail inside the reduction of {block.name} would be added twice"
            )


def _divides(factor: Expr, extent: Expr) -> bool:
    if isinstance(factor, Const) and isinstance(extent, Const):
        return int(extent.value) % int(factor.value) == 0
    return bool(size_variables(extent)) and simplify(extent % factor) == const(0)


def _positional(parts: Sequence[Var], factors: Sequence[Expr]) -> Expr:
    total: Expr = const(0)
    for part, factor in zip(parts, factors, strict=True):
        total = total * factor + part
    return total


def _once(new: Expr, inside: Expr, body: Stmt) -> Stmt:
    """Every reduction in a shifted tile takes the steps that are inside and that are new.

    The neutral value stands for the others. A maximum or minimum may take a step twice.
    """

    def rule(node: Stmt) -> Stmt | None:
        if not isinstance(node, Block) or node.reducer is None:
            return None
        start = identity(node.reducer, node.buffer.dtype.compute)
        counts = inside if node.reducer in ("max", "min") else all_of(new, inside)
        return replace(node, value=either(counts, node.value, start))

    return rewrite(body, rule)


def _guard(loop: For, condition: Expr, body: Stmt) -> Stmt:
    """Every block inside `loop` that its iterations change keeps to the condition."""
    touched = {
        b.name
        for b in blocks(loop.body)
        if loop.var in block_variables(b) or (loop.reduce and b.reducer is not None)
    }

    def rule(node: Stmt) -> Stmt | None:
        if not isinstance(node, Block) or node.name not in touched:
            return None
        guard = condition if node.guard is None else all_of(node.guard, condition)
        return replace(node, guard=guard)

    return rewrite(body, rule)


def fuse(program: Program, outer: str, inner: str, name: str) -> Program:
    """See Schedule.fuse."""
    first = loop_named(program, outer)
    second = first.body
    if not isinstance(second, For) or second.var.name != inner:
        raise ScheduleError(f"fuse({outer}, {inner}): {inner} must be the only thing in {outer}")
    if first.reduce != second.reduce or first.kind != "serial" or second.kind != "serial":
        raise ScheduleError(f"fuse({outer}, {inner}): both must be serial, both reduce or neither")
    var = Var(name)
    body = substitute_stmt(
        second.body, {first.var: var // second.extent, second.var: var % second.extent}
    )
    fused = For(var, simplify(first.extent * second.extent), body, reduce=first.reduce)
    fused = replace(fused, shifted=first.shifted or second.shifted)
    return replace_loop(program, outer, lambda _: fused)


def reorder(program: Program, names: Sequence[str]) -> Program:
    """See Schedule.reorder."""
    if not names:
        raise ScheduleError("reorder: expected the names of loops, got none")
    if len(set(names)) != len(names):
        raise ScheduleError(f"reorder({', '.join(names)}): a loop is named twice")
    wanted = [loop_named(program, name) for name in names]
    outermost = next(n for n in loops(program.body) if n.var.name in set(names))
    chain = _chain(outermost, set(names))
    positions = [i for i, loop in enumerate(chain) if loop.var.name in set(names)]
    if len(positions) != len(names):
        outside = sorted(set(names) - {loop.var.name for loop in chain})
        raise ScheduleError(
            f"reorder: {', '.join(outside)} not nested directly with {outermost.var.name}"
        )
    order = list(chain)
    for position, loop in zip(positions, wanted, strict=True):
        order[position] = loop
    body = chain[-1].body
    _check_shift_order(order, body)
    return replace_loop(program, outermost.var.name, lambda _: nested(order, body))


def _chain(loop: For, names: set[str]) -> list[For]:
    """`loop` and the loops nested directly in it, down to the last of `names`."""
    chain = [loop]
    while isinstance(chain[-1].body, For):
        chain.append(chain[-1].body)
    while chain[-1].var.name not in names:
        chain.pop()
    return chain


def _check_shift_order(order: Sequence[For], body: Stmt) -> None:
    """A shifted loop inside a reduce loop would accumulate its overlap twice."""
    accumulating = [b for b in blocks(body) if b.reducer is not None]
    inside_reduce = False
    for loop in order:
        inside_reduce |= loop.reduce
        used = any(loop.var in variables(i) for b in accumulating for i in b.indices)
        if loop.shifted and inside_reduce and used:
            raise ScheduleError(
                f"reorder: {loop.var} has a shifted tail and may not move inside a reduce loop"
            )


def substitute_symbols(program: Program, values: dict[Var, Expr]) -> Program:
    """The program with tile-size symbols replaced by their values, buffers' shapes too."""
    scratch = tuple(
        replace(b, shape=tuple(simplify(substitute(e, values)) for e in b.shape))
        for b in program.scratch
    )
    sized = {old: new for old, new in zip(program.scratch, scratch, strict=True) if old != new}

    body = substitute_stmt(program.body, values)
    if sized:
        body = map_accesses(body, lambda b, at: (sized[b], at) if b in sized else None)
    return replace(with_body(program, body), scratch=scratch)

"""Primitives that move a stage, or a copy of an operand, to the loop that needs it.

Program -> program, meaning kept, ScheduleError where that is impossible; `Schedule` records them.
"""

from collections.abc import Sequence
from dataclasses import replace

from retune.core.errors import ScheduleError
from retune.ir.expr import Buffer, Expr, Load, Scope, Var, loads, substitute
from retune.ir.reduction import path_to
from retune.ir.simplify import simplify
from retune.ir.stmt import (
    Block,
    For,
    Program,
    Stmt,
    blocks,
    loops,
    nested,
    over,
    paths,
    replaced,
    rewrite,
    sequence,
)
from retune.schedule.loops import loop_named, replace_loop, root_of
from retune.schedule.regions import (
    BufferRegion,
    guarded,
    inner_extents,
    read_region,
    read_under_condition,
    read_where,
    redirect_reads,
    write_region,
)
from retune.schedule.stages import (
    readers,
    replace_root,
    replace_scratch,
    require_kernel,
    root_nest,
)


def _check_scope(who: str, scope: Scope, allowed: Sequence[Scope]) -> None:
    if scope not in allowed:
        raise ScheduleError(f"{who}: scope is one of {', '.join(allowed)}, got {scope!r}")


def cache_write(program: Program, name: str) -> Program:
    """See Schedule.cache_write."""
    root, block, path = root_nest(program, name)
    require_kernel(f"cache_write({name})", root)
    cache = Buffer(f"{block.buffer.name}.acc", block.buffer.shape, block.buffer.dtype.compute)
    if any(b.name == f"{name}.out" or b.buffer.name == cache.name for b in blocks(program.body)):
        raise ScheduleError(f"cache_write({name}): it has a cache already")
    spatial = [loop for loop in path if not loop.reduce]
    names = {loop.var: Var(f"{name}.out{loop.var.name.removeprefix(name)}") for loop in spatial}
    indices = tuple(substitute(i, dict(names)) for i in block.indices)
    copied = Block(f"{name}.out", block.buffer, indices, Load(cache, indices))
    copy = over([(names[loop.var], loop.extent) for loop in spatial], copied)
    cached = replaced(root, block, replace(block, buffer=cache))
    program = replace_root(program, root, cached, copy)
    return replace(program, scratch=(*program.scratch, cache))


def cache_read(
    program: Program, name: str, loop_name: str, scope: Scope, order: Sequence[int] = ()
) -> Program:
    """See Schedule.cache_read."""
    who = f"cache_read({name}, {loop_name})"
    _check_scope(who, scope, ("register", "private", "local"))
    everything = (*program.inputs, *program.scratch, *program.outputs)
    buffer = next((b for b in everything if b.name == name), None)
    if buffer is None:
        known = ", ".join(b.name for b in everything)
        raise ScheduleError(f"{who}: no such buffer; buffers are {known}")
    loop = loop_named(program, loop_name)
    require_kernel(who, loop)
    copy = f"{name}.{scope}"
    if any(b.name == copy for b in (*everything, *blocks(program.body))):
        raise ScheduleError(f"{who}: there is a {copy} already")
    if scope == "local" and buffer.scope in ("register", "private"):
        raise ScheduleError(f"{who}: other work-items do not see what is in {buffer.scope} memory")
    if any(b.buffer == buffer for b in blocks(loop)):
        raise ScheduleError(f"{who}: it is written inside that loop")
    region = read_region(who, buffer, loop.body, inner_extents(program, loop, scope))
    rank = len(region.extents)
    placed = tuple(order) or tuple(range(rank))
    if sorted(placed) != list(range(rank)):
        raise ScheduleError(f"{who}: order names each of {rank} dimensions once, got {placed}")
    tile = Buffer(copy, tuple(region.extents[d] for d in placed), buffer.dtype, scope)
    axes = tuple(Var(f"{copy}.{d}") for d in range(rank))
    source = tuple(simplify(f + a) for f, a in zip(region.first, axes, strict=True))
    block = Block(copy, tile, tuple(axes[d] for d in placed), Load(buffer, source))
    if read_under_condition(loop.body, buffer):
        block = replace(block, guard=guarded(block, region.guard(axes, buffer)))
    nest = over([(axes[dim], region.extents[dim]) for dim in placed], block)
    body = redirect_reads(loop.body, buffer, tile, region, placed)
    program = replace_loop(program, loop_name, lambda n: n.around(sequence(nest, body)))
    return replace(program, scratch=(*program.scratch, tile))


def compute_at(program: Program, name: str, loop_name: str, scope: Scope) -> Program:
    """See Schedule.compute_at."""
    root, block, path = root_nest(program, name)
    loop = loop_named(program, loop_name)
    who = f"compute_at({name}, {loop_name})"
    _check_scope(who, scope, ("register", "private", "local"))
    require_kernel(who, loop)
    if block.buffer in program.outputs:
        raise ScheduleError(f"{who}: it is an output; use cache_write first")
    outside = [
        b.name
        for b in readers(program, block.buffer)
        if path_to(loop, b) is None and b.name != block.name
    ]
    if outside:
        raise ScheduleError(f"{who}: also read outside that loop, by {outside[0]}")
    region = read_region(who, block.buffer, loop.body, inner_extents(program, loop, scope))
    tile = Buffer(block.buffer.name, region.extents, block.buffer.dtype, scope)
    conditional = read_under_condition(loop.body, block.buffer)
    nest = _tile_nest(block, path, region, tile, guard=conditional)
    if needed := read_where(loop.body, block.buffer):
        nest = rewrite(nest, lambda b: _where(b, needed))
    body = redirect_reads(loop.body, block.buffer, tile, region)
    program = replace_scratch(replace_root(program, root), block.buffer, tile)
    return replace_loop(program, loop_name, lambda n: n.around(sequence(nest, body)))


def _where(node: Stmt, terms: list[Expr]) -> Stmt | None:
    return replace(node, guard=guarded(node, terms)) if isinstance(node, Block) else None


def _tile_nest(
    block: Block, path: Sequence[For], region: BufferRegion, tile: Buffer | None, *, guard: bool
) -> Stmt:
    """The block's nest over one region: same loop names, region extents.

    Its stores go to the tile, or to where they went before, without one.
    """
    axes = [i for i in block.indices if isinstance(i, Var)]
    moved = {v: simplify(f + v) for v, f in zip(axes, region.first, strict=True)}
    terms = region.guard(axes, block.buffer) if guard else []
    body = replace(
        block,
        buffer=tile or block.buffer,
        indices=tuple(moved[v] for v in axes) if tile is None else block.indices,
        value=substitute(block.value, dict(moved)),
        guard=guarded(block, terms),
    )
    size = dict(zip(axes, region.extents, strict=True))
    return nested([replace(p, extent=size.get(p.var, p.extent)) for p in path], body)


def compute_locations(program: Program, name: str, scope: Scope) -> list[str]:
    """The loops at which `compute_at` is legal for a block, in program order."""
    found: list[str] = []
    for loop in loops(program.body):
        try:
            compute_at(program, name, loop.var.name, scope)
        except ScheduleError:
            continue
        found.append(loop.var.name)
    return found


def reverse_compute_at(program: Program, name: str, loop_name: str, scope: Scope) -> Program:
    """See Schedule.reverse_compute_at."""
    root, block, path = root_nest(program, name)
    loop = loop_named(program, loop_name)
    who = f"reverse_compute_at({name}, {loop_name})"
    _check_scope(who, scope, ("register", "private"))
    source = _produced(program, who, block, loop)
    _check_complete(program, who, source, loop)
    _check_operands(program, who, block, loop, source)
    load = next(n for n in loads(block.value) if n.buffer == source)
    written = write_region(who, source, loop.body, inner_extents(program, loop, scope))
    tile = Buffer(source.name, written.extents, source.dtype, scope)
    order = [load.indices.index(axis) for axis in block.indices]
    own = BufferRegion(
        tuple(written.first[d] for d in order), tuple(written.extents[d] for d in order)
    )
    conditional = any(b.guard is not None for b in blocks(loop.body) if b.buffer == source)
    nest = _tile_nest(block, path, own, None, guard=conditional)
    nest = redirect_reads(nest, source, tile, written)

    def shrink(node: Stmt) -> Stmt | None:
        if not isinstance(node, Block) or node.buffer != source:
            return None
        pairs = zip(node.indices, written.first, strict=True)
        return replace(node, buffer=tile, indices=tuple(simplify(i - f) for i, f in pairs))

    body = rewrite(loop.body, shrink)
    program = replace_scratch(replace_root(program, root), source, tile)
    return replace_loop(program, loop_name, lambda n: n.around(sequence(body, nest)))


def _produced(program: Program, who: str, block: Block, loop: For) -> Buffer:
    """The one buffer of the loop that the block alone reads, element by element."""
    made = {b.buffer for b in blocks(loop.body)}
    found = {load.buffer for load in loads(block.value)} & made
    if block.reducer is not None or block.guard is not None or len(found) != 1:
        raise ScheduleError(f"{who}: expected an element-wise reader of one result of that loop")
    source = found.pop()
    if source in program.outputs or [b.name for b in readers(program, source)] != [block.name]:
        raise ScheduleError(f"{who}: {source} is an output, or has other readers")
    extent = dict(zip(block.indices, block.buffer.shape, strict=True))
    read = {load.indices for load in loads(block.value) if load.buffer == source}
    indices = read.pop()
    same = [extent.get(i) for i in indices] == list(source.shape)
    if read or set(indices) != set(extent) or len(indices) != len(extent) or not same:
        raise ScheduleError(f"{who}: {source} is not read element by element, in one order")
    return source


def _check_complete(program: Program, who: str, source: Buffer, loop: For) -> None:
    """Check that an iteration of `loop` completes its part of `source`, which is one work-item's
    own."""
    for writer, path in paths(program.body):
        if writer.buffer != source:
            continue
        position = next((i for i, p in enumerate(path) if p is loop), None)
        if position is None:
            raise ScheduleError(f"{who}: {writer.name} writes {source} outside that loop")
        if any(p.reduce for p in path[: position + 1]):
            raise ScheduleError(f"{who}: {source} is not complete there; move reduce loops inside")
    for inner in loops(loop.body):
        if inner.kind.startswith(("group", "local")):
            raise ScheduleError(f"{who}: {inner.var} runs as {inner.kind} inside that loop")


def _check_operands(program: Program, who: str, block: Block, loop: For, source: Buffer) -> None:
    """Check that the block's other operands exist before the nest of `loop` starts."""
    roots = program.body.stmts
    position = roots.index(root_of(program, loop))
    late = {b.buffer for root in roots[position:] for b in blocks(root)}
    for load in loads(block.value):
        if load.buffer != source and load.buffer in late:
            raise ScheduleError(f"{who}: it reads {load.buffer}, which is made too late for it")

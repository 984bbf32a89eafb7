"""Primitives on blocks: where a stage is computed, and where its result lives.

Program -> program, meaning kept, ScheduleError where that is impossible; `Schedule` records them.
"""

from dataclasses import replace

from retune.core.errors import ScheduleError
from retune.ir.expr import (
    Buffer,
    Const,
    Expr,
    Load,
    Scope,
    Select,
    Var,
    all_of,
    const,
    loads,
    substitute,
    transform,
)
from retune.ir.reduction import path_to, reads
from retune.ir.simplify import Range, affine, simplify
from retune.ir.stmt import (
    Block,
    For,
    Program,
    Seq,
    Stmt,
    blocks,
    map_exprs,
    replace_buffer,
    rewrite,
    walk,
)
from retune.schedule.loops import loop_named, replace_loop, with_body


def block_named(program: Program, name: str) -> Block:
    """The block of that name. Raises: ScheduleError naming the blocks there are."""
    for block in blocks(program.body):
        if block.name == name:
            return block
    known = [b.name for b in blocks(program.body)]
    raise ScheduleError(f"no block {name!r} in {program.name}; blocks are {', '.join(known)}")


def loops_of(program: Program, name: str) -> list[For]:
    """The loops around a block, outermost first."""
    path = path_to(program.body, block_named(program, name))
    return path or []


def readers(program: Program, buffer: Buffer) -> list[Block]:
    """The blocks that read a buffer."""
    return [b for b in blocks(program.body) if reads(b, buffer)]


def root_nest(program: Program, name: str) -> tuple[Stmt, Block, list[For]]:
    """The root statement that holds just this block, as `from_dag` made it, and its loops.

    Its spatial axes stand as they were made; reduce loops may have been split or reordered.

    Raises: ScheduleError where there is none.
    """
    block = block_named(program, name)
    writers = [b.name for b in blocks(program.body) if b.buffer == block.buffer]
    if len(writers) > 1:
        raise ScheduleError(
            f"{name}: {block.buffer} is written in parts, by {', '.join(writers)}; "
            "move a stage before its reduction is decomposed"
        )
    for root in program.body.stmts:
        path = path_to(root, block)
        if path is None:
            continue
        plain = all(isinstance(i, Var) for i in block.indices)
        if blocks(root) == [block] and plain and all(p.kind == "serial" for p in path):
            return root, block, path
    raise ScheduleError(f"{name}: expected an unscheduled root stage; move it before its loops")


def _without(program: Program, root: Stmt) -> Program:
    rest = tuple(s for s in program.body.stmts if s is not root)
    return replace(program, body=Seq(rest))


def compute_inline(program: Program, name: str) -> Program:
    """See Schedule.compute_inline."""
    root, block, _ = root_nest(program, name)
    if block.reducer is not None or block.guard is not None:
        raise ScheduleError(f"compute_inline({name}): only a plain element-wise stage can be")
    if block.buffer in program.outputs:
        raise ScheduleError(f"compute_inline({name}): it is an output of the program")
    packed = [load.buffer.name for load in loads(block.value) if load.buffer.name in program.packed]
    if packed:
        raise ScheduleError(
            f"compute_inline({name}): it reads {packed[0]}, which is packed already"
        )
    axes = [i for i in block.indices if isinstance(i, Var)]

    def expand(expr: Expr) -> Expr | None:
        if isinstance(expr, Load) and expr.buffer == block.buffer:
            return substitute(block.value, dict(zip(axes, expr.indices, strict=True)))
        return None

    body = map_exprs(_without(program, root).body, lambda e: transform(e, expand))
    scratch = tuple(b for b in program.scratch if b != block.buffer)
    return replace(with_body(program, body), scratch=scratch)


def cache_write(program: Program, name: str) -> Program:
    """See Schedule.cache_write."""
    root, block, path = root_nest(program, name)
    cache = Buffer(f"{block.buffer.name}.acc", block.buffer.shape, block.buffer.dtype)
    if any(b.name == f"{name}.out" or b.buffer.name == cache.name for b in blocks(program.body)):
        raise ScheduleError(f"cache_write({name}): it has a cache already")
    spatial = [loop for loop in path if not loop.reduce]
    names = {loop.var: Var(f"{name}.out{loop.var.name.removeprefix(name)}") for loop in spatial}
    indices = tuple(substitute(i, dict(names)) for i in block.indices)
    body: Stmt = Block(f"{name}.out", block.buffer, indices, Load(cache, indices))
    for loop in reversed(spatial):
        body = For(names[loop.var], loop.extent, body)
    cached = rewrite(root, lambda n: replace(block, buffer=cache) if n == block else None)
    stmts: list[Stmt] = []
    for stmt in program.body.stmts:
        stmts.extend((cached, body) if stmt is root else (stmt,))
    return replace(program, body=Seq(tuple(stmts)), scratch=(*program.scratch, cache))


def compute_at(program: Program, name: str, loop_name: str, scope: Scope) -> Program:
    """See Schedule.compute_at."""
    root, block, path = root_nest(program, name)
    loop = loop_named(program, loop_name)
    if scope not in ("register", "private"):
        raise ScheduleError(f"compute_at({name}): scope is register or private, got {scope!r}")
    if block.buffer in program.outputs:
        raise ScheduleError(f"compute_at({name}): it is an output; use cache_write first")
    outside = [
        b.name
        for b in readers(program, block.buffer)
        if path_to(loop, b) is None and b.name != block.name
    ]
    if outside:
        raise ScheduleError(
            f"compute_at({name}, {loop_name}): also read outside that loop, by {outside[0]}"
        )
    base, extents = _region(block, loop)
    tile = Buffer(block.buffer.name, extents, block.buffer.dtype, scope)
    nest = _tile_nest(block, path, base, extents, tile, _guards(loop, block))
    body = _shift_reads(loop.body, block.buffer, tile, base)
    program = _without(program, root)
    program = replace_loop(program, loop_name, lambda node: replace(node, body=Seq((nest, body))))
    scratch = tuple(tile if b == block.buffer else b for b in program.scratch)
    return replace(with_body(program, flatten(program.body)), scratch=scratch)


def flatten(stmt: Stmt) -> Stmt:
    """The statement with sequences inside sequences joined."""
    return rewrite(stmt, lambda _: None)


def _region(block: Block, loop: For) -> tuple[list[Expr], tuple[Expr, ...]]:
    """First index and extent, in each dimension, of what is read of the buffer inside `loop`."""
    inner = [n for n in walk(loop.body) if isinstance(n, For)]
    extents = {n.var: n.extent for n in inner}
    reads = [
        load for b in blocks(loop.body) for load in loads(b.value) if load.buffer == block.buffer
    ]
    if not reads:
        raise ScheduleError(f"compute_at({block.name}, {loop.var}): nothing there reads it")
    base: list[Expr] = []
    size: list[Expr] = []
    for dim in range(len(block.indices)):
        regions = {_interval(load.indices[dim], extents, block.name) for load in reads}
        whole = _union(sorted(regions, key=str))
        if whole is None:
            raise ScheduleError(
                f"compute_at({block.name}, {loop.var}): dimension {dim} is read in several ways"
            )
        base.append(whole[0])
        size.append(whole[1])
    return base, tuple(size)


def _union(regions: list[tuple[Expr, Expr]]) -> tuple[Expr, Expr] | None:
    """One interval over intervals (first, extent) that lie a known distance apart."""
    first = regions[0][0]
    if len(regions) == 1:
        return regions[0]
    starts = [simplify(low - first) for low, _ in regions]
    ends = [simplify(low - first + extent) for low, extent in regions]
    low = [int(e.value) for e in starts if isinstance(e, Const)]
    high = [int(e.value) for e in ends if isinstance(e, Const)]
    if len(low) != len(regions) or len(high) != len(regions):
        return None
    return simplify(first + min(low)), const(max(high) - min(low))


def _interval(index: Expr, extents: dict[Var, Expr], name: str) -> tuple[Expr, Expr]:
    """Smallest value and span of an index over inner loops with non-negative steps."""
    ranges = {v: Range(0, int(e.value) - 1) for v, e in extents.items() if isinstance(e, Const)}
    split = affine(simplify(index, ranges), extents)
    if split is None:
        raise ScheduleError(f"compute_at({name}): index {index} is not affine in the inner loops")
    coefficients, rest = split
    span: Expr = const(1)
    for var, coefficient in coefficients.items():
        if isinstance(coefficient, Const) and coefficient.value < 0:
            raise ScheduleError(f"compute_at({name}): index {index} runs backwards in {var}")
        span = span + coefficient * (extents[var] - 1)
    return rest, simplify(span)


def _guards(loop: For, block: Block) -> bool:
    """True when some read of the block there is conditional: its region may pass the ends."""
    return any(
        b.guard is not None or _masked(b.value, block.buffer)
        for b in blocks(loop.body)
        if reads(b, block.buffer)
    )


def _masked(expr: Expr, buffer: Buffer) -> bool:
    """True when a selection decides whether the buffer is read."""
    if isinstance(expr, Select):
        return any(load.buffer == buffer for load in loads(expr))
    return any(_masked(child, buffer) for child in expr.children)


def _tile_nest(
    block: Block,
    path: list[For],
    base: list[Expr],
    extents: tuple[Expr, ...],
    tile: Buffer,
    guarded: bool,
) -> Stmt:
    """The block's nest over one tile: same loop names, region extents, tile-relative stores."""
    axes = [i for i in block.indices if isinstance(i, Var)]
    moved = {v: simplify(b + v) for v, b in zip(axes, base, strict=True)}
    guard = block.guard
    if guarded:
        for var, full, extent in zip(axes, block.buffer.shape, extents, strict=True):
            if moved[var] == var and extent == full:
                continue  # the whole dimension
            known = [] if guard is None else [guard]
            guard = all_of(*known, moved[var] >= 0, moved[var] < full)
    value = substitute(block.value, dict(moved))
    body: Stmt = replace(block, buffer=tile, indices=tuple(axes), value=value, guard=guard)
    size = dict(zip(axes, extents, strict=True))
    for around in reversed(path):
        body = replace(around, body=body, extent=size.get(around.var, around.extent))
    return body


def _shift_reads(body: Stmt, old: Buffer, tile: Buffer, base: list[Expr]) -> Stmt:
    def relative(expr: Expr) -> Expr | None:
        if isinstance(expr, Load) and expr.buffer == old:
            indices = (simplify(i - b) for i, b in zip(expr.indices, base, strict=True))
            return Load(tile, tuple(indices))
        return None

    return map_exprs(body, lambda e: transform(e, relative))


def precompute(program: Program, name: str) -> Program:
    """See Schedule.precompute."""
    _, block, _ = root_nest(program, name)
    if block.buffer in program.outputs:
        raise ScheduleError(f"precompute({name}): it is an output of the program")
    for load in loads(block.value):
        if load.buffer.scope != "constant":
            raise ScheduleError(
                f"precompute({name}): it reads {load.buffer}, which is not known at compile time"
            )
        if load.buffer.name in program.packed:
            raise ScheduleError(f"precompute({name}): it reads {load.buffer}, which is packed")
    known = replace(block.buffer, scope="constant")
    scratch = tuple(known if b == block.buffer else b for b in program.scratch)
    body = replace_buffer(program.body, block.buffer, known)
    return replace(with_body(program, body), scratch=scratch)


def pack(program: Program, name: str) -> Program:
    """See Schedule.pack."""
    buffer = next((b for b in (*program.inputs, *program.scratch) if b.name == name), None)
    if buffer is None or buffer.scope != "constant":
        raise ScheduleError(f"pack({name}): expected a constant input or a precomputed stage")
    if name in program.packed:
        raise ScheduleError(f"pack({name}): it is packed already")
    uses = [load for b in blocks(program.body) for load in loads(b.value) if load.buffer == buffer]
    if len(uses) != 1:
        raise ScheduleError(f"pack({name}): expected one read of it, found {len(uses)}")
    if any(loads(index) for index in uses[0].indices):
        raise ScheduleError(f"pack({name}): its index is read from memory")
    return replace(program, packed=(*program.packed, name))

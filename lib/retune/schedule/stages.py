"""Blocks and root stages, and the primitives on them that need no region: inlining, packing.

Program -> program, meaning kept, ScheduleError where that is impossible; `Schedule` records them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from retune.core.dtypes import FLOAT32
from retune.core.errors import ScheduleError
from retune.ir.expr import Buffer, Expr, Load, Redirection, Var, loads, substitute
from retune.ir.reduction import path_to, reads
from retune.ir.stmt import (
    Block,
    For,
    Program,
    Seq,
    Stmt,
    blocks,
    map_exprs,
    over,
    replace_buffer,
    rewrite,
    with_body,
)


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
        if blocks(root) == (block,) and plain and all(p.kind == "serial" for p in path):
            return root, block, path
    raise ScheduleError(f"{name}: expected an unscheduled root stage; move it before its loops")


def axes_of(made: Buffer) -> list[Var]:
    """A variable for each dimension of a buffer, for the loops of the stage that makes it."""
    return [Var(f"{made.name}.{d}") for d in range(len(made.shape))]


def stage_nest(made: Buffer, axes: Sequence[Var], value: Expr) -> Stmt:
    """The nest of a stage that makes this value of each element, in loops over these axes."""
    block = Block(made.name, made, tuple(axes), value)
    return over(zip(axes, made.shape, strict=True), block)


def restated(
    program: Program,
    name: str,
    value: Expr,
    steps: Mapping[Var, Sequence[tuple[Var, Expr]]],
    made: Mapping[Buffer, Stmt],
) -> tuple[Program, list[str]]:
    """The program whose root stage of that name has another value, and other loops instead of
    those over some steps; before it stand the nests that make buffers. Also their names.
    """
    root, block, _ = root_nest(program, name)

    def rule(node: Stmt) -> Stmt | None:
        if node is block:
            return replace(block, value=value)
        if isinstance(node, For) and node.var in steps:
            return over(steps[node.var], node.body, reduce=True)
        return None

    program = replace_root(program, root, *made.values(), rewrite(root, rule))
    return replace(program, scratch=(*program.scratch, *made)), [b.name for b in made]


def replace_root(program: Program, root: Stmt, *nests: Stmt) -> Program:
    """The program with these nests, or none, instead of one of its root statements."""
    roots = ((*nests,) if stmt is root else (stmt,) for stmt in program.body.stmts)
    return replace(program, body=Seq(tuple(nest for some in roots for nest in some)))


def replace_scratch(program: Program, old: Buffer, *new: Buffer) -> Program:
    """The program with another buffer, or none, instead of one of its scratch buffers."""
    buffers = ((*new,) if buffer == old else (buffer,) for buffer in program.scratch)
    return replace(program, scratch=tuple(buffer for some in buffers for buffer in some))


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

    def expand(load: Load) -> Expr | None:
        if load.buffer != block.buffer:
            return None
        return substitute(block.value, dict(zip(axes, load.indices, strict=True)))

    body = map_exprs(replace_root(program, root).body, Redirection(expand))
    return replace_scratch(with_body(program, body), block.buffer)


def require_kernel(who: str, stmt: Stmt) -> None:
    """Raises: ScheduleError for a nest that is evaluated at compile time, which holds one stage."""
    known = [b.buffer for b in blocks(stmt) if b.buffer.scope == "constant"]
    if known:
        raise ScheduleError(f"{who}: {known[0]} is computed at compile time, by no kernel")


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
    body = replace_buffer(program.body, block.buffer, known)
    return replace_scratch(with_body(program, body), block.buffer, known)


def pack(program: Program, name: str) -> Program:
    """See Schedule.pack."""
    buffer = _constant(program, name, "pack")
    if name in program.packed:
        raise ScheduleError(f"pack({name}): it is packed already")
    read = [load for b in blocks(program.body) for load in dict.fromkeys(loads(b.value))]
    uses = [load for load in read if load.buffer == buffer]
    if len(uses) != 1:
        raise ScheduleError(f"pack({name}): expected one read of it, found {len(uses)}")
    if any(loads(index) for index in uses[0].indices):
        raise ScheduleError(f"pack({name}): its index is read from memory")
    return replace(program, packed=(*program.packed, name))


def read_as_image(program: Program, name: str, texels: int) -> Program:
    """See Schedule.read_as_image."""
    buffer = _constant(program, name, "read_as_image")
    if buffer.dtype != FLOAT32:
        raise ScheduleError(f"read_as_image({name}): expected float32, got {buffer.dtype}")
    if texels < 1 or texels & (texels - 1):
        raise ScheduleError(f"read_as_image({name}): expected a power of two, got {texels}")
    if name in dict(program.images):
        raise ScheduleError(f"read_as_image({name}): it is read as an image already")
    return replace(program, images=(*program.images, (name, texels)))


def _constant(program: Program, name: str, primitive: str) -> Buffer:
    """The constant of that name, whose contents are known at compile time."""
    buffer = next((b for b in (*program.inputs, *program.scratch) if b.name == name), None)
    if buffer is None or buffer.scope != "constant":
        raise ScheduleError(
            f"{primitive}({name}): expected a constant input or a precomputed stage"
        )
    return buffer

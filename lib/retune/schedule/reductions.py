"""Primitives on reductions: where they start, and how partial results make them parallel.

Program -> program, meaning kept, ScheduleError where that is impossible; `Schedule` records them.
"""

from dataclasses import replace

from retune.core.errors import ScheduleError
from retune.ir.expr import Buffer, Load, Var, select, substitute, variables
from retune.ir.reduction import decompose, path_to, read_inside, reduce_loops
from retune.ir.stmt import Block, For, Program, Stmt, blocks, identity, nested
from retune.schedule.loops import loop_named, replace_loop
from retune.schedule.stages import block_named, loops_of, replace_root, require_kernel, root_nest


def decompose_reduction(program: Program, name: str, loop_name: str) -> Program:
    """See Schedule.decompose_reduction."""
    block = block_named(program, name)
    loop = loop_named(program, loop_name)
    path = path_to(loop, block)
    who = f"decompose_reduction({name}, {loop_name})"
    if block.reducer is None or block.decomposed or path is None:
        raise ScheduleError(f"{who}: expected a whole reduction in that loop")
    around = loops_of(program, name)
    before = around[: next(i for i, p in enumerate(around) if p.var.name == loop_name)]
    outer = reduce_loops(before, block)
    if outer:
        raise ScheduleError(f"{who}: reduce loop {outer[0].var} is outside it")
    if read_inside(loop, block):
        raise ScheduleError(f"{who}: the result is read inside that loop")
    for inner in path:
        if inner.shifted and any(inner.var in variables(i) for i in block.indices):
            raise ScheduleError(f"{who}: {inner.var} has a shifted tail, and would add it twice")
    return replace_loop(program, loop_name, lambda node: decompose(node, block))


def rfactor(program: Program, name: str, loop_name: str, axis: int) -> Program:
    """See Schedule.rfactor."""
    root, block, path = root_nest(program, name)
    factored = next((p for p in path if p.var.name == loop_name), None)
    who = f"rfactor({name}, {loop_name})"
    require_kernel(who, root)
    if block.reducer is None or factored is None or not factored.reduce:
        raise ScheduleError(f"{who}: expected a reduction and one of its reduce loops")
    rank = len(block.indices)
    if not -1 <= axis <= rank:
        raise ScheduleError(f"{who}: axis is -1 (last) to {rank}, got {axis}")
    part = f"{name}.part"
    taken = {b.name for b in blocks(program.body)} | {b.name for b in program.scratch}
    if taken & {part, f"{block.buffer.name}.part"}:
        raise ScheduleError(f"{who}: it has partial results already; factor {part}")
    position = rank if axis == -1 else axis
    shape, indices = list(block.buffer.shape), list(block.indices)
    shape.insert(position, factored.extent)
    indices.insert(position, factored.var)
    buffer = Buffer(f"{block.buffer.name}.part", tuple(shape), block.buffer.dtype.compute)
    load = Load(buffer, tuple(indices))
    partial = _partial(part, block, path, factored, load)
    whole = _whole(block, path, factored, load)
    program = replace_root(program, root, partial, whole)
    return replace(program, scratch=(*program.scratch, buffer))


def _partial(name: str, block: Block, path: list[For], factored: For, result: Load) -> Stmt:
    """The old nest under new loop names, with the factored loop as one more spatial one.

    What a guard kept out adds the neutral value instead: every partial result has a start.
    """
    value = block.value
    if block.guard is not None and block.reducer is not None:
        value = select(block.guard, value, identity(block.reducer, block.buffer.dtype))
    names = {p.var: Var(f"{name}{p.var.name.removeprefix(block.name)}") for p in path}
    left = any(p.reduce and p is not factored for p in path)
    body = Block(
        name,
        result.buffer,
        tuple(substitute(i, dict(names)) for i in result.indices),
        substitute(value, dict(names)),
        reducer=block.reducer if left else None,
    )
    around = [replace(p, var=names[p.var], reduce=p.reduce and p is not factored) for p in path]
    return nested(around, body)


def _whole(block: Block, path: list[For], factored: For, partial: Load) -> Stmt:
    """The nest that combines the partial results; its loops keep their names."""
    around = [*(p for p in path if not p.reduce), replace(factored, unroll=None)]
    return nested(around, replace(block, value=partial, guard=None))

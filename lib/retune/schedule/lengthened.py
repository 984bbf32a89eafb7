"""The form of a sum of products that has more steps, of zeros: instructions take them whole.

Each operand that the last steps choose elements of is copied with zeros behind them. Traces have it
under the name `lengthened`, here for 5 steps that become 8:

    y[i, f] += x[i, k] * w[k, f]   for k in 5
    ->
    y.x[i, k] = select(k < 5, x[i, k], 0)
    y.w[k, f] = select(k < 5, w[k, f], 0)
    y[i, f]  += y.x[i, k] * y.w[k, f]   for k in 8
"""

from collections.abc import Sequence
from dataclasses import replace

from retune.core.errors import ScheduleError
from retune.ir.expr import (
    Binary,
    Buffer,
    Cast,
    Const,
    Load,
    Var,
    const,
    loads,
    redirect,
    select,
)
from retune.ir.stmt import Block, For, Program, Stmt
from retune.schedule.stages import axes_of, restated, root_nest, stage_nest


def lengthened(program: Program, name: str, sizes: Sequence[int]) -> tuple[Program, list[str]]:
    """The stage with `sizes[0]` last steps, and the stages that copy its operands.

    Raises: ScheduleError unless it sums products of elements, in fewer steps, each of which chooses
    along one dimension of both.
    """
    _, block, path = root_nest(program, name)
    steps = [loop for loop in path if loop.reduce]
    last = steps[-1] if steps else None
    count = int(last.extent.value) if last and isinstance(last.extent, Const) else 0
    if last is None or len(sizes) != 1 or not 0 < count < sizes[0]:
        found = f"{last.extent} of them" if last else "none"
        raise ScheduleError(f"lengthened({name}): expected fewer last steps, got {found}")
    found = {*loads(block.value)}
    if not _is_product(block) or any(load.indices.count(last.var) != 1 for load in found):
        raise ScheduleError(
            f"lengthened({name}): expected a sum of products of elements that {last.var} chooses, "
            f"got {block.value}"
        )
    copies = {load: _copy(load, block, last.var, sizes[0]) for load in loads(block.value)}
    nests = {made.buffer: _nest(load, made.buffer, last) for load, made in copies.items()}
    steps = {last.var: [(last.var, const(sizes[0]))]}
    return restated(program, name, redirect(block.value, copies.get), steps, nests)


def _is_product(block: Block) -> bool:
    """Whether steps of zeros add nothing."""
    value = block.value
    if block.reducer != "sum" or not isinstance(value, Binary) or value.op != "mul":
        return False
    factors = [f.value if isinstance(f, Cast) else f for f in (value.a, value.b)]
    return all(isinstance(factor, Load) for factor in factors)


def _copy(load: Load, block: Block, step: Var, count: int) -> Load:
    """The stage's read of an operand's copy."""
    pairs = zip(load.indices, load.buffer.shape, strict=True)
    shape = tuple(const(count) if index == step else extent for index, extent in pairs)
    made = Buffer(f"{block.name}.{load.buffer.name}.long", shape, load.buffer.dtype)
    return replace(load, buffer=made)


def _nest(load: Load, made: Buffer, last: For) -> Stmt:
    """The nest that copies an operand."""
    axes = axes_of(made)
    step = axes[load.indices.index(last.var)]
    read = Load(load.buffer, tuple(axes))
    return stage_nest(made, axes, select(step < last.extent, read, const(0, read.dtype)))

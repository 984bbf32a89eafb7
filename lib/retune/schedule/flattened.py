"""The form of a stage whose results along neighbouring axes are numbered by a single one.

They are the rows of a matrix then, whatever the axes choose of the data. Traces have it under the
name `flattened`, here for windows over two images of 7 pixels, which become 14 rows:

    y[n, x, f] += data[n, x + r, k] * w[r, k, f]
    ->
    y.flat[m, f] += data[m//7, m%7 + r, k] * w[r, k, f]    for m in 14
    y[n, x, f]    = y.flat[n*7 + x, f]
"""

from collections.abc import Sequence
from dataclasses import replace

from retune.core.errors import ScheduleError
from retune.ir.expr import Buffer, Expr, Load, Var, const, substitute
from retune.ir.simplify import simplify
from retune.ir.stmt import For, Program, Stmt, over, rewrite
from retune.schedule.stages import axes_of, replace_root, root_nest


def flattened(program: Program, name: str, sizes: Sequence[int]) -> tuple[Program, list[str]]:
    """The stage as a copy of one that has the axes from `sizes[0]` to before `sizes[1]` as one.

    Raises: ScheduleError unless there are two of them, or more.
    """
    root, block, _ = root_nest(program, name)
    first, end = sizes
    joined = [index for index in block.indices[first:end] if isinstance(index, Var)]
    extents = block.buffer.shape[first:end]
    if len(joined) < 2 or end > len(block.indices):
        axes = f"two of {len(block.indices)} axes or more"
        raise ScheduleError(f"flattened({name}): expected {axes}, got {first} to {end}")
    number = Var(f"{name}.rows")
    chosen, left, count = dict[Var, Expr](), number, const(1)
    for index, extent in zip(reversed(joined), reversed(extents), strict=True):
        chosen[index] = left if index == joined[0] else left % extent
        left, count = left // extent, count * extent
    shape = (*block.buffer.shape[:first], count, *block.buffer.shape[end:])
    made = Buffer(f"{name}.flat", shape, block.buffer.dtype)

    def rule(node: Stmt) -> Stmt | None:
        if node is block:
            indices = (*block.indices[:first], number, *block.indices[end:])
            value = substitute(block.value, chosen)
            return replace(block, name=made.name, buffer=made, indices=indices, value=value)
        if isinstance(node, For) and node.var in chosen:
            return For(number, count, node.body) if node.var == joined[0] else node.body
        return None

    axes = axes_of(block.buffer)
    position = const(0)
    for axis, extent in zip(axes[first:end], extents, strict=True):
        position = position * extent + axis
    read = Load(made, (*axes[:first], simplify(position), *axes[end:]))
    copy = replace(block, indices=tuple(axes), value=read, reducer=None)
    copies = over(zip(axes, block.buffer.shape, strict=True), copy)
    program = replace_root(program, root, rewrite(root, rule), copies)
    return replace(program, scratch=(*program.scratch, made)), [made.name]

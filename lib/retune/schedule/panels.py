"""The form of a matrix product whose operands are laid out in panels that an instruction reads.

Each operand is copied by a stage of its own, its steps filled up with zeros to whole steps of an
instruction: rows of the first one, and of the second one packs of steps, one for each column. Put
into the memory of a group these are what its warps read, however the operands themselves lie:

    y[i, j] += a[i, k] * b[j, k]  for k in 197
    ->
    y.rows[i, k]              = select(k < 197, a[i, k], 0)                     for k in 224
    y.columns[k.0, j*2 + k.1] = select(k.0*2 + k.1 < 197, b[j, k.0*2 + k.1], 0)
    y[i, j]                  += y.rows[i, k.0*2 + k.1] * y.columns[k.0, j*2 + k.1]
"""

from collections.abc import Sequence
from dataclasses import dataclass

from retune.core.errors import ScheduleError
from retune.ir.expr import (
    Binary,
    Buffer,
    Const,
    Expr,
    Load,
    Var,
    const,
    loads,
    redirect,
    select,
    substitute,
    variables,
)
from retune.ir.stmt import Block, For, Program, Stmt
from retune.schedule.stages import axes_of, restated, root_nest, stage_nest


def panels(program: Program, name: str, sizes: Sequence[int]) -> tuple[Program, list[str]]:
    """The stage over panels in packs of `sizes[0]` and steps of `sizes[1]`, and the two stages that
    make them: rows, then columns.

    Raises: ScheduleError unless it is a product of two operands, of which one has its columns.
    """
    _, block, path = root_nest(program, name)
    pack, step = sizes
    last = next((loop for loop in reversed(path) if loop.reduce), None)
    if last is None or not isinstance(last.extent, Const) or not isinstance(last.body, Block):
        raise ScheduleError(f"panels({name}): expected a number of steps innermost")
    count = -(-int(last.extent.value) // step) * step // pack
    far, near = (Var(f"{last.var.name}.{i}") for i in range(2))
    steps = [(far, const(count)), *([(near, const(pack))] if pack > 1 else [])]
    others = [loop for loop in path if loop is not last]
    made = [
        _Panel(name, load, others, last, block.indices[-1], count, pack)
        for load in _operands(block, last.var)
    ]
    reads = {panel.load: panel.read(far, near) for panel in made}
    value = redirect(block.value, reads.get)
    return restated(program, name, value, {last.var: steps}, {p.made: p.nest() for p in made})


def _operands(block: Block, step: Var) -> tuple[Load, Load]:
    """The operands read by rows and by columns of results. Raises: ScheduleError if that is
    unclear."""
    found = [*dict.fromkeys(loads(block.value))]
    column = block.indices[-1]
    product = isinstance(block.value, Binary) and block.value.op == "mul"
    moved = [{v for i in load.indices for v in variables(i)} for load in found]
    if not product or len(found) != 2:
        raise ScheduleError(f"panels({block.name}): expected a product, got {block.value}")
    if not all(step in own for own in moved) or sum(column in own for own in moved) != 1:
        raise ScheduleError(f"panels({block.name}): expected rows and columns, got {block.value}")
    rows, columns = found if column in moved[1] else reversed(found)
    return rows, columns


@dataclass(frozen=True, slots=True)
class _Panel:
    """An operand, and how it is laid out: by the taps of a window, and the results that it is read
    for, then by steps."""

    name: str
    """Of the stage that reads it."""
    load: Load
    loops: Sequence[For]
    """Those around the steps."""
    step: For
    column: Expr
    """The results' last index."""
    count: int
    """Packs of steps."""
    pack: int

    @property
    def own(self) -> list[For]:
        """The loops that choose what is read: taps come first, and columns last."""
        moved = {v for i in self.load.indices for v in variables(i)}
        found = [loop for loop in self.loops if loop.var in moved]
        return sorted(found, key=lambda loop: (not loop.reduce, loop.var == self.column))

    @property
    def by_columns(self) -> bool:
        """Whether columns lie side by side; else steps do."""
        return any(loop.var == self.column for loop in self.own)

    @property
    def made(self) -> Buffer:
        """The panel."""
        extents = [loop.extent for loop in self.own]
        if self.by_columns:
            *others, columns = extents
            shape = (*others, const(self.count), columns * self.pack)
        else:
            shape = (*extents, const(self.count * self.pack))
        name = f"{self.name}.{'columns' if self.by_columns else 'rows'}"
        return Buffer(name, shape, self.load.buffer.dtype)

    def nest(self) -> Stmt:
        """The nest that fills the panel."""
        made = self.made
        axes = axes_of(made)
        along: Expr = axes[-1]
        indices: list[Expr] = [*axes[:-1]]
        if self.by_columns:
            *others, far, last = axes
            along = far * self.pack + last % self.pack if self.pack > 1 else far
            indices = [*others, last // self.pack if self.pack > 1 else last]
        chosen = {loop.var: index for loop, index in zip(self.own, indices, strict=True)}
        read = substitute(self.load, {**chosen, self.step.var: along})
        if self.step.extent != const(self.count * self.pack):  # zeros past the end of the steps
            read = select(along < self.step.extent, read, const(0.0, read.dtype))
        return stage_nest(made, axes, read)

    def read(self, far: Var, near: Var) -> Load:
        """The reduction's read of the panel."""
        own: list[Expr] = [loop.var for loop in self.own]
        if not self.by_columns:
            return Load(self.made, (*own, far * self.pack + near if self.pack > 1 else far))
        *others, column = own
        return Load(
            self.made, (*others, far, column * self.pack + near if self.pack > 1 else column)
        )

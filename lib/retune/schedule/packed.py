"""The form of a reduction that takes its last steps by packs of several elements.

`packed` sets the elements of a pack apart in the reduction, and lays a constant operand out so that
those of a pack lie side by side, in a stage of its own that can be evaluated at compile time.
Traces have it under the name `words`:

    y[i, f] += x[i, k] * w[k, f]   ->   y.w[k.0, f*4 + k.1] = w[k.0*4 + k.1, f]
                                        y[i, f] += x[i, k.0*4 + k.1] * y.w[k.0, f*4 + k.1]

Columns that are not constant, such as keys and values of attention, may be laid out alike, by a
stage that runs: its packs are an axis of their own, `y.w[k.0, f, k.1]`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from retune.core.errors import ScheduleError
from retune.ir.expr import Buffer, Const, Expr, Load, Var, const, loads, redirect, substitute
from retune.ir.stmt import Block, Program, Stmt
from retune.schedule.stages import axes_of, restated, root_nest, stage_nest


def packed(program: Program, name: str, sizes: Sequence[int]) -> tuple[Program, list[str]]:
    """The stage by packs of `sizes[0]` elements, and the stages that lay its constants out.

    With a second size of 1 also those that lay out its other operands with columns.
    Raises: ScheduleError unless packs divide its last steps, which choose rows of what is laid out.
    """
    _, block, path = root_nest(program, name)
    size, columns = sizes[0] if sizes else 0, tuple(sizes[1:]) == (1,)
    if len(sizes) != 1 + columns or size < 1:
        raise ScheduleError(f"words({name}): expected one positive size, got {[*sizes]}")
    steps = [loop for loop in path if loop.reduce]
    last = steps[-1] if steps else None
    if last is None or not isinstance(last.extent, Const) or int(last.extent.value) % size:
        found = f"{last.extent} steps" if last else "no steps"
        raise ScheduleError(f"words({name}): expected steps that {size} divides, got {found}")
    far, near = (Var(f"{last.var.name}.{i}") for i in range(2))
    count = int(last.extent.value) // size
    made: list[_PackedOperand] = []
    value = block.value
    for load in dict.fromkeys(loads(block.value)):
        constant, column = load.buffer.scope == "constant", block.indices[-1] in load.indices
        if last.var in load.indices and (constant or (columns and column)):
            laid = _PackedOperand.out(block, load, last.var, size)
            made.append(laid)
            value = redirect(value, lambda e, x=laid: x.read(far, near) if e == x.load else None)
    value = substitute(value, {last.var: far * size + near})

    if not isinstance(last.body, Block):
        raise ScheduleError(f"words({name}): expected its last steps innermost")
    parts = {last.var: [(far, const(count)), (near, const(size))]}
    return restated(program, name, value, parts, {x.made: x.nest() for x in made})


@dataclass(frozen=True, slots=True)
class _PackedOperand:
    """A constant operand, and how it is laid out, packs of its rows side by side."""

    load: Load
    row: int
    """The dimension along which packs are."""
    column: int
    """That of neighbouring results."""
    size: int
    made: Buffer
    apart: bool
    """Whether the elements of a pack have an axis of their own."""

    @staticmethod
    def out(block: Block, load: Load, step: Var, size: int) -> "_PackedOperand":
        """Raises: ScheduleError unless the steps and the results' last axis have a dimension."""
        positions = [
            [d for d, i in enumerate(load.indices) if i == v] for v in (step, block.indices[-1])
        ]
        fixed = all(isinstance(extent, Const) for extent in load.buffer.shape)
        if [len(found) for found in positions] != [1, 1] or not fixed:
            raise ScheduleError(
                f"words({block.name}): expected steps and results to choose {load.buffer}'s rows "
                f"and columns, got {load}"
            )
        (row,), (column,) = positions
        extents = [int(e.value) for e in load.buffer.shape if isinstance(e, Const)]
        others = [n for d, n in enumerate(extents) if d not in (row, column)]
        apart = load.buffer.scope != "constant"
        packs = (extents[column], size) if apart else (extents[column] * size,)
        shape = (*others, extents[row] // size, *packs)
        name = f"{block.name}.{load.buffer.name}"
        made = Buffer(name, tuple(const(e) for e in shape), load.buffer.dtype)
        return _PackedOperand(load, row, column, size, made, apart)

    def nest(self) -> Stmt:
        """The nest that writes the packed operand."""
        axes = axes_of(self.made)
        if self.apart:
            *others, pack, own, near = axes
        else:
            *others, pack, last = axes
            own, near = last // self.size, last % self.size
        read = iter(others)
        indices: list[Expr] = []
        for d in range(len(self.load.indices)):
            if d == self.row:
                indices.append(pack * self.size + near)
            else:
                indices.append(own if d == self.column else next(read))
        return stage_nest(self.made, axes, Load(self.load.buffer, tuple(indices)))

    def read(self, far: Var, near: Var) -> Load:
        """The reduction's read of the packed operand."""
        index = enumerate(self.load.indices)
        others = [i for d, i in index if d not in (self.row, self.column)]
        column = self.load.indices[self.column]
        packs = (column, near) if self.apart else (column * self.size + near,)
        return Load(self.made, (*others, far, *packs))

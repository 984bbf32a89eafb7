"""The form of a reduction that takes its last steps by packs of several elements.

`packed` sets the elements of a pack apart in the reduction, and lays a constant operand out so that
those of a pack lie side by side, in a stage of its own that can be evaluated at compile time.
Traces have it under the name `words`:

    y[i, f] += x[i, k] * w[k, f]   ->   y.w[k.0, f*4 + k.1] = w[k.0*4 + k.1, f]
                                        y[i, f] += x[i, k.0*4 + k.1] * y.w[k.0, f*4 + k.1]
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from retune.core.errors import ScheduleError
from retune.ir.expr import Buffer, Const, Expr, Load, Var, const, loads, redirect, substitute
from retune.ir.stmt import Block, For, Program, Stmt, over, rewrite
from retune.schedule.stages import replace_root, root_nest


def packed(program: Program, name: str, sizes: Sequence[int]) -> tuple[Program, list[str]]:
    """The stage by packs of `sizes[0]` elements, and the stages that lay its constants out.

    Raises: ScheduleError unless packs divide its last steps, which choose rows of its constants.
    """
    root, block, path = root_nest(program, name)
    if len(sizes) != 1 or sizes[0] < 1:
        raise ScheduleError(f"words({name}): expected one positive size, got {[*sizes]}")
    (size,) = sizes
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
        if load.buffer.scope == "constant" and last.var in load.indices:
            laid = _PackedOperand.out(block, load, last.var, size)
            made.append(laid)
            value = redirect(value, lambda e, x=laid: x.read(far, near) if e == x.load else None)
    value = substitute(value, {last.var: far * size + near})

    def rule(node: Stmt) -> Stmt | None:
        if isinstance(node, For) and node is last:
            steps = (far, const(count)), (near, const(size))
            return over(steps, replace(block, value=value), reduce=True)
        return None

    if not isinstance(last.body, Block):
        raise ScheduleError(f"words({name}): expected its last steps innermost")
    program = replace_root(program, root, *(x.nest() for x in made), rewrite(root, rule))
    buffers = [x.made for x in made]
    return replace(program, scratch=(*program.scratch, *buffers)), [b.name for b in buffers]


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

    @staticmethod
    def out(block: Block, load: Load, step: Var, size: int) -> "_PackedOperand":
        """Raises: ScheduleError unless the steps and the results' last axis have a dimension."""
        places = [
            [d for d, i in enumerate(load.indices) if i == v] for v in (step, block.indices[-1])
        ]
        if [len(found) for found in places] != [1, 1]:
            raise ScheduleError(
                f"words({block.name}): expected steps and results to choose {load.buffer}'s rows "
                f"and columns, got {load}"
            )
        (row,), (column,) = places
        extents = [int(e.value) for e in load.buffer.shape if isinstance(e, Const)]
        others = [n for d, n in enumerate(extents) if d not in (row, column)]
        shape = (*others, extents[row] // size, extents[column] * size)
        name = f"{block.name}.{load.buffer.name}"
        made = Buffer(name, tuple(const(e) for e in shape), load.buffer.dtype)
        return _PackedOperand(load, row, column, size, made)

    def nest(self) -> Stmt:
        """What lays it out."""
        axes = [Var(f"{self.made.name}.{d}") for d in range(len(self.made.shape))]
        *others, pack, last = axes
        read = iter(others)
        indices: list[Expr] = []
        for d in range(len(self.load.indices)):
            if d == self.row:
                indices.append(pack * self.size + last % self.size)
            else:
                indices.append(last // self.size if d == self.column else next(read))
        source = Load(self.load.buffer, tuple(indices))
        block = Block(self.made.name, self.made, tuple(axes), source)
        return over(zip(axes, self.made.shape, strict=True), block)

    def read(self, far: Var, near: Var) -> Load:
        """What the reduction reads of it."""
        index = enumerate(self.load.indices)
        others = [i for d, i in index if d not in (self.row, self.column)]
        last = self.load.indices[self.column] * self.size + near
        return Load(self.made, (*others, far, last))

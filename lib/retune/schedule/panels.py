"""The form of a matrix product whose operands are laid out in panels that an instruction reads.

Each operand is copied by a stage of its own, its steps filled up with zeros to whole steps of an
instruction: rows of the first one, and of the second one packs of steps, one for each column. Put
into the memory of a group these are what its warps read, however the operands themselves lie:

    y[i, j] += a[i, k] * b[j, k]  for k in 197
    ->
    y.a[i, k]            = select(k < 197, a[i, k], 0)                        for k in 224
    y.b[k.0, j*2 + k.1]  = select(k.0*2 + k.1 < 197, b[j, k.0*2 + k.1], 0)
    y[i, j]             += y.a[i, k.0*2 + k.1] * y.b[k.0, j*2 + k.1]
"""

from collections.abc import Sequence
from dataclasses import replace

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
    variables,
)
from retune.ir.stmt import Block, For, Program, Stmt, over, rewrite
from retune.schedule.stages import replace_root, root_nest


def panels(program: Program, name: str, sizes: Sequence[int]) -> tuple[Program, list[str]]:
    """The stage over panels in packs of `sizes[0]` and steps of `sizes[1]`, and the two stages that
    make them: rows, then columns.

    Raises: ScheduleError unless it is a product of two operands, of which one has its columns, and
    its last steps choose one dimension of each.
    """
    root, block, path = root_nest(program, name)
    pack, step = sizes
    last = next((loop for loop in reversed(path) if loop.reduce), None)
    if last is None or not isinstance(last.extent, Const) or not isinstance(last.body, Block):
        raise ScheduleError(f"panels({name}): expected a number of steps innermost")
    extent = int(last.extent.value)
    count = -(-extent // step) * step // pack
    far, near = (Var(f"{last.var.name}.{i}") for i in range(2))
    rows, columns = _operands(block, last.var)
    along: Expr = far * pack + near if pack > 1 else far
    a = _rows(block, rows, last.var, count * pack)
    b = _columns(block, columns, last.var, count, pack)
    others = [i for i in rows.indices if i != last.var]
    a_read = Load(a.buffer, (*others, along))
    column = block.indices[-1]
    others = [i for i in columns.indices if i not in (last.var, column)]
    b_read = Load(b.buffer, (*others, far, column * pack + near if pack > 1 else column))
    reads = {rows: a_read, columns: b_read}
    value = redirect(block.value, reads.get)
    steps = [(far, const(count)), *([(near, const(pack))] if pack > 1 else [])]

    def rule(node: Stmt) -> Stmt | None:
        if isinstance(node, For) and node is last:
            return over(steps, replace(block, value=value), reduce=True)
        return None

    made = [a, b]
    nests = [over(_dimensions(x), x) for x in made]
    program = replace_root(program, root, *nests, rewrite(root, rule))
    scratch = (*program.scratch, *(x.buffer for x in made))
    return replace(program, scratch=scratch), [x.name for x in made]


def _dimensions(block: Block) -> list[tuple[Var, Expr]]:
    """The loops of a stage each of whose indices is one."""
    pairs = zip(block.indices, block.buffer.shape, strict=True)
    return [(axis, extent) for axis, extent in pairs if isinstance(axis, Var)]


def _operands(block: Block, step: Var) -> tuple[Load, Load]:
    """What is read by rows of results, and by columns. Raises: ScheduleError if that is unclear."""
    found = [*dict.fromkeys(loads(block.value))]
    column = block.indices[-1]
    if not isinstance(block.value, Binary) or block.value.op != "mul" or len(found) != 2:
        raise ScheduleError(f"panels({block.name}): expected a product, got {block.value}")
    found.sort(key=lambda load: column in load.indices)
    rows, columns = found
    apart = column not in {v for i in rows.indices for v in variables(i)}
    single = [[*load.indices].count(step) == 1 for load in found]
    own = {v for load in found for i in load.indices for v in variables(i) if i != step}
    if not apart or not all(single) or [*columns.indices].count(column) != 1 or step in own:
        raise ScheduleError(f"panels({block.name}): expected rows and columns, got {block.value}")
    return rows, columns


def _rows(block: Block, load: Load, step: Var, length: int) -> Block:
    """The stage that lays the rows out: its dimensions, the steps last."""
    place = load.indices.index(step)
    shape = [e for d, e in enumerate(load.buffer.shape) if d != place]
    made = Buffer(f"{block.name}.{load.buffer.name}", (*shape, const(length)), load.buffer.dtype)
    *others, along = (Var(f"{made.name}.{d}") for d in range(len(made.shape)))
    indices: list[Expr] = [*others]
    indices.insert(place, along)
    value = _filled(Load(load.buffer, tuple(indices)), along, load.buffer.shape[place], length)
    return Block(made.name, made, (*others, along), value)


def _columns(block: Block, load: Load, step: Var, count: int, pack: int) -> Block:
    """The stage that lays the columns out: packs of steps, one for each column."""
    places = load.indices.index(step), load.indices.index(block.indices[-1])
    row, column = places
    shape = [e for d, e in enumerate(load.buffer.shape) if d not in places]
    name = f"{block.name}.{load.buffer.name}"
    width = load.buffer.shape[column] * pack
    made = Buffer(name, (*shape, const(count), width), load.buffer.dtype)
    *others, far, last = (Var(f"{made.name}.{d}") for d in range(len(made.shape)))
    along = far * pack + last % pack if pack > 1 else far
    read = iter(others)
    indices = tuple(
        along if d == row else (last // pack if pack > 1 else last) if d == column else next(read)
        for d in range(len(load.indices))
    )
    value = _filled(Load(load.buffer, indices), along, load.buffer.shape[row], count * pack)
    return Block(made.name, made, (*others, far, last), value)


def _filled(read: Load, along: Expr, extent: Expr, length: int) -> Expr:
    """The element, or zero past the end of the steps."""
    return read if extent == const(length) else select(along < extent, read, const(0.0, read.dtype))

"""Fusion rules on stages, common to all device classes.

The heaviest reduction is the anchor. Its epilogue is the stage in whose loops it is computed, what
is element-wise and cheap is written into its readers, and padding either becomes a mask on the
anchor or stays a stage.
"""

from collections.abc import Callable, Collection, Iterable
from math import prod

from retune.core.dims import example
from retune.core.errors import ScheduleError
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Expr, Load, Select, Var, depth, loads, variables, walk
from retune.ir.simplify import affine
from retune.ir.stmt import Block, Program, blocks, paths
from retune.schedule.access import Accesses
from retune.schedule.schedule import Schedule
from retune.schedule.space import Rule, Sketch, sketch_of
from retune.schedule.stages import readers

_MOST_COPIED = 256
"""Parts of an expression that is copied into its reader several times; more are a stage."""
_MOST_DEEP = 96
"""Levels of an expression that takes others in. Rules of expressions are recursive, and Clang takes
256 brackets in each other (its option -fbracket-depth)."""


def accesses(s: Schedule, name: str) -> Accesses:
    """The accesses of a stage as the schedule has it now."""
    return Accesses.of(s.block(name), s.program.body)


def heaviest_reduction(program: Program) -> Block | None:
    """The reduction with the most iterations, for the sizes at hand."""
    sizes = {
        block: prod(example(evaluate_int(loop.extent)) for loop in path)
        for block, path in paths(program.body)
        if block.reducer is not None
    }
    return max(sizes, key=lambda block: sizes[block], default=None)


def legal_sketches(
    program: Program, schedules: Iterable[tuple[str, Rule]], plain: tuple[str, Rule] | None = None
) -> tuple[Sketch, ...]:
    """The sketches of those schedule functions, by name, that fit the program and a device.

    Without any, that of `plain`, which always fits.
    """
    found: list[Sketch] = []
    for name, rule in schedules:
        try:
            sketch = sketch_of(program, rule, name)
        except ScheduleError:
            continue  # this structure does not fit
        if not sketch.empty:
            found.append(sketch)
    if not found and plain is not None:
        found.append(sketch_of(program, plain[1], plain[0]))
    return tuple(found)


def schedule_rest(s: Schedule, reduce: Callable[[str], None], other: Callable[[str], None]) -> None:
    """Every stage that nothing was done to yet is scheduled: reductions first.

    Constants are computed by no kernel, and fastest in the loops that they come with.
    """

    def waits(name: str) -> bool:
        return untouched(s, name) and s.block(name).buffer.scope != "constant"

    for name in s.blocks():
        if name in s.blocks() and s.block(name).reducer is not None and waits(name):
            reduce(name)
    for name in s.blocks():
        if s.block(name).reducer is None and waits(name):
            other(name)


def untouched(s: Schedule, name: str) -> bool:
    """Whether nothing was done to the stage: no loop is bound, written out, or a vector."""
    return all(s.loop(n).kind == "serial" for n in s.loops(name))


def epilogue_of(s: Schedule, name: str) -> str | None:
    """The stage that alone reads the result, element by element, in the same shape.

    None once its loops are those of another reduction that it reads.
    """
    block = s.block(name)
    users = readers(s.program, block.buffer)
    if block.buffer in s.program.outputs or len(users) != 1:
        return None
    user = users[0]
    same = all(
        load.indices == user.indices for load in loads(user.value) if load.buffer == block.buffer
    )
    plain = all(isinstance(i, Var) for i in user.indices)
    if user.reducer is not None or not same or not plain:
        return None
    around = [s.loop(n) for n in s.loops(user.name)]
    free = all(loop.kind == "serial" for loop in around)
    return user.name if free and tuple(n.extent for n in around) == block.buffer.shape else None


def results_of(s: Schedule, name: str) -> str:
    """The stage in whose loops a reduction is computed: its epilogue, or else a copy out of its
    accumulators."""
    return epilogue_of(s, name) or s.cache_write(name)


def reductions_beside(s: Schedule, name: str) -> list[str]:
    """The reduction, and others of as many steps whose results the same epilogue reads."""
    own = epilogue_of(s, name)
    if own is None:
        return [name]

    def steps(reduction: str) -> list[Expr]:
        return [s.loop(n).extent for n in s.reduce_loops(reduction)]

    return [
        name,
        *(
            n
            for n in s.blocks()
            if n != name
            and s.block(n).reducer is not None
            and epilogue_of(s, n) == own
            and steps(n) == steps(name)
        ),
    ]


def padding_of(program: Program, block: Block) -> list[Block]:
    """The stages of padded data that the block alone reads."""
    return [
        stage
        for stage in blocks(program.body)
        if isinstance(stage.value, Select) and readers(program, stage.buffer) == [block]
    ]


def masks_lanes(padding: Block, block: Block) -> bool:
    """Whether padding, as a mask on the block that reads it, would tell vector lanes apart."""
    last = block.indices[-1] if block.indices else None
    assert isinstance(padding.value, Select), "padding is a choice between data and zero"
    tested = variables(padding.value.condition)
    return any(
        last in variables(index)
        for load in loads(block.value)
        if load.buffer == padding.buffer
        for axis, index in zip(padding.indices, load.indices, strict=True)
        if axis in tested
    )


def inline_elementwise(s: Schedule, *, across: bool = True, kept: Collection[str] = ()) -> None:
    """Element-wise stages that feed element-wise ones, and cheap ones that feed reductions.

    The last ones come first: what a stage and a function of it read is then read by one stage.
    A movement stays a stage where the columns of a reduction would no longer lie side by side.
    Unless `across`, arithmetic stays one whose neighbours a transpose puts apart. So do those that
    are `kept`.
    """
    for name in reversed(s.blocks()):
        block = s.block(name)
        if block.reducer is not None or block.buffer in s.program.outputs or name in kept:
            continue
        users = readers(s.program, block.buffer)
        heavy = not _only_moves(block)
        into_reduction = any(u.reducer is not None for u in users)
        if (into_reduction and heavy) or (len(users) > 1 and heavy):
            continue
        if heavy and any(_grows(user, block) or _deepens(user, block) for user in users):
            continue
        if heavy and not across and any(_turns(user, block) for user in users):
            continue
        if any(user.reducer is not None and scatters(block, user) for user in users):
            continue
        try:
            s.compute_inline(name)
        except ScheduleError:
            continue  # written in parts, as a concatenation is


def _only_moves(block: Block) -> bool:
    """Whether the stage makes one of another's elements, or of a number, each of its own."""
    if not isinstance(block.value, Load):
        return not block.value.children
    axes = variables(block.value)
    return all(affine(index, axes) is not None for index in block.value.indices)


def _turns(user: Block, block: Block) -> bool:
    """Whether neighbours of the stage `user` are not neighbours in what it reads of the block."""
    read = (load for load in loads(user.value) if load.buffer == block.buffer and load.indices)
    return any(user.indices[-1] not in variables(load.indices[-1]) for load in read)


def scatters(block: Block, user: Block) -> bool:
    """Whether neighbouring columns of the reduction `user` would no longer read neighbours.

    They do so in the stage, and not in what it moves.
    """
    column = user.indices[-1] if user.indices else None
    source = block.value
    if not isinstance(source, Load) or not source.indices or column is None:
        return False
    near = any(
        column in variables(load.indices[-1])
        for load in loads(user.value)
        if load.buffer == block.buffer
    )
    return near and block.indices[-1] not in variables(source.indices[-1])


def _grows(user: Block, block: Block) -> bool:
    """Whether several copies of the block's expression would make its reader's a long one."""
    count = sum(load.buffer == block.buffer for load in loads(user.value))
    return count > 1 and count * sum(1 for _ in walk(block.value)) > _MOST_COPIED


def _deepens(user: Block, block: Block) -> bool:
    """Whether the reader of the block's expression would have too many levels."""
    return depth(user.value) + depth(block.value) > _MOST_DEEP


def pack_operands(s: Schedule, name: str) -> None:
    """Constants that the reduction reads are stored in the order of its loops."""
    stage = accesses(s, name)
    reduce = {loop.var for loop in stage.steps}
    for operand in stage.operands:
        deep = operand.constant and operand.moving & reduce
        if deep and len(operand.load.indices) > 1:
            try:
                s.pack(operand.load.buffer.name)
            except ScheduleError:
                continue  # read at several positions: it stays as it is

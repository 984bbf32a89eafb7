"""Row programs: stages over the same rows, such as softmax and the norms over the last axis.

Each stage but the last is a reduction along the rows, or goes element by element over them. In one
nest a row is read once from memory, what is found out about it (its largest element, its sum)
stays where it is, and nothing is launched or waited for in between. Read `find_row_program`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Call, Expr, Scope, const, loads, variables, walk
from retune.ir.stmt import Block, Program, blocks
from retune.schedule.access import Accesses
from retune.schedule.schedule import Schedule
from retune.schedule.stages import readers
from retune.targets.fusion import inline_elementwise


@dataclass(frozen=True, slots=True)
class RowProgram:
    """The stages of a program, all over the same rows; the last one is its result."""

    reductions: tuple[str, ...]
    others: tuple[str, ...]
    """Element-wise stages over the rows that several others read."""
    numbers: tuple[str, ...]
    """Stages that make one number of each row out of such numbers."""
    out: str
    columns: int
    """Elements of a row."""

    @property
    def inside(self) -> frozenset[str]:
        """All stages but the result."""
        return frozenset((*self.reductions, *self.others, *self.numbers))


def find_row_program(program: Program) -> RowProgram | None:
    """All stages of the program as one over rows; None where some stage is not.

    Element-wise stages that may be copied into their readers are to be there no more.
    """
    *before, out = blocks(program.body)
    if not before or out.reducer is not None or out.buffer not in program.outputs:
        return None
    shape = out.buffer.shape
    if len(shape) < 2:
        return None  # no loop over rows to place the stages in
    reductions, others, numbers = list[str](), list[str](), list[str]()
    for block in before:
        stage = Accesses.of(block, program.body)
        if not stage.plain or block.buffer in program.outputs or not _of_rows(stage, shape):
            return None
        whole = block.buffer.shape == shape
        kind = reductions if block.reducer is not None else others if whole else numbers
        kind.append(block.name)
    whole = Accesses.of(out, program.body)
    if not reductions or not whole.plain or not _reads_rows(program, whole, before):
        return None
    columns = evaluate_int(shape[-1])
    return RowProgram(tuple(reductions), tuple(others), tuple(numbers), out.name, columns)


def _of_rows(stage: Accesses, shape: Sequence[Expr]) -> bool:
    """Whether it makes one number of each row, or all elements of the rows."""
    results = [loop.extent for loop in stage.results]
    steps = [loop.extent for loop in stage.steps]
    if stage.block.reducer is None:
        return results == list(shape) or _long(results) == _long(shape[:-1])
    return _long(results) == _long(shape[:-1]) and _long(steps) == _long(shape[-1:])


def _long(extents: Sequence[Expr]) -> list[Expr]:
    return [n for n in extents if n != const(1)]


def _reads_rows(program: Program, out: Accesses, before: Sequence[Block]) -> bool:
    """Whether the result needs every other stage, by way of the others."""
    wanted = {operand.load.buffer for operand in out.operands}
    for block in reversed(before):
        if block.buffer not in wanted:
            return False
        stage = Accesses.of(block, program.body)
        wanted |= {operand.load.buffer for operand in stage.operands}
    return True


def schedule_in_one_nest(
    s: Schedule,
    program: RowProgram,
    scope: Scope,
    *,
    share: Callable[[str], None],
    reduce: Callable[[str, str], None],
    beside: bool = False,
    recompute: bool = False,
) -> list[str]:
    """All stages in the result's loops over rows, which it gives; readers find them in `scope`.

    `share` spreads a loop along the row over what runs it; `reduce` places a reduction in each step
    of a loop over rows. With `beside` the rows of the innermost loop run beside each other, and all
    that they read is in `scope`. With `recompute` elements are computed where they are read, if one
    stage reads them, or they take one element and no function.
    """
    for stage in program.others if recompute else ():
        if _is_slight(s.block(stage)):
            s.compute_inline(stage)
    *rows, column = s.loops(program.out)
    around = rows[-2] if beside else rows[-1]
    share(column)
    for stage in [name for name in reversed(s.blocks()) if name in program.inside]:
        if stage in program.numbers:
            s.compute_at(stage, around, scope if beside else "register")
        elif stage in program.reductions:
            reduce(stage, around)
        elif recompute and len(readers(s.program, s.block(stage).buffer)) == 1:
            s.compute_inline(stage)
        else:
            s.compute_at(stage, around, scope)
            share(s.loops(stage)[-1])
    return rows


def _is_slight(block: Block) -> bool:
    """Whether it is arithmetic with one element of a row: its readers need no copy of the row."""
    along = [load for load in loads(block.value) if variables(load) & variables(block.indices[-1])]
    return len(along) == 1 and not any(isinstance(part, Call) for part in walk(block.value))


def factored(block: str, name: str, loop: str) -> str:
    """The loop of `block` that was made from one of `name` by rfactor."""
    return f"{block}{loop.removeprefix(name)}"


@dataclass(frozen=True, slots=True)
class Fused:
    """The structure of a sketch that runs a row program in one nest."""

    device_class: str

    @property
    def name(self) -> str:
        """Name of the sketch."""
        return f"{self.device_class}.rows.fused"


def fused_rows(program: Program) -> bool:
    """Whether the program is over rows, once what may be copied into its readers is."""
    s = Schedule(program)
    inline_elementwise(s)
    return find_row_program(s.program) is not None

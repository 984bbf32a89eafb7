"""Products of few rows with columns that lie along the sum, such as scores over a cache of keys.

    y[i, j] += q[i, k]*keys[j, k]        few i, many j

Vectors of results would gather from as many keys, or want all keys written out in another order,
which reads and writes the whole cache for a single query. Here the lanes go along the sum, as in a
row reduction (`rows`), and each key serves all rows while it is in registers. Rules:
`dot_products` says where it pays, `schedule_dots` does it.
"""

from dataclasses import dataclass
from math import prod

from retune.core.dims import is_fixed, most
from retune.core.dtypes import FLOAT32
from retune.core.errors import ScheduleError
from retune.core.target import DeviceSpec
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Var, loads
from retune.ir.stmt import Block, Program, blocks
from retune.schedule.access import Accesses
from retune.schedule.schedule import Schedule
from retune.schedule.stages import readers
from retune.targets.cpu.row_reductions import RowReduction, vectorize_reduction
from retune.targets.fusion import accesses, results_of, scatters
from retune.targets.tiling import fuse_all

_MOST_ROWS = 8
"""Rows that one column serves: for more, a copy of the columns in another order costs less."""
_MOST_REGISTERS = 8
_COLUMNS = 32
"""Of a work-group. The last group's are moved back, so that more of them are computed twice."""


@dataclass(frozen=True, slots=True)
class Dots:
    """The structural choices of one sketch."""

    moved: tuple[str, ...]
    """Stages that only put columns in another order: they are read where they lie."""
    lanes: int
    registers: int
    """Vectors to accumulate in: as many as the sum has, if they are few."""

    @property
    def name(self) -> str:
        """Name of the sketch."""
        return f"cpu.v{self.lanes}.dots"


def dot_products(program: Program, block: Block, spec: DeviceSpec) -> Dots | None:
    """How a product is made so; None where other tiles are better."""
    stage = Accesses.of(block, program.body)
    moved = {
        b.buffer: b.name
        for b in blocks(program.body)
        if scatters(b, block) and readers(program, b.buffer) == [block]
    }
    columns = [operand for operand in stage.operands if operand.load.buffer in moved]
    if len(columns) != 1 or len(stage.steps) != 1 or len(stage.operands) != 2:
        return None
    types = {block.buffer.dtype, *(load.dtype for load in loads(block.value))}
    (step,), (keys,) = stage.steps, columns
    results = {loop.var: evaluate_int(loop.extent) for loop in stage.results}
    rows = prod(extent for var, extent in results.items() if var not in keys.moving)
    count = prod(extent for var, extent in results.items() if var in keys.moving)
    few = most(rows) <= _MOST_ROWS and most(count) >= 4 * _COLUMNS
    depth, lanes = evaluate_int(step.extent), spec.vector_lanes()
    if not few or types != {FLOAT32} or not is_fixed(depth) or depth % lanes:
        return None
    vectors = depth // lanes
    registers = max(n for n in range(1, _MOST_REGISTERS + 1) if vectors % n == 0)
    return Dots(moved=tuple(moved.values()), lanes=lanes, registers=registers)


def schedule_dots(s: Schedule, name: str, plan: Dots) -> None:
    """The product `name` column after column, all rows of each. Raises: ScheduleError."""
    for stage in plan.moved:
        s.compute_inline(stage)
    (step,) = accesses(s, name).steps
    if any(step.var not in operand.last for operand in accesses(s, name).operands):
        raise ScheduleError(f"{name}: what is summed does not lie side by side")
    out = results_of(s, name)
    stage = accesses(s, name)
    keys = max(stage.operands, key=lambda operand: _extent(stage, operand.moving))
    order = [loop.var for loop in stage.results]
    loops = s.loops(out)
    rows = [n for n, var in zip(loops, order, strict=True) if var not in keys.moving]
    several = [n for n in rows if s.several(n)]
    columns = [n for n in loops if n not in several]
    s.reorder(*columns, *several)
    inner = [*columns, *several][-1]
    axis = RowReduction(step.var.name, plan.lanes, (plan.registers,))
    vectorize_reduction(s, name, axis, inner, sampled=False)
    for row in several:
        s.unroll(row)
    *leading, last = columns
    s.bind(s.split(last, [_COLUMNS], "shift")[0], "group.0")
    around = [n for n in leading if s.several(n)]
    if around:
        s.bind(fuse_all(s, around), "group.1")


def _extent(stage: Accesses, moving: frozenset[Var]) -> int:
    """How many results follow from axes among these."""
    return most(prod(evaluate_int(n.extent) for n in stage.results if n.var in moving))

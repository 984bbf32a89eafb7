"""Row reductions on CPU devices: sums and maxima over the axis along which memory is contiguous.

Vectors over the results would gather from as many rows; here the lanes go over the reduced axis.
Each row is accumulated in a few vector registers; at its end the registers are combined with each
other, and then the lanes of what is left (rfactor, twice).
This is the shape of softmax, of normalisation over the last axis, and of a mean over pixels that
lie side by side. Rules: `find_row_reduction` says where it pays, `schedule_row_reduction` does it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from retune.core.dims import example, is_fixed, least, most
from retune.core.dtypes import FLOAT32
from retune.core.errors import ScheduleError
from retune.core.target import DeviceSpec
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Expr, const
from retune.schedule.access import Accesses
from retune.schedule.schedule import Schedule
from retune.targets.cpu.elementwise import tile_near
from retune.targets.fusion import accesses, results_of
from retune.targets.row_programs import RowProgram, factored, schedule_in_one_nest

_MAX_REGISTERS = 8
"""Vector accumulators of one row at most: as many hide the latency of an addition."""
_MIN_LANES = 4
"""Shorter vectors are not worth a reduction across them."""
_MAX_OVERLAPPING_REGISTERS = 2
"""The same where the last vectors overlap those before them: in rows of a dynamic length, whose
shortest all accumulators fit, and in those that no vector divides."""
_DEFAULT_REGISTERS = 4
"""Vector accumulators of a row where nothing is sampled, if they divide it."""


@dataclass(frozen=True, slots=True)
class RowReduction:
    """The reduce loop that becomes vector lanes."""

    loop: str
    lanes: int
    registers: tuple[int, ...]
    """Possible numbers of vectors to accumulate in; each divides the loop's vectors, unless the
    last ones overlap."""

    @property
    def name(self) -> str:
        """Name of the sketch, as those of register tiles are: rows are tiles of one result."""
        return f"cpu.v{self.lanes}.loops.pixels_slow"


def find_row_reduction(stage: Accesses, spec: DeviceSpec) -> RowReduction | None:
    """The axis whose lanes a row reduction should use; None where lanes over results are better.

    It pays where every operand lies along one reduce axis, where no operand serves several results
    (register tiles are better at that), and where that axis holds two vectors at least.
    Constants that differ between results can be stored as the lanes over results want them, so
    those are better as soon as the results fill a vector.
    """
    reduce = {loop.var: loop for loop in stage.steps}
    axes = {axis for operand in stage.operands for axis in operand.last}
    if len(axes) != 1 or not axes <= reduce.keys() or not _is_plain(stage):
        return None
    results = {loop.var for loop in stage.results if most(evaluate_int(loop.extent)) > 1}
    widest = spec.vector_lanes()
    for operand in stage.operands:
        own = operand.moving & results
        packed = operand.constant and example(evaluate_int(stage.block.buffer.shape[-1])) >= widest
        if own and (own < results or packed):
            return None
    loop = reduce[axes.pop()]
    vectors = _vectors(evaluate_int(loop.extent), spec)
    return vectors and RowReduction(loop.var.name, *vectors)


def _vectors(extent: int, spec: DeviceSpec) -> tuple[int, tuple[int, ...]] | None:
    """Lanes of a row's vectors, and possible numbers of accumulators; None for a row too short.

    The widest vectors that divide the row, unless fewer do that overlap at its end.
    """
    wide = spec.vector_lanes(extent)
    numbers = range(1, _MAX_REGISTERS + 1)
    overlapping = tuple(
        n for n in numbers[:_MAX_OVERLAPPING_REGISTERS] if n * wide <= example(extent)
    )
    if not is_fixed(extent):
        return (wide, overlapping) if wide >= _MIN_LANES else None
    widths = (16, 8, _MIN_LANES)
    fit = next((n for n in widths if n <= wide and extent % n == 0 and extent >= 2 * n), None)
    vectors = extent // fit if fit else extent
    if wide >= _MIN_LANES and extent >= 2 * wide and -(-extent // wide) < vectors:
        return wide, overlapping
    return (fit, tuple(n for n in numbers if vectors % n == 0)) if fit else None


def _is_plain(stage: Accesses) -> bool:
    """True for an unscheduled stage in float32 with axes of its own, read element by element."""
    types = {stage.block.buffer.dtype, *(operand.load.dtype for operand in stage.operands)}
    adjacent = all(operand.adjacent for operand in stage.operands)
    serial = all(loop.kind == "serial" for loop in stage.loops)
    return stage.plain and bool(stage.block.indices) and types == {FLOAT32} and adjacent and serial


def schedule_row_reduction(
    s: Schedule, name: str, axis: RowReduction, groups: int, *, sampled: bool
) -> None:
    """The reduction `name` inside the loops of the stage that reads it, one row after the other.

    Work-groups take rows; about `groups` of them, where there are so many rows.
    """
    out = results_of(s, name)
    vectorize_reduction(s, name, axis, s.loops(out)[-1], sampled=sampled)
    _bind_rows(s, s.loops(out), groups)


def schedule_row_program(s: Schedule, program: RowProgram, groups: int, spec: DeviceSpec) -> None:
    """All stages in one nest, one row after the other: what several stages read of it is kept.

    Raises: ScheduleError where lanes along the rows do not divide them.
    """
    lanes = spec.vector_lanes(program.columns)

    def vectorize(column: str) -> None:
        _, lane = s.split(column, [lanes], "shift")
        s.vectorize(lane)

    def reduce(stage: str, row: str) -> None:
        axis = find_row_reduction(accesses(s, stage), spec)
        if axis is None:
            raise ScheduleError(f"{stage}: its lanes do not lie along the row")
        vectorize_reduction(s, stage, axis, row, sampled=True)

    rows = schedule_in_one_nest(
        s, program, "private", share=vectorize, reduce=reduce, recompute=True
    )
    _bind_rows(s, rows, groups)


def vectorize_reduction(
    s: Schedule, name: str, axis: RowReduction, row: str, *, sampled: bool
) -> None:
    """The reduction is inside the loop `row`: in registers, which are combined at its end."""
    extent = s.extent(axis.loop)
    max_default = _DEFAULT_REGISTERS if is_fixed(extent) else max(1, least(extent) // axis.lanes)
    default = max(n for n in axis.registers if n <= max(max_default, axis.registers[0]))
    count: Expr = const(default)
    if sampled:
        count = s.sample_categorical(f"registers.{name}", axis.registers)
        if not is_fixed(extent):  # rows that are shorter than all vectors run by elements
            s.prefer(count <= max_default)
    rank = len(s.block(name).indices)
    tail = "exact" if is_fixed(extent) and extent % axis.lanes == 0 else "shift"
    _, vectors, lanes = s.split(axis.loop, [count, axis.lanes], tail)
    by_lane = s.rfactor(name, lanes)
    by_vector = s.rfactor(by_lane, factored(by_lane, name, vectors), rank)
    for block in (name, by_lane, by_vector):
        s.compute_at(block, row)
    s.vectorize(lanes)
    for block in (by_lane, by_vector):
        s.unroll(factored(block, name, vectors))
        s.vectorize(factored(block, name, lanes))


def _bind_rows(s: Schedule, loops: Sequence[str], groups: int) -> None:
    """Work-groups take rows: about `groups` of them, where there are so many."""
    rows = loops[0]
    for loop in loops[1:]:
        if s.likely(rows) >= groups:
            break
        rows = s.fuse(rows, loop)
    if (size := s.likely(rows)) >= 2 * groups:
        rows = s.split(rows, [tile_near(size, groups)], "shift")[0]
    s.bind(rows, "group.0")

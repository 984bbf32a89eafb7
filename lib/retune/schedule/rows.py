"""Row reductions on CPU devices: sums and maxima over the axis along which memory is contiguous.

Vectors over the results would gather from as many rows; here the lanes go over the reduced axis.
Each row is accumulated in a few vector registers; at its end the registers are combined with each
other, and then the lanes of what is left (rfactor, twice).
This is the shape of softmax, of normalisation over the last axis, and of a mean over pixels that
lie side by side. Rules: `contiguous_axis` says where it pays, `schedule_rows` does it.
"""

from dataclasses import dataclass

from retune.core.target import DeviceSpec
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Expr, Load, Var, const, loads, variables
from retune.ir.simplify import affine
from retune.ir.stmt import Block
from retune.schedule.schedule import Schedule

_MOST_REGISTERS = 8
"""Vector accumulators of one row at most: as many hide the latency of an addition."""
_LEAST_LANES = 4
"""Shorter vectors are not worth a reduction across them."""
_USUAL_REGISTERS = 4
"""Vector accumulators of one row where nothing is sampled, if they divide it."""


@dataclass(frozen=True, slots=True)
class RowAxis:
    """The reduce loop that becomes vector lanes."""

    loop: str
    lanes: int
    registers: tuple[int, ...]
    """Possible numbers of vectors to accumulate in; each divides the loop's vectors."""


def contiguous_axis(s: Schedule, name: str, spec: DeviceSpec) -> RowAxis | None:
    """The axis whose lanes a row reduction should use; None where lanes over results are better.

    It pays where every operand lies along one reduce axis, where no operand serves several results
    (register tiles are better at that), and where the vectors divide that axis into two at least.
    Constants that differ between results can be stored as the lanes over results want them, so
    those are better as soon as the results fill a vector.
    """
    block = s.block(name)
    extents = {s.loop(n).var: evaluate_int(s.loop(n).extent) for n in s.loops(name)}
    reduce = {s.loop(n).var for n in s.loops(name) if s.loop(n).reduce}
    operands = loads(block.value)
    axes = {axis for load in operands for axis in _along(load)}
    if len(axes) != 1 or not axes <= reduce or not _is_plain(s, block):
        return None
    results = {v for v, n in extents.items() if v not in reduce and n > 1}
    widest = min(16, spec.lanes_f32)
    for load in operands:
        own = variables(load) & results
        packed = load.buffer.scope == "constant" and _last_extent(block) >= widest
        if own and (own != results or packed):
            return None
    loop = axes.pop()
    lanes = widest
    while lanes > 1 and (extents[loop] % lanes or extents[loop] < 2 * lanes):
        lanes //= 2
    if lanes < _LEAST_LANES:
        return None
    vectors = extents[loop] // lanes
    counts = tuple(n for n in range(1, _MOST_REGISTERS + 1) if vectors % n == 0)
    return RowAxis(loop.name, lanes, counts)


def _last_extent(block: Block) -> int:
    return evaluate_int(block.buffer.shape[-1])


def _along(load: Load) -> set[Var]:
    """The variables by which an operand's last index moves, if each of them does by one."""
    if not load.indices:
        return set()
    used = variables(load.indices[-1])
    split = affine(load.indices[-1], used)
    if split is None or any(step != const(1) for step in split[0].values()):
        return {Var("none")}
    return used


def _is_plain(s: Schedule, block: Block) -> bool:
    """True for an unscheduled float32 stage with axes of its own."""
    types = {block.buffer.dtype, *(load.dtype for load in loads(block.value))}
    loops = [s.loop(n) for n in s.loops(block.name)]
    plain = all(isinstance(i, Var) for i in block.indices)
    return (
        plain
        and bool(block.indices)
        and types == {"float32"}
        and all(p.kind == "serial" for p in loops)
    )


def schedule_rows(
    s: Schedule, name: str, out: str, axis: RowAxis, groups: int, *, sampled: bool
) -> None:
    """The reduction `name` inside the loops of `out`, which reads it, one row after the other.

    Work-groups take rows; about `groups` of them, where there are so many rows.
    """
    usual = max(n for n in axis.registers if n <= _USUAL_REGISTERS)
    count: Expr = const(usual)
    if sampled:
        count = s.sample_categorical(f"registers.{name}", axis.registers)
    rank = len(s.block(name).indices)
    _, vectors, lanes = s.split(axis.loop, [count, axis.lanes])
    by_lane = s.rfactor(name, lanes)
    by_vector = s.rfactor(by_lane, _of(by_lane, name, vectors), rank)
    row = s.loops(out)[-1]
    for block in (name, by_lane, by_vector):
        s.compute_at(block, row)
    s.vectorize(lanes)
    for block in (by_lane, by_vector):
        s.unroll(_of(block, name, vectors))
        s.vectorize(_of(block, name, lanes))
    rows, size = s.loops(out)[0], 1
    for loop in s.loops(out)[1:]:
        size = evaluate_int(s.loop(rows).extent)
        if size >= groups:
            break
        rows = s.fuse(rows, loop)
    s.bind(rows, "group.0")


def _of(block: str, name: str, loop: str) -> str:
    """The loop of `block` that was made from one of `name` by rfactor."""
    return f"{block}{loop.removeprefix(name)}"

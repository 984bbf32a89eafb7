"""Sums of sums on CPU devices, see `targets.partial_sums`: both in one register tile.

What rows are made of (their largest elements, the bytes that they are quantized to) each work-group
makes for its own rows, in arrays of its own. Read `schedule_partial_sums`.
"""

from dataclasses import dataclass
from functools import reduce
from operator import mul

from retune.core.target import DeviceSpec
from retune.ir.expr import Expr, const, loads
from retune.schedule.schedule import Schedule
from retune.schedule.stages import readers
from retune.targets.cpu.tile import RegisterTile, bind_tile, tile_results
from retune.targets.fusion import pack_operands
from retune.targets.partial_sums import order_partial_sums, total_of
from retune.targets.tiling import (
    BLOCK,
    GROUP,
    LANE,
    REGISTER,
    extent_of,
)

_PRIVATE_BYTES = 128 << 10
"""What work-groups make of their rows at most: it stays in the nearest caches but one."""


@dataclass(frozen=True, slots=True)
class PartialSums:
    """The structural choices of one sketch."""

    tile: RegisterTile

    @property
    def name(self) -> str:
        """Name of the sketch."""
        return f"{self.tile.name}.partial"


def schedule_partial_sums(s: Schedule, name: str, plan: PartialSums, spec: DeviceSpec) -> None:
    """The reduction `name` and the sum of its results, under the tiles of that one's epilogue."""
    total = total_of(s.program, s.block(name))
    assert total is not None, "the rule was asked whether there is one"
    # Rows that are made lie in arrays, which a clamped tile would make as long as all rows.
    tail = "shift" if _reads_made(s, name) else "clamp"
    leading, tile = tile_results(s, total.name, plan.tile, spec, tail=tail)
    s.compute_at(total.name, tile[BLOCK][-1])
    bind_tile(s, leading, tile, channels_slow=plan.tile.channels_slow)
    packed = plan.tile.packed.entry if plan.tile.packed else None
    order_partial_sums(s, name, total.name, plan.tile.lanes, packed)
    tile.run(LANE, REGISTER)
    _limit(s, tile[REGISTER], spec, plan.tile)
    if packed and len(tile[REGISTER]) == 1:
        # A single row reads each weight once, at the memory's rate, and best from one address at a
        # time: each vector of columns has a panel of its own where weights are shared. One vector
        # of sums is enough, as adding integers takes a cycle.
        s.prefer(s.loop(tile[REGISTER][-1]).extent <= 1)
    _make_rows(s, name, total.name, tile[GROUP][-1], spec)
    for stage in (name, total.name):
        pack_operands(s, stage)


def _reads_made(s: Schedule, name: str) -> bool:
    """Whether a stage multiplies what another one makes, such as bytes of rows."""
    read = {load.buffer for load in loads(s.block(name).value)}
    return any(s.block(other).buffer in read for other in s.blocks() if other != name)


def _limit(s: Schedule, tile: list[str], spec: DeviceSpec, plan: RegisterTile) -> None:
    """Both tiles fit the registers, with a row of weights, packed and unpacked, and a broadcast."""
    vectors, size = s.loop(tile[-1]).extent, extent_of(s, tile)
    each = plan.packed.implementation.registers if plan.packed else 1
    registers = max(spec.vector_registers, 8)
    used = 2 * size + vectors * (1 + each) + (1 + each)
    s.require(used <= registers, "the register tile spills")


def _make_rows(s: Schedule, name: str, total: str, group: str, spec: DeviceSpec) -> None:
    """What the two sums read of other stages is made by each group, for its rows."""
    wanted, used = {name, total}, const(0)
    for stage in reversed(s.blocks()):
        block = s.block(stage)
        if stage in wanted or not any(b.name in wanted for b in readers(s.program, block.buffer)):
            continue
        wanted.add(stage)
        s.compute_at(stage, group, "private")
        used = used + _bytes(s, stage)
        _vectorize_last(s, stage, spec)
    s.require(used <= _PRIVATE_BYTES, "the rows of a group are too large")


def _bytes(s: Schedule, stage: str) -> Expr:
    buffer = s.block(stage).buffer
    return reduce(mul, buffer.shape, const(buffer.dtype.itemsize))


def _vectorize_last(s: Schedule, stage: str, spec: DeviceSpec) -> None:
    """Vectors along the last loop of a stage, if they divide it."""
    last = s.loops(stage)[-1]
    lanes = spec.vector_lanes(s.extent(last))
    if lanes > 1 and s.extent(last) % lanes == 0:
        _, lane = s.split(last, [lanes])
        s.vectorize(lane)

"""Sums of sums on CPU devices: weights in blocks, whose products are scaled block by block.

    products[i, block, j] += q[j, block, k]*x[i, block, k]        in int32, or floats
    y[i, j] += products[i, block, j]*scale[j, block]

The tile of `y` is held in registers; so is that of the products of one block, which are made before
they are added. What rows are made of (their largest elements, the bytes that they are quantized to)
each work-group makes for its own rows, in arrays of its own. Rules: `partial_sums` says where it
pays, `schedule_partial_sums` does it.
"""

from dataclasses import dataclass
from functools import reduce
from operator import mul

from retune.core.target import DeviceSpec
from retune.ir.expr import Expr, const, loads
from retune.ir.stmt import Block, Program
from retune.schedule.schedule import Schedule
from retune.schedule.stages import loops_of, readers
from retune.targets.accumulators import accumulate_in_registers
from retune.targets.cpu.tile import MOST_TILE, RegisterTile, bind_tile, tiling
from retune.targets.fusion import pack_operands, results_of
from retune.targets.instructions import split_pack
from retune.targets.tiling import (
    BLOCK,
    GROUP,
    LANE,
    REGISTER,
    TiledAxis,
    extent_of,
    unroll_all,
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


def total_of(program: Program, block: Block) -> Block | None:
    """The sum that alone reads the reduction's results, one of them in each of its steps."""
    users = readers(program, block.buffer)
    if len(users) != 1 or users[0].reducer != "sum" or block.reducer != "sum":
        return None
    (user,) = users
    found = [load for load in loads(user.value) if load.buffer == block.buffer]
    steps = [loop.var for loop in loops_of(program, user.name) if loop.reduce]
    if len(found) != 1 or len(steps) != 1 or not user.indices:
        return None
    read = found[0].indices
    same = {*read} == {*user.indices, *steps} and len(read) == len(user.indices) + 1
    return user if same and read[-1] == user.indices[-1] else None


def schedule_partial_sums(s: Schedule, name: str, plan: PartialSums, spec: DeviceSpec) -> None:
    """The reduction `name` and the sum of its results, under the tiles of that one's epilogue."""
    total = total_of(s.program, s.block(name))
    assert total is not None, "the rule was asked whether there is one"
    *others, last = s.loops(results_of(s, total.name))
    single = [n for n in others if not s.several(n)]
    real = [n for n in others if n not in single]
    pixels, leading = [TiledAxis(n, MOST_TILE) for n in real[-2:]], [*single, *real[:-2]]
    channels = TiledAxis(last, MOST_TILE, plan.tile.lanes)
    tile = tiling(pixels, channels).apply(s, leading, tail="clamp")
    s.compute_at(total.name, tile[BLOCK][-1])
    bind_tile(s, leading, tile, channels_slow=plan.tile.channels_slow)
    step = _order_total(s, total.name, plan.tile.lanes)
    s.compute_at(name, step)
    _order_products(s, name, plan.tile)
    tile.run(LANE, REGISTER)
    _limit(s, tile[REGISTER], spec, plan.tile)
    _make_rows(s, name, total.name, tile[GROUP][-1], spec)
    for stage in (name, total.name):
        pack_operands(s, stage)


def _order_total(s: Schedule, name: str, lanes: int) -> str:
    """The loop over blocks around the tile of results, which is written out; gives its name."""
    own, axes = s.loops(name), s.axes(name)
    (step,) = [n for n in own if s.loop(n).reduce]
    accumulate_in_registers(s, [step], [n for n in own if n in axes], lanes)
    return step


def _order_products(s: Schedule, name: str, plan: RegisterTile) -> None:
    """The steps of a block around the same tile; what lies in one word is written out."""
    own, axes = _own_loops(s, name), s.axes(name)
    steps = [n for n in own if s.loop(n).reduce]
    inside = ""
    if plan.packed:
        inside = split_pack(s, steps, plan.packed.entry.pack)
    accumulate_in_registers(s, steps, [n for n in own if n in axes], plan.lanes, inside)
    unroll_all(s, steps[1:])
    if plan.packed:
        s.tensorize(inside, plan.packed.entry.name)


def _own_loops(s: Schedule, name: str) -> list[str]:
    """The stage's own loops, from its first axis on."""
    around = s.loops(name)
    return around[around.index(s.axes(name)[0]) :]


def _limit(s: Schedule, tile: list[str], spec: DeviceSpec, plan: RegisterTile) -> None:
    """Both tiles, a row of unpacked weights and a broadcast fit the registers."""
    vectors, size = s.loop(tile[-1]).extent, extent_of(s, tile)
    each = plan.packed.implementation.registers if plan.packed else 1
    registers = max(spec.vector_registers, 8)
    s.require(2 * size + vectors * each + each <= registers, "the register tile spills")


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
        _in_lanes(s, stage, spec)
    s.require(used <= _PRIVATE_BYTES, "the rows of a group are too large")


def _bytes(s: Schedule, stage: str) -> Expr:
    buffer = s.block(stage).buffer
    return reduce(mul, buffer.shape, const(buffer.dtype.itemsize))


def _in_lanes(s: Schedule, stage: str, spec: DeviceSpec) -> None:
    """The last loop of a stage by vectors."""
    last = s.loops(stage)[-1]
    lanes = spec.vector_lanes(s.extent(last))
    if lanes > 1 and s.extent(last) % lanes == 0:
        _, lane = s.split(last, [lanes])
        s.vectorize(lane)

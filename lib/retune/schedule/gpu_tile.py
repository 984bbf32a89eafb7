"""Contractions on GPUs: tiles over groups, virtual threads, items and registers.

The items of a group fetch the operands of a tile into local memory, wait, and each of them
accumulates a small tile of results in its registers, on which the epilogue runs before they are
stored. Channels lie along local.0, so that neighbouring items store neighbouring elements; the
pixels' axes along local.1 and local.2. Without local memory of its own (Mali) a device reads
operands where they are, by vectors. Read `Tiling`, then `schedule_tile`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from retune.core.errors import ScheduleError
from retune.core.target import MOST_GROUPS, DeviceSpec
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import (
    Binary,
    Buffer,
    Const,
    Expr,
    Select,
    Var,
    const,
    loads,
    variables,
    walk,
)  # fmt: skip
from retune.ir.stmt import Block, blocks
from retune.schedule.accumulators import accumulate_in_registers
from retune.schedule.cpu import channel_group, epilogue_of, untouched
from retune.schedule.gpu_plain import order_accumulation
from retune.schedule.schedule import Schedule
from retune.schedule.stages import readers

FETCHED_LANES = 4
"""Floats that an item fetches at once: 16 bytes, the widest load of a GPU."""

_MOST_REGISTER_PIXELS = 8
_MOST_ACCUMULATORS = 128
"""Results of one item; with operands and addresses they fit 255 registers."""
_MOST_HELD = 192
"""Results and operands of one item, where it holds what its window covers."""
_REGISTER_FILE = 48 << 10
"""Accumulators of a group at most: three quarters of a compute unit's 64 K registers."""
_LEAST_ITEMS = 32
"""Work-items of a group: at least a warp where the shape allows, at most what hides latency."""
_MOST_ITEMS = 512
_DEPTHS = (1, 2, 3, 4, 7, 8, 16, 32, 64)
"""Steps of the innermost reduce axis between two fetches."""
_TILES_OF_IMAGE = 16
"""Tiles along the pixels' outer axis that there is to be room for beside the leading axes."""
_MOST_UNROLLED = 2048
"""Multiply-adds of straight-line code: more does not fit the instruction cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """The structural choices of one sketch."""

    lanes: int
    """Neighbouring channels of one item."""
    fetched: int = 0
    """Elements that an item copies to local memory at once; 0: operands are read where they are."""
    halo: bool = False
    """True: one fetch serves all positions of the window; False: each has a fetch of its own.

    Where nothing is fetched, items hold what the window of their results covers in registers."""
    sliced: bool = False
    """True: work-groups take slices of the reduction too, and a second kernel adds them up."""
    shared: bool = False
    """True: the items of a group take slices of the reduction, and add them up."""
    window: bool = False
    """True: all reduce loops are written out."""

    @property
    def masked(self) -> bool:
        """Whether padding becomes a mask: operands are read where they are, at each position."""
        return not self.fetched and not self.halo

    @property
    def name(self) -> str:
        """Name of the sketch."""
        where = f"local{self.fetched}" if self.fetched else "direct"
        notes = [
            n
            for n, on in (("halo", self.halo), ("sliced", self.sliced), ("shared", self.shared))
            if on
        ]
        return ".".join(["gpu", f"v{self.lanes}", where, *notes])


def is_contraction(s: Schedule, name: str) -> bool:
    """True where some operand serves all channels: tiles of results read it once."""
    last = s.block(name).indices[-1] if s.block(name).indices else None
    return any(last not in direct_variables(i) for i in _operands(s.block(name)))


def _operands(block: Block) -> list[tuple[Expr, ...]]:
    return [load.indices for load in loads(block.value)]


def direct_variables(indices: tuple[Expr, ...]) -> set[Var]:
    """The variables of indices, but for those that only choose a group of channels."""
    grouped = {
        node.a
        for i in indices
        for node in walk(i)
        if isinstance(node, Binary) and node.op == "floordiv"
    }
    return {v for i in indices for v in variables(i) if v not in grouped}


def channel_extent(s: Schedule, name: str) -> int:
    """Channels of a result that share their inputs: all, or those of a group."""
    block = s.block(name)
    if not block.indices:
        return 1
    return channel_group(block) or evaluate_int(block.buffer.shape[-1])


def padding_of(s: Schedule, name: str) -> list[str]:
    """The stages of padding that the block alone reads."""
    return [
        b.name
        for b in blocks(s.program.body)
        if isinstance(b.value, Select) and readers(s.program, b.buffer) == [s.block(name)]
    ]


def inline_padding(s: Schedule, name: str) -> None:
    """Padding that the block alone reads becomes a mask on its reduction."""
    for stage in padding_of(s, name):
        s.compute_inline(stage)


def schedule_tile(s: Schedule, name: str, tiling: Tiling, spec: DeviceSpec) -> None:
    """The reduction `name`, its operands and its epilogue in one kernel; tile sizes are sampled.

    Raises: ScheduleError where it has no axes to tile.
    """
    indices = [i.name for i in s.block(name).indices if isinstance(i, Var)]
    if not indices or len(indices) != len(s.block(name).indices):
        raise ScheduleError(f"{name}: expected axes to tile")
    grouped = channel_group(s.block(name))
    orders = channels_last(s.block(name))
    out = epilogue_of(s, name) or s.cache_write(name)
    axes = [i.name for i in s.block(out).indices if isinstance(i, Var)]
    leading, pixels, channels = roles(s, axes, grouped)
    tile = Tile.sampled(s, pixels, channels, tiling)
    s.reorder(*leading, *tile.groups, *tile.virtual, *tile.items, *tile.registers, *tile.lanes)
    tile.bind_groups(leading)
    tile.bind_items()
    s.compute_at(name, tile.items[-1])
    if tiling.window:
        order_accumulation(s, name, tiling.lanes, window=True)
        if tiling.halo:
            _hold_padded(s, name, tile)
    else:
        _split_depth(s, name, tiling)
        accumulate(s, name, tiling, tile, orders)
    for loop in tile.registers:
        s.unroll(loop)
    if tile.lanes:
        s.vectorize(tile.lanes[0])
    limit(s, tile, spec)


def _hold_padded(s: Schedule, name: str, tile: "Tile") -> None:
    """What the window of an item's results covers is in its registers, each element read once.

    Raises: ScheduleError where the operands are not padded.
    """
    padding = padding_of(s, name)
    if not padding:
        raise ScheduleError(f"{name}: expected padding to hold in registers")
    held = tile.accumulators
    for stage in padding:
        s.compute_at(stage, tile.items[-1])
        *own, last = s.loops(stage)[-len(s.block(stage).indices) :]
        for loop in own:
            s.unroll(loop)
        s.vectorize(last)
        held = held + tile.size([*own, last])
    s.require(held <= _MOST_HELD, "what an item holds spills")


def roles(s: Schedule, axes: list[str], grouped: int | None) -> tuple[list[str], list[str], str]:
    """Loops that only number the tiles; one or two axes of pixels; the channels' axis."""
    real = [n for n in axes[:-1] if isinstance(e := s.loop(n).extent, Const) and e.value != 1]
    pixels = real[-2:]
    leading = [n for n in axes[:-1] if n not in pixels]
    leading.sort(key=lambda n: s.loop(n).extent != const(1))  # the others are fused
    channels = axes[-1]
    if grouped is not None:
        group, channels = s.split(channels, [grouped])
        leading.append(group)
    return leading, pixels, channels


@dataclass(frozen=True, slots=True)
class Tile:
    """The loops of one output tile by level."""

    s: Schedule
    groups: Sequence[str]
    virtual: Sequence[str]
    items: Sequence[str]
    registers: Sequence[str]
    lanes: Sequence[str]
    most_items: int
    """Items that the shape allows."""

    @staticmethod
    def sampled(s: Schedule, pixels: Sequence[str], channels: str, tiling: Tiling) -> "Tile":
        """The axes split into all levels; sizes are sampled.

        Pixels: groups, items, registers. Channels: groups, virtual threads, items, lanes.
        """
        groups: list[str] = []
        items: list[str] = []
        registers: list[str] = []
        most = evaluate_int(s.loop(channels).extent) // tiling.lanes
        for loop in pixels:
            most *= evaluate_int(s.loop(loop).extent)
            parts = s.split(loop, s.sample_tile(loop, 3, _MOST_REGISTER_PIXELS), "shift")
            groups.append(parts[0])
            items.append(parts[1])
            registers.append(parts[2])
        wide = [const(tiling.lanes)] if tiling.lanes > 1 else []
        sizes = s.sample_tile(channels, 3, _MOST_ITEMS, unit=tiling.lanes)
        group, virtual, item, *lanes = s.split(channels, [*sizes, *wide], "shift")
        return Tile(s, [*groups, group], [virtual], [*items, item], registers, lanes, most)

    def bind_groups(self, leading: Sequence[str]) -> None:
        """Channels along axis 0, pixels along the others; leading axes join the outermost one.

        Axis 0 takes all where leading axes alone come near what the others may have.
        """
        s = self.s
        *outer, channels = self.groups
        front = [n for n in leading if s.loop(n).extent != const(1)]
        known = prod(int(e.value) for n in front if isinstance(e := s.loop(n).extent, Const))
        chain = [*front, *outer]
        if known * _TILES_OF_IMAGE > MOST_GROUPS:
            while chain:
                channels = s.fuse(chain.pop(), channels)
        while len(chain) > 2:
            chain[:2] = [s.fuse(chain[0], chain[1])]
        s.bind(channels, "group.0")
        for number, loop in enumerate(reversed(chain)):
            s.bind(loop, f"group.{number + 1}")

    def bind_items(self) -> None:
        """The copies of an item's work, and the items: the last of their loops along axis 0."""
        for loop in self.virtual:
            self.s.bind(loop, "vthread")
        for number, loop in enumerate(reversed(self.items)):
            self.s.bind(loop, f"local.{number}")

    def size(self, loops: Sequence[str]) -> Expr:
        """The product of the loops' extents."""
        total: Expr = const(1)
        for loop in loops:
            total = total * self.s.loop(loop).extent
        return total

    @property
    def accumulators(self) -> Expr:
        """Results of one item."""
        return self.size([*self.virtual, *self.registers, *self.lanes])


def channels_last(block: Block) -> dict[str, tuple[int, ...]]:
    """For operands whose channels are not their last dimension: the order in which they are."""
    last = block.indices[-1]
    orders: dict[str, tuple[int, ...]] = {}
    for load in loads(block.value):
        found = [d for d, index in enumerate(load.indices) if last in variables(index)]
        if len(found) == 1 and found[0] != len(load.indices) - 1:
            others = [d for d in range(len(load.indices)) if d != found[0]]
            orders[load.buffer.name] = (*others, found[0])
    return orders


def depths(s: Schedule, deepest: str, tiling: Tiling) -> list[int]:
    """Steps of the deepest reduce loop between two fetches. Raises: ScheduleError for none."""
    sizes = [n for n in _DEPTHS if n % max(1, tiling.fetched) == 0 and _may_divide(s, deepest, n)]
    if not sizes:
        raise ScheduleError(f"no depth of a fetch divides the {s.loop(deepest).extent} steps")
    return sizes


def _split_depth(s: Schedule, name: str, tiling: Tiling) -> tuple[str, str]:
    """The deepest reduce loop as steps with a fetch each, and the steps between."""
    deepest = [n for n in s.loops(name) if s.loop(n).reduce][-1]
    depth = s.sample_categorical(f"depth.{name}", depths(s, deepest, tiling))
    outer, inner = s.split(deepest, [depth])
    return outer, inner


def accumulate(
    s: Schedule, name: str, tiling: Tiling, tile: Tile, orders: Mapping[str, tuple[int, ...]]
) -> None:
    """The reduction of one item: outer reduce loops, fetches, inner ones, then registers.

    Its last two reduce loops are steps with a fetch each, and the steps between.
    """
    *window, outer, inner = [n for n in s.loops(name) if s.loop(n).reduce]
    spatial = [i.name for i in s.block(name).indices if isinstance(i, Var)]
    spatial = [n for n in spatial if n in s.loops(name)]
    loops = [outer, *window] if tiling.halo else [*window, outer]
    accumulate_in_registers(s, [*loops, inner], spatial, tiling.lanes)
    hint = s.sample_categorical(f"unroll.{name}", [1, 2, 4, 8])
    s.require(s.loop(inner).extent % hint <= 0, "unrolling would leave a rest")
    s.require(tile.accumulators * hint <= _MOST_UNROLLED, "the unrolled code is too long")
    s.unroll(inner, hint)
    if tiling.fetched:
        _fetch_operands(s, name, outer, tiling, tile, orders)


def _may_divide(s: Schedule, loop: str, size: int) -> bool:
    """False where the loop's known extent is no multiple of `size`."""
    extent = s.loop(loop).extent
    return bool(variables(extent)) or evaluate_int(extent) % size == 0


def _fetch_operands(
    s: Schedule,
    name: str,
    at: str,
    tiling: Tiling,
    tile: Tile,
    orders: Mapping[str, tuple[int, ...]],
) -> None:
    """What a group reads of each operand is copied at the loop `at`, by all of its items."""
    for load in {load.buffer.name: load for load in loads(s.block(name).value)}.values():
        buffer = load.buffer
        used = {v for i in load.indices for v in variables(i)}
        if not used & {s.loop(n).var for n in s.loops(name) if s.loop(n).reduce}:
            continue
        order = orders.get(buffer.name, ()) if buffer.scope == "constant" else ()
        made = s.cache_read(buffer.name, at, "local", order) if order else _stage(s, buffer, at)
        loops = s.loops(made)[-len(buffer.shape) :]
        share(s, loops, tile, tiling.fetched)
        if order:
            s.pack(buffer.name)


def _stage(s: Schedule, buffer: Buffer, at: str) -> str:
    """The block that fills the local copy: the operand's own stage, if it is yet to be placed."""
    for block in blocks(s.program.body):
        if (
            block.buffer == buffer
            and block.reducer is None
            and buffer.scope == "global"
            and len(readers(s.program, buffer)) == 1
            and untouched(s, block.name)
        ):
            s.compute_at(block.name, at, "local")
            return block.name
    return s.cache_read(buffer.name, at, "local")


def share(s: Schedule, loops: Sequence[str], tile: Tile, lanes: int) -> None:
    """The loops of a copy spread over all items, neighbours side by side, `lanes` elements each.

    The last loop's extent is a multiple of `lanes`; items past the end of the copy do nothing.
    """
    *outer, last = loops
    if lanes > 1:
        last, vector = s.split(last, [lanes])
        s.vectorize(vector)
    flat = outer[0] if outer else last
    for loop in [*outer[1:], last] if outer else []:
        flat = s.fuse(flat, loop)
    sizes = [s.loop(n).extent for n in tile.items]
    _, *items = s.split(flat, sizes, "guard")
    for number, loop in enumerate(reversed(items)):
        s.bind(loop, f"local.{number}")


def limit(s: Schedule, tile: Tile, spec: DeviceSpec) -> None:
    """A group has items enough to hide latency, and their registers do not spill."""
    items, accumulators = tile.size(tile.items), tile.accumulators
    least = min(_LEAST_ITEMS, tile.most_items, spec.max_work_group)
    s.require(const(least) <= items, "too few items in a group")
    s.require(items <= _MOST_ITEMS, "too many items in a group")
    s.require(items * accumulators <= _REGISTER_FILE, "the group's registers spill")
    s.require(accumulators <= _MOST_ACCUMULATORS, "an item's registers spill")

"""Contractions on GPUs: tiles over groups, virtual threads, items and registers.

The items of a group fetch the operands of a tile into local memory, wait, and each of them
accumulates a small tile of results in its registers, on which the epilogue runs before they are
stored. Channels lie along local.0, so that neighbouring items store neighbouring elements; the
pixels' axes along local.1 and local.2. Without local memory of its own (Mali) a device reads
operands where they are, by vectors. Read `Contraction`, then `schedule_tile`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from retune.core.dims import is_multiple, most
from retune.core.errors import ScheduleError
from retune.core.target import MOST_GROUPS, DeviceSpec
from retune.intrinsics import Intrinsic
from retune.ir.evaluate import known_extent
from retune.ir.expr import Buffer, Const, Load, const, size_variables, variables
from retune.ir.stmt import PEEL, For, blocks
from retune.schedule.schedule import Schedule
from retune.schedule.stages import readers
from retune.targets.accumulators import accumulate_in_registers
from retune.targets.fusion import accesses, padding_of, results_of, untouched
from retune.targets.gpu.images import read_through_images
from retune.targets.gpu.plain import order_accumulation
from retune.targets.tiling import (
    GPU,
    GROUP,
    ITEM,
    LANE,
    REGISTER,
    VIRTUAL,
    TiledAxis,
    TiledLoops,
    Tiling,
    extent_of,
    fuse_all,
    write_out,
)

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
_MOST_ITEMS_OF_PACKS = 256
"""The same for packed int8x4, whose groups compute less between two waits for what they fetch, so
that several are to share a unit (H100, resnet50: 0.61 to 0.62 of float32's time; 0.67 to 0.69 with
512)."""
_DEPTHS = (1, 2, 3, 4, 7, 8, 16, 32, 64)
"""Steps of the innermost reduce axis between two fetches."""
_SHORT_DEPTHS = (8, 16, 32)
_DEEP = 16
"""The same where none of at least `_DEEP` steps divides the axis: the last fetch is short."""
_TILES_OF_IMAGE = 16
"""Tiles along the pixels' outer axis that there is to be room for beside the leading axes."""
_MOST_UNROLLED = 2048
"""Multiply-adds of straight-line code: more does not fit the instruction cache."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Operands are copied to local memory by all items of a group."""

    width: int
    """Elements that an item copies at once."""
    halo: bool = False
    """True: one fetch serves all positions of the window; False: each has a fetch of its own."""
    short: bool = False
    """True: the last fetch is shorter than the others, which do not divide the reduction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contraction:
    """The structural choices of one sketch of a reduction whose operands serve several results."""

    lanes: int
    """Neighbouring channels of one item."""
    fetch: Fetch | None = None
    """None: operands are read where they are, and padding is a mask."""
    slices: Literal["groups", "items"] | None = None
    """Who takes slices of the reduction: work-groups, whose sums a second kernel adds up, or the
    items of a group, which add them up in local memory."""
    packed: Intrinsic | None = None
    """What multiplies packs and adds their products up in each lane; None: elements are."""
    image: bool = False
    """True: constant operands are read through images."""

    @property
    def name(self) -> str:
        """Name of the sketch."""
        where = f"local{self.fetch.width}" if self.fetch else "direct"
        halo = ["halo"] if self.fetch and self.fetch.halo else []
        halo += ["short"] if self.fetch and self.fetch.short else []
        slices = {"groups": ["sliced"], "items": ["shared"], None: []}[self.slices]
        packed = ["words"] if self.packed else []
        image = ["image"] if self.image else []
        return ".".join(["gpu", f"v{self.lanes}", where, *halo, *slices, *packed, *image])


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowReduction:
    """The structural choices of one sketch of a reduction of each channel by itself."""

    lanes: int
    """Neighbouring channels of one item."""
    held: bool
    """True: items hold what the windows of their results cover in registers; False: they read it
    where it is, and padding is a mask."""
    image: bool = False
    """True: constant operands are read through images."""

    @property
    def name(self) -> str:
        """Name of the sketch."""
        halo, image = ".halo" if self.held else "", ".image" if self.image else ""
        return f"gpu.v{self.lanes}.direct{halo}{image}"


def schedule_tile(
    s: Schedule, name: str, structure: Contraction | WindowReduction, spec: DeviceSpec
) -> None:
    """The reduction `name`, its operands and its epilogue in one kernel; tile sizes are sampled.

    Raises: ScheduleError where it has no axes to tile.
    """
    stage = accesses(s, name)
    if not stage.block.indices or not stage.plain:
        raise ScheduleError(f"{name}: expected axes to tile")
    orders = stage.orders()
    if structure.image:
        read_through_images(s, stage, spec)
    out = results_of(s, name)
    axes = s.axes(out)
    leading, pixels, channels = roles(s, axes, stage.group)
    most_items = most_items_of(s, pixels, channels, structure.lanes)
    tile = tiling(pixels, channels, structure.lanes).apply(s, leading)
    bind_groups(s, tile, leading)
    tile.run(VIRTUAL, ITEM)
    s.compute_at(name, tile[ITEM][-1])
    match structure:
        case WindowReduction():
            order_accumulation(s, name, structure.lanes, window=True)
            if structure.held:
                _hold_padded(s, name, tile)
        case Contraction():
            _split_depth(s, name, structure)
            accumulate(s, name, structure, tile, orders)
    tile.run(REGISTER, LANE)
    packed = isinstance(structure, Contraction) and structure.packed is not None
    limit(s, tile, most_items, spec, packed=packed)


def tiling(pixels: Sequence[str], channels: str, lanes: int) -> Tiling:
    """Neighbouring items store neighbouring channels; virtual threads are a warp's width apart."""
    images = [TiledAxis(loop, _MOST_REGISTER_PIXELS) for loop in pixels]
    made = TiledAxis(channels, _MOST_ITEMS, lanes)
    nest = {
        GROUP: [*images, made],
        VIRTUAL: [made],
        ITEM: [*images, made],
        REGISTER: images,
    }
    return Tiling(GPU, nest | ({LANE: [made]} if lanes > 1 else {}), [*images, made])


def bind_groups(s: Schedule, tile: TiledLoops, leading: Sequence[str]) -> None:
    """Channels along axis 0, pixels along the others; leading axes join the outermost one.

    TiledAxis 0 takes all where leading axes alone come near what the others may have.
    """
    *outer, channels = tile[GROUP]
    front = [n for n in leading if s.loop(n).extent != const(1)]
    known = prod(most(e) for n in front if (e := known_extent(s.loop(n).extent)) is not None)
    chain = [*front, *outer]
    if known * _TILES_OF_IMAGE > MOST_GROUPS:
        while chain:
            channels = s.fuse(chain.pop(), channels)
    if len(chain) > 2:
        chain = [fuse_all(s, chain[:-1]), chain[-1]]
    s.bind(channels, "group.0")
    for number, loop in enumerate(reversed(chain)):
        s.bind(loop, f"group.{number + 1}")


def _hold_padded(s: Schedule, name: str, tile: TiledLoops) -> None:
    """What the window of an item's results covers is in its registers, each element read once.

    Raises: ScheduleError where the operands are not padded.
    """
    padding = padding_of(s.program, s.block(name))
    if not padding:
        raise ScheduleError(f"{name}: expected padding to hold in registers")
    held = tile.size(VIRTUAL, REGISTER, LANE)
    for stage in padding:
        s.compute_at(stage.name, tile[ITEM][-1])
        own = s.loops(stage.name)[-len(stage.indices) :]
        write_out(s, stage.name)
        held = held + extent_of(s, own)
    s.require(held <= _MOST_HELD, "what an item holds spills")


def roles(s: Schedule, axes: list[str], grouped: int | None) -> tuple[list[str], list[str], str]:
    """Loops that only number the tiles; one or two axes of pixels; the channels' axis."""
    extents = {n: known_extent(s.loop(n).extent) for n in axes[:-1]}
    real = [n for n, extent in extents.items() if extent is not None and most(extent) != 1]
    pixels = real[-2:]
    leading = [n for n in axes[:-1] if n not in pixels]
    leading.sort(key=lambda n: s.loop(n).extent != const(1))  # the others are fused
    channels = axes[-1]
    if grouped is not None:
        group, channels = s.split(channels, [grouped])
        leading.append(group)
    return leading, pixels, channels


def most_items_of(s: Schedule, pixels: Sequence[str], channels: str, lanes: int) -> int:
    """Work-items that there are results for."""
    vectors = s.likely(channels) // lanes
    return vectors * s.likely(*pixels)


def depths(s: Schedule, innermost: str, structure: Contraction) -> list[int]:
    """Steps of the innermost reduce loop between two fetches. Raises: ScheduleError for none."""
    unit = structure.fetch.width if structure.fetch else 1
    unit = max(1, unit // structure.packed.pack) if structure.packed else unit
    sizes = [n for n in _DEPTHS if n % unit == 0 and _may_divide(s, innermost, n)]
    if not sizes:
        got = s.loop(innermost).extent
        raise ScheduleError(
            f"{innermost}: expected an extent that one of {_DEPTHS} divides, got {got}"
        )
    return sizes


def _split_depth(s: Schedule, name: str, structure: Contraction) -> None:
    """The innermost reduce loop as steps with a fetch each, and the steps between.

    A short fetch at the end is apart from the others, which so have no tests.
    """
    innermost = steps_of(s, name, structure)[-1]
    short = structure.fetch is not None and structure.fetch.short
    if structure.fetch is None and size_variables(s.loop(innermost).extent):
        short = True
    sizes = short_depths(s.loop(innermost)) if short else depths(s, innermost, structure)
    depth = s.sample_categorical(f"depth.{name}", sizes)
    outer, _ = s.split(innermost, [depth], "guard" if short else "exact")
    if short:
        s.annotate(outer, PEEL, "ends")


def steps_of(s: Schedule, name: str, structure: Contraction) -> list[str]:
    """The reduce loops, without that over the elements of a pack."""
    found = s.reduce_loops(name)
    return found[:-1] if structure.packed else found


def short_depths(loop: For) -> list[int]:
    """Steps between two fetches where the last one is short; none where deep ones divide."""
    if not isinstance(loop.extent, Const):
        return list(_SHORT_DEPTHS)  # a slice, of which there are several sizes
    extent = int(loop.extent.value)
    divide = any(extent % n == 0 for n in _SHORT_DEPTHS if n >= _DEEP)
    return [] if divide else [n for n in _SHORT_DEPTHS if n < extent and extent % n]


def accumulate(
    s: Schedule,
    name: str,
    structure: Contraction,
    tile: TiledLoops,
    orders: Mapping[str, tuple[int, ...]],
) -> None:
    """The reduction of one item: outer reduce loops, fetches, inner ones, then registers.

    Its last two reduce loops are steps with a fetch each, and the steps between.
    """
    *window, outer, inner = steps_of(s, name, structure)
    near = s.loops(name)[-1] if structure.packed else ""
    spatial = s.axes(name)
    spatial = [n for n in spatial if n in s.loops(name)]
    fetch = structure.fetch
    loops = [outer, *window] if fetch and fetch.halo else [*window, outer]
    accumulate_in_registers(s, [*loops, inner], spatial, structure.lanes, near)
    hint = s.sample_categorical(f"unroll.{name}", [1, 2, 4, 8])
    s.require(s.loop(inner).extent % hint <= 0, "unrolling would leave a rest")
    accumulators = tile.size(VIRTUAL, REGISTER, LANE)
    s.require(accumulators * hint <= _MOST_UNROLLED, "the unrolled code is too long")
    s.unroll(inner, hint)
    if structure.packed:
        s.tensorize(near, structure.packed.name)
    if fetch:
        _fetch_operands(s, name, outer, fetch, tile, orders)


def _may_divide(s: Schedule, loop: str, size: int) -> bool:
    """False where the loop's known extent is not a multiple of `size`."""
    extent = known_extent(s.loop(loop).extent)
    return extent is None or is_multiple(extent, size)


def _fetch_operands(
    s: Schedule,
    name: str,
    at: str,
    fetch: Fetch,
    tile: TiledLoops,
    orders: Mapping[str, tuple[int, ...]],
) -> None:
    """What a group reads of each operand is copied at the loop `at`, by all of its items."""
    stage = accesses(s, name)
    reduce = {loop.var for loop in stage.steps}
    for buffer, operand in {o.load.buffer: o for o in stage.operands}.items():
        if not operand.moving & reduce:
            continue
        order = orders.get(buffer.name, ()) if buffer.scope == "constant" else ()
        made = s.cache_read(buffer.name, at, "local", order) if order else _stage(s, buffer, at)
        loops = s.loops(made)[-len(buffer.shape) :]
        across = () if order else _across(s, made, loops)
        ends_between = fetch.short and not order and operand.last & reduce
        share(s, across or loops, tile, 1 if across or ends_between else fetch.width)
        if order:
            s.pack(buffer.name)


def _across(s: Schedule, copy: str, loops: Sequence[str]) -> list[str]:
    """The loops in the order of what is copied, where the copy has other columns; else none.

    Neighbouring items then read neighbours, and write them apart from each other: the other way
    round each read would be of a line of its own, which costs more than a bank of local memory.
    """
    source = s.block(copy).value
    if not isinstance(source, Load) or not source.indices:
        return []
    near = {v.name for v in variables(source.indices[-1])}
    along = [n for n in loops if n in near]
    if len(along) != 1 or along[0] == loops[-1]:
        return []
    ordered = [*(n for n in loops if n not in near), *along]
    s.reorder(*ordered)
    return ordered


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


def share(s: Schedule, loops: Sequence[str], tile: TiledLoops, lanes: int) -> str:
    """The loops of a copy spread over all items, neighbours side by side, `lanes` elements each.

    The last loop's extent is a multiple of `lanes`; items past the end of the copy do nothing.
    Gives the loop over what one item copies.
    """
    *outer, last = loops
    if lanes > 1:
        last, vector = s.split(last, [lanes])
        s.vectorize(vector)
    flat = fuse_all(s, [*outer, last])
    sizes = [s.loop(n).extent for n in tile[ITEM]]
    own, *items = s.split(flat, sizes, "guard")
    for number, loop in enumerate(reversed(items)):
        s.bind(loop, f"local.{number}")
    return own


def limit(
    s: Schedule, tile: TiledLoops, most_items: int, spec: DeviceSpec, *, packed: bool = False
) -> None:
    """A group has items enough to hide latency, if there are any; their registers do not spill."""
    items, accumulators = tile.size(ITEM), tile.size(VIRTUAL, REGISTER, LANE)
    least = min(_LEAST_ITEMS, most_items, spec.max_work_group)
    s.require(const(least) <= items, "too few items in a group")
    most = _MOST_ITEMS_OF_PACKS if packed else _MOST_ITEMS
    s.require(items <= most, "too many items in a group")
    s.require(items * accumulators <= _REGISTER_FILE, "the group's registers spill")
    s.require(accumulators <= _MOST_ACCUMULATORS, "an item's registers spill")

"""Contractions of bytes or of 16-bit floats on GPUs whose warps multiply matrices (NVIDIA's
mma.sync).

A warp makes thirty-two channels of eight pixels, or a few times as many, and reads them where they
are: each item a share of the data and of the weights, which are packed for it. Local memory holds
nothing but sums, where several warps of a group take slices of the reduction; they are what fills a
device with one small image. H100, ResNet-50 at batch 1: each convolution but the first takes 0.3 to
0.9 of the time of the tiles by packs, so these are not tried where warps fit. Groups of fewer
channels are joined (`schedule.joined`), and windows of few channels read rows of pixels at once
(`schedule.strips`). Read `warp_tiles`, then `schedule_warp`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from retune.core.dims import is_fixed, least, most
from retune.core.errors import ScheduleError
from retune.core.target import DeviceSpec
from retune.intrinsics import Intrinsic
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import const
from retune.ir.stmt import Program
from retune.schedule.access import Accesses
from retune.schedule.schedule import Schedule
from retune.targets.fusion import accesses, pack_operands, results_of
from retune.targets.gpu.slices import GroupTile, sum_in_group
from retune.targets.gpu.tile import bind_groups, roles
from retune.targets.instructions import Instruction, find_instructions
from retune.targets.restated import Restatement, restate, strip_sizes
from retune.targets.tiling import (
    GROUP,
    ITEM,
    LANE,
    REGISTER,
    Level,
    TiledLoops,
    sized_tail,
    unroll_all,
)

_PIXELS = (2, 4, 8, 16)
"""Of an item."""
_VECTORS = (1, 2, 4)
"""Of channels, of an item."""
_MOST_RESULTS = 128
"""Of an item: with its shares of the operands they fit 255 registers."""
_SLICES = (2, 4, 8, 16)
"""Warps of a group that share a reduction."""
_WHOLE = 32
"""Steps that each instruction takes whole, and channels of a warp."""
_MOST_JOINED = 8
"""Groups that become one."""
_READ_BYTES = 16
"""What an item reads of a pixel at once."""
_TOGETHER = (1, 2, 4, 8)
"""Steps that are written out."""


@dataclass(frozen=True, slots=True)
class WarpTile:
    """The structural choices of one sketch."""

    instruction: Instruction
    sliced: bool
    """Whether the warps of a group take slices of the reduction; else a group is one warp."""
    forms: tuple[Restatement, ...] = ()
    """What the reduction is restated as; none: it comes in steps of an instruction as it is."""

    @property
    def is_best(self) -> bool:
        """Whether tiles of items are never faster; those that read no strips may be."""
        return all(form.name != "strips" for form in self.forms)

    @property
    def name(self) -> str:
        """Name of the sketch."""
        forms = "".join(f".{form.label}" for form in self.forms)
        return f"gpu.v{self.instruction.entry.n}.warp{forms}{'.shared' * self.sliced}"


def warp_tiles(program: Program, name: str, spec: DeviceSpec) -> list[WarpTile]:
    """The tiles for a reduction; none where the device has none, or it does not come in steps."""
    for forms in ((), *((form,) for form in _forms(accesses(Schedule(program), name)))):
        made = Schedule(program)
        try:
            restate(made, name, forms, masks=True)
        except ScheduleError:
            continue  # its channels do not lie side by side
        stage = accesses(made, name)
        found = find_instructions(stage, spec, "warp")
        instruction = next((i for i in found if _fits(stage, i.entry)), None)
        if instruction is not None:
            steps = evaluate_int(stage.steps[-1].extent) // instruction.entry.k
            both = (False, True) if any(steps % n == 0 for n in _SLICES) else (False,)
            return [WarpTile(instruction, sliced, forms) for sliced in both]
    return []


def _forms(stage: Accesses) -> Iterator[Restatement]:
    """The forms in which a reduction may come in steps of an instruction, those of fewest first."""
    sizes = [*(evaluate_int(loop.extent) for loop in stage.steps[-2:]), stage.channels]
    if len(sizes) < 3 or not all(map(is_fixed, sizes)):
        return
    _, depth, made = sizes
    if stage.group is not None:
        groups = evaluate_int(stage.block.buffer.shape[-1]) // made
        for n in range(2, _MOST_JOINED + 1):
            if groups % n == 0 and min(made, depth) * n >= _WHOLE and depth * n % _WHOLE == 0:
                yield Restatement("joined", (made * n,))
    else:
        whole = _READ_BYTES // min(o.item_bytes for o in stage.operands)
        for pixel, run in strip_sizes(stage, whole):
            yield Restatement("strips", (pixel, -(-run // _WHOLE) * _WHOLE, whole))


def _fits(stage: Accesses, entry: Intrinsic) -> bool:
    """Whether a reduction comes in steps of an instruction, and fills the tile of a warp."""
    channels = stage.channels
    depths = [evaluate_int(loop.extent) for loop in stage.steps]
    if not stage.plain or not all(map(is_fixed, (channels, *depths))):
        return False
    _, second = _items_of(entry)
    laid = all(o.constant for o in stage.operands if stage.channel in o.direct)
    if depths[-1] % entry.k or channels < second * entry.n or not laid:
        return False
    return bool(_sizes_of(entry, _pixels_of(stage)))


def _pixels_of(stage: Accesses) -> list[int]:
    """The least extents of the last two axes of pixels, or of the one that there is."""
    extents = (evaluate_int(loop.extent) for loop in stage.results[:-1])
    return [least(n) for n in extents if most(n) > 1][-2:]


def _sizes_of(entry: Intrinsic, pixels: Sequence[int]) -> list[int]:
    """How many pixels an item may have."""
    first, _ = _items_of(entry)
    match pixels:
        case [rows, columns]:
            room = rows if columns >= first else 0
        case [several]:
            room = several // first
        case _:
            room = 0
    return [n for n in _PIXELS if n % entry.m == 0 and n <= room]


def _items_of(entry: Intrinsic) -> tuple[int, int]:
    """Items of a warp along pixels, and along channels."""
    assert entry.warp is not None, "it is an instruction of warps"
    return entry.warp.first, entry.warp.second


def schedule_warp(s: Schedule, name: str, structure: WarpTile) -> None:
    """The reduction `name` under the tiles of its epilogue; tile sizes are sampled."""
    entry = structure.instruction.entry
    if structure.sliced:
        _schedule_slices(s, name, entry)
        return
    grouped = accesses(s, name).group
    out = results_of(s, name)
    sizes = _tile_sizes(s, out, entry, grouped)
    pairs = zip(sizes.loops, sizes.parts, strict=True)
    parts = [s.split(loop, n, sized_tail(s, loop, "fill")) for loop, n in pairs]
    loops = _levels(parts)
    s.reorder(*sizes.leading, *(n for level in loops.values() for n in level))
    tile = TiledLoops(s, loops)
    bind_groups(s, tile, sizes.leading)
    tile.run(ITEM)
    s.split(_innermost(s, name), [entry.k])
    s.compute_at(name, tile[ITEM][-1])
    _accumulate(s, name, sizes, entry)
    tile.run(REGISTER, LANE)


def _tile_sizes(s: Schedule, out: str, entry: Intrinsic, grouped: int | None) -> GroupTile:
    axes = s.axes(out)
    leading, pixels, channels = roles(s, axes, grouped)
    first, second = _items_of(entry)
    fit = _sizes_of(entry, [least(s.extent(n)) for n in pixels])
    held = s.sample_categorical(f"pixels.{out}", fit)
    extent = s.extent(channels)
    vectors = [n for n in _VECTORS if n * second * entry.n <= extent]
    wide = const(1) if grouped else s.sample_categorical(f"vectors.{out}", vectors)
    s.require(held * wide * entry.n <= _MOST_RESULTS, "an item's registers spill")
    parts = [[held], [first]] if len(pixels) > 1 else [[first, held]]
    return GroupTile(
        leading=leading,
        loops=[*pixels, channels],
        parts=[*parts, [second, wide, entry.n]],
        lanes=entry.n,
        rows=axes.index(pixels[0]) - len(axes),
        filled=True,
    )


def _levels(parts: Sequence[Sequence[str]]) -> dict[Level, list[str]]:
    """The loops of a tile by level: items along pixels are the innermost ones, those along channels
    around them."""
    *pixels, (group, item, vector, lane) = parts
    if len(pixels) > 1:
        (outer, held), (column, near) = pixels
        groups = [outer, column]
    else:
        ((outer, near, held),) = pixels
        groups = [outer]
    return {GROUP: [*groups, group], ITEM: [item, near], REGISTER: [held, vector], LANE: [lane]}


def _accumulate(s: Schedule, name: str, sizes: GroupTile, entry: Intrinsic) -> None:
    """The reduction of a warp: steps around the registers of its items, the instruction inside.

    Its last two reduce loops are steps, and the products of one.
    """
    loops = s.loops(name)
    *window, deep, products = [n for n in loops if s.loop(n).reduce]
    axes = s.axes(name)
    held, channels = axes[sizes.rows], axes[-1]
    others = [n for n in axes if n in loops and n not in (held, channels)]
    packs, *near = s.split(products, [entry.pack]) if entry.pack > 1 else [products]
    held, row = s.split(held, [entry.m])
    vector, lane = s.split(channels, [entry.n])
    s.reorder(*window, deep, *others, held, vector, row, packs, lane, *near)
    together = s.sample_categorical(f"unroll.{name}", _TOGETHER)
    s.require(s.loop(deep).extent % together <= 0, "unrolling would leave a rest")
    s.unroll(deep, together)
    unroll_all(s, [*others, held, vector])
    s.tensorize(row, entry.name)
    pack_operands(s, name)


def _innermost(s: Schedule, name: str) -> str:
    return s.reduce_loops(name)[-1]


def _schedule_slices(s: Schedule, name: str, entry: Intrinsic) -> None:
    """Slices along local.2, whose sums are added up in local memory by all items."""
    innermost, grouped = _innermost(s, name), accesses(s, name).group
    steps = s.extent(innermost) // entry.k
    lengths = [steps // n for n in _SLICES if steps % n == 0]
    length = s.sample_categorical(f"slice.{name}", lengths)
    slices, _, _ = s.split(innermost, [length, entry.k])
    sum_in_group(
        s,
        name,
        slices,
        size=lambda out: _tile_sizes(s, out, entry, grouped),
        items=lambda stored, sizes: _items(s, stored, sizes),
        accumulate=lambda part, sizes, _: _accumulate(s, part, sizes, entry),
    )


def _items(s: Schedule, stored: str, sizes: GroupTile) -> TiledLoops:
    """The partial sums of a group's tile by slices and items."""
    slices, *axes = s.axes(stored)
    own = axes[len(axes) - len(sizes.loops) :]
    parts = [s.split(loop, n) for loop, n in zip(own, sizes.parts, strict=True)]
    loops = _levels(parts)
    whole = loops.pop(GROUP)
    loops[ITEM] = [slices, *loops[ITEM]]
    s.reorder(
        *axes[: len(axes) - len(own)], *whole, *(n for level in loops.values() for n in level)
    )
    tile = TiledLoops(s, loops)
    tile.run(ITEM)
    return tile

"""Contractions of bytes on GPUs whose warps multiply matrices (NVIDIA's mma.sync).

A warp makes thirty-two channels of eight pixels, or a few times as many, and reads bytes where they
are: each item a share of the data and of the weights, which are packed for it. Local memory holds
nothing but sums, where several warps of a group take slices of the reduction; they are what fills a
device with one small image. H100, ResNet-50 at batch 1: each convolution but the first takes 0.3 to
0.9 of the time of the tiles by packs, so these are not tried where warps fit. Read `warp_tiles`,
then `schedule_warp`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from retune.core.target import DeviceSpec
from retune.intrinsics import Intrinsic
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Expr, Var, const
from retune.schedule.access import Accesses
from retune.schedule.schedule import Schedule
from retune.targets.fusion import pack_operands, results_of
from retune.targets.gpu.plain import order_accumulation
from retune.targets.gpu.tile import bind_groups, roles, share
from retune.targets.instructions import Instruction, find_instruction
from retune.targets.tiling import GROUP, ITEM, LANE, REGISTER, Level, LoopNest

_MOST_PIXELS = 8
"""Of an item."""
_MOST_VECTORS = 2
"""Of channels, of an item."""
_SLICES = (2, 4, 8, 16)
"""Warps of a group that share a reduction."""
_TOGETHER = (1, 2, 4, 8)
"""Steps that are written out."""


@dataclass(frozen=True, slots=True)
class WarpTile:
    """The structural choices of one sketch."""

    instruction: Instruction
    sliced: bool
    """Whether the warps of a group take slices of the reduction; else a group is one warp."""

    @property
    def name(self) -> str:
        """Name of the sketch."""
        return f"gpu.v{self.instruction.entry.n}.warp{'.shared' * self.sliced}"


def warp_tiles(stage: Accesses, spec: DeviceSpec) -> list[WarpTile]:
    """The tiles for a reduction; none where the device has none, or it does not come in steps."""
    instruction = find_instruction(stage, spec, "warp")
    if instruction is None:
        return []
    entry = instruction.entry
    first, second = _items_of(entry)
    *pixels, channels = (evaluate_int(loop.extent) for loop in stage.results)
    steps, rest = divmod(evaluate_int(stage.steps[-1].extent), entry.k)
    match [n for n in pixels if n > 1]:
        case [*_, rows, columns]:
            fit = rows >= entry.m and columns >= first
        case [several]:
            fit = several >= entry.m * first
        case _:
            fit = False
    if rest or not fit or not stage.plain or stage.group is not None:
        return []
    if channels % (second * entry.n):
        return []
    slices = any(steps % n == 0 for n in _SLICES)
    return [WarpTile(instruction, sliced) for sliced in ((False, True) if slices else (False,))]


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
    out = results_of(s, name)
    sizes = _tile_sizes(s, out, entry)
    parts = [s.split(loop, n, "shift") for loop, n in zip(sizes.loops, sizes.parts, strict=True)]
    loops = _levels(parts)
    s.reorder(*sizes.leading, *(n for level in loops.values() for n in level))
    tile = LoopNest(s, loops)
    bind_groups(s, tile, sizes.leading)
    tile.run(ITEM)
    s.split(_deepest(s, name), [entry.k])
    s.compute_at(name, tile[ITEM][-1])
    _accumulate(s, name, sizes, entry)
    tile.run(REGISTER, LANE)


@dataclass(frozen=True, slots=True)
class _TileSizes:
    """How results are cut: outer pixels if there are two axes of them, pixels, channels."""

    leading: Sequence[str]
    """Loops that only number the tiles."""
    loops: Sequence[str]
    parts: Sequence[Sequence[Expr | int]]
    """Of each loop, inside the tile's: items and registers, and the lanes of channels."""
    rows: int
    """Which index, counted from the last one, has the rows of the instruction."""


def _tile_sizes(s: Schedule, out: str, entry: Intrinsic) -> _TileSizes:
    axes = [i.name for i in s.block(out).indices if isinstance(i, Var)]
    leading, pixels, channels = roles(s, axes, None)
    first, second = _items_of(entry)
    extent, least = evaluate_int(s.loop(pixels[0]).extent), 1 if len(pixels) > 1 else first
    most = [n for n in range(entry.m, _MOST_PIXELS + 1, entry.m) if n * least <= extent and n != 6]
    held = s.sample_categorical(f"pixels.{out}", most)
    extent = evaluate_int(s.loop(channels).extent)
    vectors = [n for n in range(1, _MOST_VECTORS + 1) if n * second * entry.n <= extent]
    wide = s.sample_categorical(f"vectors.{out}", vectors)
    parts = [[held], [first]] if len(pixels) > 1 else [[first, held]]
    rows = axes.index(pixels[0]) - len(axes)
    return _TileSizes(leading, [*pixels, channels], [*parts, [second, wide, entry.n]], rows)


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


def _accumulate(s: Schedule, name: str, sizes: _TileSizes, entry: Intrinsic) -> None:
    """The reduction of a warp: steps around the registers of its items, the instruction inside.

    Its last two reduce loops are steps, and the products of one.
    """
    loops = s.loops(name)
    *window, deep, products = [n for n in loops if s.loop(n).reduce]
    axes = [i.name for i in s.block(name).indices if isinstance(i, Var)]
    held, channels = axes[sizes.rows], axes[-1]
    others = [n for n in axes if n in loops and n not in (held, channels)]
    packs, near = s.split(products, [entry.pack])
    held, row = s.split(held, [entry.m])
    vector, lane = s.split(channels, [entry.n])
    s.reorder(*window, deep, *others, held, vector, row, packs, lane, near)
    together = s.sample_categorical(f"unroll.{name}", _TOGETHER)
    s.require(s.loop(deep).extent % together <= 0, "unrolling would leave a rest")
    s.unroll(deep, together)
    for loop in (*others, held, vector):
        s.unroll(loop)
    s.tensorize(row, entry.name)
    pack_operands(s, name)


def _deepest(s: Schedule, name: str) -> str:
    return [n for n in s.loops(name) if s.loop(n).reduce][-1]


def _schedule_slices(s: Schedule, name: str, entry: Intrinsic) -> None:
    """Slices along local.2, whose sums are added up in local memory by all items."""
    deepest = _deepest(s, name)
    steps = evaluate_int(s.loop(deepest).extent) // entry.k
    lengths = [steps // n for n in _SLICES if steps % n == 0]
    length = s.sample_categorical(f"slice.{name}", lengths)
    slices, _, _ = s.split(deepest, [length, entry.k])
    part = s.rfactor(name, slices, 0)
    stored = s.cache_write(part)
    out = results_of(s, name)
    sizes = _tile_sizes(s, out, entry)
    groups, results, lane = _cut(s, sizes)
    s.compute_at(name, results[-1])
    s.compute_at(stored, groups[-1], "local")
    tile = _items(s, stored, sizes)
    s.compute_at(part, tile[ITEM][-1])
    _accumulate(s, part, sizes, entry)
    tile.run(REGISTER)
    order_accumulation(s, name, entry.n, window=False)
    s.vectorize(lane)
    tile.run(LANE)
    share(s, results, tile, 1)


def _cut(s: Schedule, sizes: _TileSizes) -> tuple[list[str], list[str], str]:
    """The output in tiles of a group: loops over groups and over results, and that over lanes."""
    parts: list[list[str]] = []
    for loop, inside in zip(sizes.loops, sizes.parts, strict=True):
        lanes = list(inside[-1:]) if loop == sizes.loops[-1] else []
        size = const(1)
        for n in inside[: len(inside) - len(lanes)]:
            size = size * n
        parts.append(s.split(loop, [size, *lanes], "shift"))
    groups, results = [p[0] for p in parts], [p[1] for p in parts]
    lane = parts[-1][-1]
    s.reorder(*sizes.leading, *groups, *results, lane)
    bind_groups(s, LoopNest(s, {GROUP: groups}), sizes.leading)
    return groups, results, lane


def _items(s: Schedule, stored: str, sizes: _TileSizes) -> LoopNest:
    """The partial sums of a group's tile by slices and items."""
    slices, *axes = [i.name for i in s.block(stored).indices if isinstance(i, Var)]
    own = axes[len(axes) - len(sizes.loops) :]
    parts = [s.split(loop, n) for loop, n in zip(own, sizes.parts, strict=True)]
    loops = _levels(parts)
    whole = loops.pop(GROUP)
    loops[ITEM] = [slices, *loops[ITEM]]
    s.reorder(
        *axes[: len(axes) - len(own)], *whole, *(n for level in loops.values() for n in level)
    )
    tile = LoopNest(s, loops)
    tile.run(ITEM)
    return tile

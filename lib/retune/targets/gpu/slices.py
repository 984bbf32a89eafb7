"""Reductions in slices, for layers whose results alone leave a GPU idle.

`slice_over_groups` gives slices to work-groups, and a second kernel adds their sums up.
`schedule_shared` gives them to the items of one group, which add up in local memory: that saves
the second launch and the way of the sums through global memory, and costs local memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from retune.core.dims import is_fixed
from retune.core.errors import ScheduleError
from retune.core.target import DeviceSpec
from retune.ir.expr import Expr, const
from retune.schedule.schedule import Schedule
from retune.targets.fusion import accesses, results_of
from retune.targets.gpu.plain import order_accumulation
from retune.targets.gpu.tile import (
    Contraction,
    accumulate,
    bind_groups,
    depths,
    limit,
    most_items_of,
    roles,
    share,
    steps_of,
)
from retune.targets.tiling import (
    GROUP,
    ITEM,
    LANE,
    REGISTER,
    VIRTUAL,
    TiledLoops,
    fuse_all,
    sized_tail,
)

_SLICES = (2, 4, 8, 16, 32)
_SHARED_SLICES = (2, 4, 8)
"""Slices among the items of one group: each has partial sums in local memory."""
_LEAST_SLICE = 32
"""Steps of a slice at least, where slices are of all reduce loops."""
_LEAST_OF_SHORT = 64
"""Steps of a slice at least, where the last fetch is short: several others are to be before it."""
_MOST_SLICED_RESULTS = 1 << 13
"""Results above which such slices are not worth a second kernel: groups of a warp fill a device."""
_MOST_ROWS = 8
_MOST_VECTORS = 64


def slice_over_groups(s: Schedule, name: str, structure: Contraction) -> str:
    """The reduction as partial sums over slices of its innermost reduce axis, then their sum.

    Gives the new stage, which makes the partial sums; `name` adds them up in a kernel of its own.
    The number of slices is sampled. Raises: ScheduleError if none divides the axis.
    """
    innermost = steps_of(s, name, structure)[-1]
    extent = s.extent(innermost)
    if not is_fixed(extent):
        raise ScheduleError(f"slices of {name}: {extent} steps have no divisor for all sizes")
    least = _LEAST_OF_SHORT if structure.fetch and structure.fetch.short else 1
    sizes = [extent // n for n in _SLICES if extent % n == 0 and extent // n >= least]
    if not sizes:
        raise ScheduleError(f"slices of {name}: {extent} steps have no divisor among {_SLICES}")
    slices, _ = s.split(innermost, [s.sample_categorical(f"slice.{name}", sizes)])
    return s.rfactor(name, slices, 0)


def slice_sizes(s: Schedule, name: str) -> list[int]:
    """Steps of a slice of all reduce loops, for each number of slices that leaves enough of them.

    None where the results are work enough for a device.
    """
    loops = [(s.loop(n).reduce, s.likely(n)) for n in s.loops(name)]
    results = prod(extent for reduce, extent in loops if not reduce)
    steps = prod(extent for reduce, extent in loops if reduce)
    if results > _MOST_SLICED_RESULTS:
        return []
    return [-(-steps // n) for n in _SLICES if n * _LEAST_SLICE <= steps]


def slice_all_steps(s: Schedule, name: str, size: Expr | int) -> str:
    """The reduction as partial sums over slices of `size` of all its steps, then their sum.

    As `slice_over_groups`; slices need not be equal.
    """
    whole = fuse_all(s, s.reduce_loops(name))
    slices, _ = s.split(whole, [size], "guard")
    return s.rfactor(name, slices, 0)


def schedule_shared(s: Schedule, name: str, structure: Contraction, spec: DeviceSpec) -> None:
    """The reduction in one kernel, its items in slices along local.2; tile sizes are sampled.

    Raises: ScheduleError where channels come in groups, or no slices divide the reduction.
    """
    stage = accesses(s, name)
    if stage.group is not None or len(stage.block.indices) < 2:
        raise ScheduleError(f"slices of {name}: expected pixels and channels in one group")
    orders = stage.orders()
    innermost = steps_of(s, name, structure)[-1]
    slices = s.sample_categorical(f"slices.{name}", _SHARED_SLICES)
    depth = s.sample_categorical(f"depth.{name}", depths(s, innermost, structure))
    _, sliced, _ = s.split(innermost, [slices, depth])
    cut, tile = sum_in_group(
        s,
        name,
        sliced,
        size=lambda out: _group_tile(s, out, structure),
        items=lambda stored, cut: _items(s, stored, cut),
        accumulate=lambda part, _, tile: accumulate(s, part, structure, tile, orders),
    )
    limit(s, tile, cut.most_items, spec, packed=structure.packed is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTile:
    """How results are cut into tiles of a group; sizes are sampled."""

    leading: Sequence[str]
    """Loops that only number the tiles."""
    loops: Sequence[str]
    """Those of pixels, and at last that of channels."""
    parts: Sequence[Sequence[Expr | int]]
    """Of each loop, inside the group's tile: items and registers, outer levels first."""
    lanes: int
    """Neighbouring channels of one item: 1, or the last part of the channels' loop."""
    rows: int = 0
    """Which index, counted from the last one, has the first loop."""
    filled: bool = False
    """Whether no tile is longer than its axis, whatever sizes that depends on."""
    most_items: int = 0
    """Work-items that there are results for."""


def sum_in_group(
    s: Schedule,
    name: str,
    slices: str,
    *,
    size: Callable[[str], GroupTile],
    items: Callable[[str, GroupTile], TiledLoops],
    accumulate: Callable[[str, GroupTile, TiledLoops], None],
) -> tuple[GroupTile, TiledLoops]:
    """Slices of the reduction, the loop `slices`, are items, and added up in local memory by all.

    `size` cuts the stage that has the results, `items` gives partial sums to items, `accumulate`
    makes those of one item.
    """
    part = s.rfactor(name, slices, 0)
    stored = s.cache_write(part)
    cut = size(results_of(s, name))
    groups, results, lanes = _cut(s, cut)
    s.compute_at(name, results[-1])
    s.compute_at(stored, groups[-1], "local")
    tile = items(stored, cut)
    s.compute_at(part, tile[ITEM][-1])
    accumulate(part, cut, tile)
    tile.run(REGISTER)
    order_accumulation(s, name, cut.lanes, window=False)
    for loop in lanes:
        s.vectorize(loop)
    tile.run(LANE)
    share(s, results, tile, 1)
    return cut, tile


def _cut(s: Schedule, cut: GroupTile) -> tuple[list[str], list[str], list[str]]:
    """The output in tiles of a group: loops over groups, over results, and over vector lanes."""
    parts: list[list[str]] = []
    for loop, inside in zip(cut.loops, cut.parts, strict=True):
        lanes = list(inside[-1:]) if cut.lanes > 1 and loop == cut.loops[-1] else []
        size = const(1)
        for n in inside[: len(inside) - len(lanes)]:
            size = size * n
        tail = sized_tail(s, loop, "fill" if cut.filled else "shift")
        parts.append(s.split(loop, [size, *lanes], tail))
    groups, results, lane = [p[0] for p in parts], [p[1] for p in parts], parts[-1][2:]
    s.reorder(*cut.leading, *groups, *results, *lane)
    bind_groups(s, TiledLoops(s, {GROUP: groups}), cut.leading)
    return groups, results, lane


def _group_tile(s: Schedule, out: str, structure: Contraction) -> GroupTile:
    """Items by columns and channels, registers by rows and columns, virtual threads by channels."""
    leading, pixels, channels = roles(s, s.axes(out), None)
    if not pixels:
        raise ScheduleError(f"{out}: expected pixels beside channels")
    most = most_items_of(s, pixels[-1:], channels, structure.lanes)
    rows = [s.sample_tile(pixels[0], 2, _MOST_ROWS)] if len(pixels) > 1 else []
    columns = s.sample_tile(pixels[-1], 3, _MOST_ROWS)
    vectors = s.sample_tile(channels, 3, _MOST_VECTORS, unit=structure.lanes)
    if any(s.likely(n) != 1 for n in leading):
        raise ScheduleError(f"{out}: shared slices are for one image")
    wide = [const(structure.lanes)] if structure.lanes > 1 else []
    return GroupTile(
        leading=leading,
        loops=[*pixels, channels],
        parts=[*rows, columns, [*vectors, *wide]],
        lanes=structure.lanes,
        most_items=most,
    )


def _items(s: Schedule, stored: str, cut: GroupTile) -> TiledLoops:
    """The partial sums of a group's tile by slices, columns and channels, which run as items."""
    slices, *axes = s.axes(stored)
    *others, channels = axes[-len(cut.loops) :]
    units = axes[: -len(cut.loops)]
    column, register = s.split(others[-1], cut.parts[-2][1:])
    virtual, item, *lanes = s.split(channels, cut.parts[-1][1:])
    registers = [*others[:-1], register]
    items = [slices, column, item]
    tile = TiledLoops(s, {VIRTUAL: [virtual], ITEM: items, REGISTER: registers, LANE: lanes})
    s.reorder(*units, *tile[VIRTUAL], *tile[ITEM], *registers, *lanes)
    tile.run(VIRTUAL, ITEM)
    return tile

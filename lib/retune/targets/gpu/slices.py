"""Reductions in slices, for layers whose results alone leave a GPU idle.

`slice_over_groups` gives slices to work-groups, and a second kernel adds their sums up.
`schedule_shared` gives them to the items of one group, which add up in local memory: that saves
the second launch and the way of the sums through global memory, and costs local memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from retune.core.errors import ScheduleError
from retune.core.target import DeviceSpec
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Expr, Var, const
from retune.schedule.schedule import Schedule
from retune.targets.fusion import accesses, results_of
from retune.targets.gpu.plain import order_accumulation
from retune.targets.gpu.tile import (
    Contraction,
    accumulate,
    depths,
    limit,
    most_items_of,
    roles,
    share,
    steps_of,
)
from retune.targets.tiling import GROUP, ITEM, LANE, REGISTER, VIRTUAL, LoopNest

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
    """The reduction as partial sums over slices of its deepest reduce axis, then their sum.

    Gives the new stage, which makes the partial sums; `name` adds them up in a kernel of its own.
    The number of slices is sampled. Raises: ScheduleError if none divides the axis.
    """
    deepest = steps_of(s, name, structure)[-1]
    extent = evaluate_int(s.loop(deepest).extent)
    least = _LEAST_OF_SHORT if structure.fetch and structure.fetch.short else 1
    sizes = [extent // n for n in _SLICES if extent % n == 0 and extent // n >= least]
    if not sizes:
        raise ScheduleError(f"slices of {name}: {extent} steps have no divisor among {_SLICES}")
    slices, _ = s.split(deepest, [s.sample_categorical(f"slice.{name}", sizes)])
    return s.rfactor(name, slices, 0)


def slice_sizes(s: Schedule, name: str) -> list[int]:
    """Steps of a slice of all reduce loops, for each number of slices that leaves enough of them.

    None where the results are work enough for a device.
    """
    loops = [(s.loop(n).reduce, evaluate_int(s.loop(n).extent)) for n in s.loops(name)]
    results = prod(extent for reduce, extent in loops if not reduce)
    steps = prod(extent for reduce, extent in loops if reduce)
    if results > _MOST_SLICED_RESULTS:
        return []
    return [-(-steps // n) for n in _SLICES if n * _LEAST_SLICE <= steps]


def slice_all_steps(s: Schedule, name: str, size: Expr | int) -> str:
    """The reduction as partial sums over slices of `size` of all its steps, then their sum.

    As `slice_over_groups`; slices need not be equal.
    """
    whole, *others = [n for n in s.loops(name) if s.loop(n).reduce]
    for loop in others:
        whole = s.fuse(whole, loop)
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
    deepest = steps_of(s, name, structure)[-1]
    slices = s.sample_categorical(f"slices.{name}", _SHARED_SLICES)
    depth = s.sample_categorical(f"depth.{name}", depths(s, deepest, structure))
    _, sliced, _ = s.split(deepest, [slices, depth])
    part = s.rfactor(name, sliced, 0)
    stored = s.cache_write(part)
    out = results_of(s, name)
    sizes = _sizes(s, out, structure)
    groups, results, lanes = _cut(s, out, sizes, structure)
    s.compute_at(name, results[-1])
    s.compute_at(stored, groups[-1], "local")
    tile = _items(s, stored, groups, sizes, structure)
    s.compute_at(part, tile[ITEM][-1])
    accumulate(s, part, structure, tile, orders)
    tile.run(REGISTER)
    order_accumulation(s, name, structure.lanes, window=False)
    for loop in lanes:
        s.vectorize(loop)
    tile.run(LANE)
    share(s, results, tile, 1)
    limit(s, tile, sizes.most_items, spec, packed=structure.packed is not None)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Sampled sizes of a group's tile, outer levels first."""

    pixels: Sequence[str]
    channels: str
    rows: Sequence[Expr]
    """Registers, if there are two axes of pixels."""
    columns: Sequence[Expr]
    """Items, registers."""
    vectors: Sequence[Expr]
    """Virtual threads, items."""
    most_items: int


def _sizes(s: Schedule, out: str, structure: Contraction) -> _Sizes:
    axes = [i.name for i in s.block(out).indices if isinstance(i, Var)]
    _, pixels, channels = roles(s, axes, None)
    if not pixels:
        raise ScheduleError(f"{out}: expected pixels beside channels")
    most = most_items_of(s, pixels[-1:], channels, structure.lanes)
    return _Sizes(
        pixels,
        channels,
        s.sample_tile(pixels[0], 2, _MOST_ROWS) if len(pixels) > 1 else [],
        s.sample_tile(pixels[-1], 3, _MOST_ROWS),
        s.sample_tile(channels, 3, _MOST_VECTORS, unit=structure.lanes),
        most,
    )


def _cut(
    s: Schedule, out: str, sizes: _Sizes, structure: Contraction
) -> tuple[list[str], list[str], list[str]]:
    """The output in tiles of a group: loops over groups, over results, and over vector lanes."""
    leading = [n for n in s.loops(out) if n not in (*sizes.pixels, sizes.channels)]
    if any(s.loop(n).extent != const(1) for n in leading):
        raise ScheduleError(f"{out}: shared slices are for one image")
    extents = [*sizes.rows, sizes.columns[0] * sizes.columns[1]]
    parts = [
        s.split(loop, [extent], "shift") for loop, extent in zip(sizes.pixels, extents, strict=True)
    ]
    vectors = sizes.vectors[0] * sizes.vectors[1]
    wide = [const(structure.lanes)] if structure.lanes > 1 else []
    group, result, *lanes = s.split(sizes.channels, [vectors, *wide], "shift")
    groups = [*(p[0] for p in parts), group]
    results = [*(p[1] for p in parts), result]
    s.reorder(*leading, *groups, *results, *lanes)
    for number, loop in enumerate(reversed(groups)):
        s.bind(loop, f"group.{number}")
    return groups, results, lanes


def _items(
    s: Schedule, stored: str, groups: Sequence[str], sizes: _Sizes, structure: Contraction
) -> LoopNest:
    """The partial sums of a group's tile by slices, columns and channels, which run as items."""
    slices, *axes = [i.name for i in s.block(stored).indices if isinstance(i, Var)]
    channels = axes[-1]
    pixels = axes[-1 - len(sizes.pixels) : -1]
    units = axes[: -1 - len(sizes.pixels)]
    column, register = s.split(pixels[-1], [sizes.columns[1]])
    wide = [const(structure.lanes)] if structure.lanes > 1 else []
    virtual, item, *lanes = s.split(channels, [sizes.vectors[1], *wide])
    registers = [*pixels[:-1], register]
    loops = {
        GROUP: groups, VIRTUAL: [virtual], ITEM: [slices, column, item], REGISTER: registers,
        LANE: lanes,
    }  # fmt: skip
    tile = LoopNest(s, loops)
    s.reorder(*units, *tile[VIRTUAL], *tile[ITEM], *registers, *lanes)
    tile.run(VIRTUAL, ITEM)
    return tile

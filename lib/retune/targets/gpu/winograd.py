"""Winograd convolution on GPUs: three kernels, whose scratch between them stays in the cache.

The first transforms the inputs, an item for each tile and some of its channels. The second is a
batch of matrix products, one for each factor of a tile, tiled over groups, items and registers as
any contraction is (`tile`). The third transforms the products to outputs and runs the epilogue
on them. Weights are transformed at compile time. Read `schedule_winograd`.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from math import inf, prod

from retune.core.dims import example
from retune.core.target import DeviceSpec
from retune.ir.stmt import Program
from retune.schedule.schedule import Schedule
from retune.schedule.space import Family, Rule
from retune.schedule.winograd import WinogradConvolution
from retune.targets.gpu.limits import keep_to_limits
from retune.targets.gpu.plain import flat_items
from retune.targets.gpu.slices import slice_over_groups
from retune.targets.gpu.tile import FETCHED_LANES, Contraction, Fetch, schedule_tile
from retune.targets.tiling import made_loops, unroll_all, write_out
from retune.targets.transforms import (
    Rewritten,
    rewritten,
    split_inputs,
    split_pixels,
    transform_inputs,
    winograd_families,
)

PREFIX = "gpu.winograd"
"""What the names of these sketches start with; the size of an output tile follows."""
_LEAST_SLICE = 64
"""Channels of one slice of the products at least: a slice is written, and read again."""
_MOST_SLICES = 8
"""Slices at most: the products of a tile are work for many groups already."""
_MOST_PRODUCTS = 1 << 21
"""Products above which a device has enough to do without slices of them."""
_LANES = 4
_MOST_REGISTERS = 80
"""Numbers of a tile that an item holds: more would leave a compute unit few items."""
_GROUPS = (32, 64, 128, 256)
"""Work-items of a group of the transforms."""
_ITEMS_PER_UNIT = 512
"""Work-items that keep a compute unit's memory busy, each with the reads of a whole tile."""


def gpu_winograd_families(
    program: Program, spec: DeviceSpec, max_error: float = inf
) -> tuple[Family, ...]:
    """Sketches for each tile size, if the program's only reduction is a convolution that fits."""

    def named(found: WinogradConvolution, m: int, stored: bool) -> Iterator[tuple[str, Rule]]:
        for structure in () if stored else _structures(found, m, spec):
            rule = partial(schedule_winograd, m=m, structure=structure, spec=spec)
            yield name_of(m, structure), rule

    return winograd_families(program, named, max_error)


def name_of(m: int, structure: Contraction) -> str:
    """Name of the sketch: gpu.winograd4.local4.sliced, say."""
    return structure.name.replace(f"gpu.v{structure.lanes}", f"{PREFIX}{m}")


def _structures(found: WinogradConvolution, m: int, spec: DeviceSpec) -> Iterator[Contraction]:
    """The structures of the batch of products that are worth trying."""
    made, depth = found.extents[found.made], found.extents[found.depth]
    lanes = _LANES if made % _LANES == 0 else 1
    near = spec.local_memory_bytes and depth % FETCHED_LANES == 0
    fetch = Fetch(FETCHED_LANES) if near else None
    yield Contraction(lanes=lanes, fetch=fetch)
    sizes = found.tile(m)
    extents = {dim: example(found.extents[found.axis(dim)]) for dim in sizes}
    tiles = prod(-(-extents[dim] // size) for dim, size in sizes.items())
    points = prod(m + taps - 1 for taps in found.taps)
    if depth >= 2 * _LEAST_SLICE and points * tiles * made <= _MOST_PRODUCTS:
        yield Contraction(lanes=lanes, fetch=fetch, slices="groups")


def schedule_winograd(s: Schedule, m: int, structure: Contraction, spec: DeviceSpec) -> None:
    """Schedules every stage; only the tile sizes of the products are sampled.

    for tile, channels c:  factors[all u, v] = ...          data and rows in registers
    for u, v:              product[u, v, tiles, f] = ...    as `schedule_tile` does
    for tile, channels f:  out[m x m pixels] = ...          columns and outputs in registers
    """
    conv = rewritten(s, m)
    axes, own = len(conv.inputs), s.loops(conv.inputs[-1])
    loops = split_inputs(s, conv, _lanes(s, own[:axes], own[axes:], spec))
    transform_inputs(s, conv, loops[-1])
    _spread(s, loops, spec)
    if structure.slices == "groups":
        schedule_tile(s, _sliced(s, conv.product, structure), structure, spec)
    else:
        schedule_tile(s, conv.product, structure, spec)
    _spread(s, _transform_outputs(s, conv, spec, sliced=structure.slices == "groups"), spec)
    keep_to_limits(s, spec)


def _lanes(s: Schedule, tile: Sequence[str], others: Sequence[str], spec: DeviceSpec) -> int:
    """Neighbouring channels of one item: its registers hold them, and no unit is left idle."""
    held = s.likely(*tile)
    size = s.likely(*others)
    channels = s.extent(others[-1])
    fit = [
        n
        for n in (_LANES, _LANES // 2)
        if channels % n == 0
        and held * n <= _MOST_REGISTERS
        and size >= n * _ITEMS_PER_UNIT * spec.compute_units
    ]
    return fit[0] if fit else 1


def _spread(s: Schedule, loops: Sequence[str], spec: DeviceSpec) -> None:
    """The loops as work-items in groups so small that every unit has some, but at least a warp."""
    size = s.likely(*loops)
    fit = [n for n in _GROUPS if size >= n * spec.compute_units]
    flat_items(s, loops, spec, max(fit, default=_GROUPS[0]))


def _sliced(s: Schedule, product: str, structure: Contraction) -> str:
    """The products of a few slices of the channels, which the stage itself adds up."""
    part = slice_over_groups(s, product, structure)
    (slices,) = s.reduce_loops(product)
    s.require(s.loop(slices).extent <= _MOST_SLICES, "adding the slices up takes too long")
    return part


def _transform_outputs(
    s: Schedule, conv: Rewritten, spec: DeviceSpec, *, sliced: bool
) -> list[str]:
    """The last stage by tiles and vectors of channels, whose pixels are written out.

    Gives the loops over tiles and vectors.
    """
    items, pixels, made = split_pixels(s, conv)
    items.append(made)
    lanes = _lanes(s, pixels, items, spec)
    items[-1], lane = s.split(items[-1], [lanes])
    s.reorder(*items, *pixels, lane)
    for stage in reversed(conv.outputs):
        s.compute_at(stage, items[-1])
    _read_products(s, conv, items[-1], sliced=sliced)
    for stage in conv.outputs:
        write_out(s, stage)
    unroll_all(s, pixels)
    s.vectorize(lane)
    return items


def _read_products(s: Schedule, conv: Rewritten, at: str, *, sliced: bool) -> None:
    """What one item transforms is in its registers, a column at a time; slices are added up."""
    if len(conv.outputs) > 1:
        row, at = made_loops(s, conv.outputs[0])[:2]
        s.reorder(at, row)
    if not sliced:
        write_out(s, s.cache_read(conv.product, at))
        return
    s.compute_at(conv.product, at)
    (slices,) = s.reduce_loops(conv.product)
    s.reorder(slices, *made_loops(s, conv.product))
    s.unroll(slices)
    write_out(s, conv.product)

"""Winograd convolution on GPUs: three kernels, whose scratch between them stays in the cache.

The first transforms the inputs, an item for each tile and some of its channels. The second is a
batch of matrix products, one for each of the (m+2)^2 factors of a tile, tiled over groups, items
and registers as any contraction is (`gpu_tile`). The third transforms the products to outputs and
runs the epilogue on them. Weights are transformed at compile time. Read `schedule_winograd`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from retune.core.errors import ScheduleError
from retune.core.target import DeviceSpec
from retune.ir.evaluate import evaluate_int
from retune.ir.stmt import Program, blocks
from retune.schedule.cpu import epilogue_of, heaviest_reduction, inline_elementwise
from retune.schedule.gpu_plain import flat_items
from retune.schedule.gpu_slices import slice_over_groups
from retune.schedule.gpu_tile import FETCHED_LANES, Tiling, inline_padding, schedule_tile
from retune.schedule.schedule import Schedule
from retune.schedule.space import Sketch, sketch_of
from retune.schedule.winograd import ERRORS, Convolution, find_convolution

PREFIX = "gpu.winograd"
"""What the names of these sketches start with; the size of an output tile follows."""
_LEAST_CHANNELS = 16
"""Fewer channels in or out leave too little work between the transforms."""
_LEAST_SLICE = 64
"""Channels of one slice of the products at least: a slice is written, and read again."""
_MOST_SLICES = 8
"""Slices at most: the (m+2)^2 products are work for many groups already."""
_MOST_PRODUCTS = 1 << 21
"""Products above which a device has enough to do without slices of them."""
_LANES = 4
_MOST_REGISTERS = 80
"""Numbers of a tile that an item holds: more would leave a compute unit few items."""
_GROUPS = (32, 64, 128, 256)
"""Work-items of a group of the transforms."""
_ITEMS_PER_UNIT = 512
"""Work-items that keep a compute unit's memory busy, each with the reads of a whole tile."""


def gpu_winograd_sketches(program: Program, spec: DeviceSpec) -> tuple[Sketch, ...]:
    """Sketches for each tile size, if the program's only reduction is a convolution that fits."""
    reductions = [block for block in blocks(program.body) if block.reducer is not None]
    if len(reductions) != 1 or spec.device_class != "gpu":
        return ()
    try:
        found = find_convolution(program, reductions[0].name)
    except ScheduleError:
        return ()
    if min(found.extents[found.depth], found.extents[found.made]) < _LEAST_CHANNELS:
        return ()
    made: list[Sketch] = []
    for m in ERRORS:
        for tiling in _tilings(found, m, spec):
            rule = partial(schedule_winograd, m=m, tiling=tiling, spec=spec)
            try:
                sketch = sketch_of(program, rule, name_of(m, tiling))
            except ScheduleError:
                continue  # this structure does not fit the shape
            made.append(replace(sketch, error=ERRORS[m]))
    return tuple(made)


def name_of(m: int, tiling: Tiling) -> str:
    """Name of the sketch: gpu.winograd4.local4.sliced, say."""
    return tiling.name.replace(f"gpu.v{tiling.lanes}", f"{PREFIX}{m}")


def _tilings(found: Convolution, m: int, spec: DeviceSpec) -> Iterator[Tiling]:
    """The structures of the batch of products that are worth trying."""
    made, depth = found.extents[found.made], found.extents[found.depth]
    lanes = _LANES if made % _LANES == 0 else 1
    fetched = FETCHED_LANES if spec.local_memory_bytes and depth % FETCHED_LANES == 0 else 0
    yield Tiling(lanes=lanes, fetched=fetched)
    tiles = prod(-(-found.extents[found.axis(d)] // m) for d in (found.rows, found.columns))
    if depth >= 2 * _LEAST_SLICE and tiles * made * (m + 2) ** 2 <= _MOST_PRODUCTS:
        yield Tiling(lanes=lanes, fetched=fetched, sliced=True)


def schedule_winograd(s: Schedule, m: int, tiling: Tiling, spec: DeviceSpec) -> None:
    """Schedules every stage; only the tile sizes of the products are sampled.

    for tile, channels c:  factors[all u, v] = ...          data and rows in registers
    for u, v:              product[u, v, tiles, f] = ...    as `schedule_tile` does
    for tile, channels f:  out[m x m pixels] = ...          columns and outputs in registers
    """
    anchor = heaviest_reduction(s.program)
    assert anchor is not None, "gpu_winograd_sketches found it"
    name = anchor.name
    inline_elementwise(s)
    shape = find_convolution(s.program, name)
    data, rows, factors, taps, filters, product, columns, outputs = s.winograd(name, m)
    s.precompute(taps)
    s.precompute(filters)
    inline_padding(s, data)
    _transform_inputs(s, data, rows, factors, spec)
    out = epilogue_of(s, name)
    if out is not None:
        s.compute_inline(name)
    if tiling.sliced:
        schedule_tile(s, _sliced(s, product), tiling, spec)
    else:
        schedule_tile(s, product, tiling, spec)
    nest = _tile_outputs(s, out or name, shape, m, spec)
    s.compute_at(outputs, nest.items[-1])
    s.compute_at(columns, nest.items[-1])
    _transform_products(s, product, columns, sliced=tiling.sliced)
    _write_out(s, outputs)
    for loop in nest.pixels:
        s.unroll(loop)
    if nest.lanes:
        s.vectorize(nest.lanes[0])
    _spread(s, nest.items, spec)


def _transform_inputs(s: Schedule, data: str, rows: str, factors: str, spec: DeviceSpec) -> None:
    """Factors by an item for each tile and vector of channels, one column of the tile at a time."""
    u, v, *tiles, c = s.loops(factors)
    lanes = _lanes(s, (u, v), (*tiles, c), spec)
    c, *vector = s.split(c, [lanes]) if lanes > 1 else [c]
    s.reorder(*tiles, c, u, v, *vector)
    s.compute_at(rows, c)
    i, j = s.loops(rows)[-6:-4]
    s.reorder(j, i)
    s.compute_at(data, j)
    for stage in (rows, data):
        _write_out(s, stage)
    for loop in (u, v):
        s.unroll(loop)
    for loop in vector:
        s.vectorize(loop)
    _spread(s, [*tiles, c], spec)


def _lanes(s: Schedule, tile: Sequence[str], others: Sequence[str], spec: DeviceSpec) -> int:
    """Neighbouring channels of one item: its registers hold them, and no unit is left idle."""
    held = prod(evaluate_int(s.loop(n).extent) for n in tile)
    size = prod(evaluate_int(s.loop(n).extent) for n in others)
    channels = evaluate_int(s.loop(others[-1]).extent)
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
    size = prod(evaluate_int(s.loop(n).extent) for n in loops)
    fit = [n for n in _GROUPS if size >= n * spec.compute_units]
    flat_items(s, loops, max(fit, default=_GROUPS[0]))


def _write_out(s: Schedule, stage: str) -> None:
    """The stage's own loops written out, the last one as lanes."""
    *own, last = s.loops(stage)[-len(s.block(stage).indices) :]
    for loop in own:
        s.unroll(loop)
    s.vectorize(last)


@dataclass(frozen=True, slots=True)
class _Nest:
    """The loops of the last stage, by name."""

    items: Sequence[str]
    """Over tiles and vectors of channels."""
    pixels: Sequence[str]
    """Over the m x m pixels of a tile."""
    lanes: Sequence[str]
    """Over the lanes of a vector, if there are several."""


def _tile_outputs(s: Schedule, out: str, shape: Convolution, m: int, spec: DeviceSpec) -> _Nest:
    """The output by tiles and vectors of channels, then pixels; a guard keeps to odd sizes."""
    loops = dict(zip(shape.block.indices, s.loops(out), strict=True))
    items, pixels = [loops[shape.axis(shape.batch)]], []
    for dim in (shape.rows, shape.columns):
        tile, pixel = s.split(loops[shape.axis(dim)], [m], "guard")
        items.append(tile)
        pixels.append(pixel)
    made = loops[shape.made]
    lanes = _lanes(s, pixels, (*items, made), spec)
    made, *vector = s.split(made, [lanes]) if lanes > 1 else [made]
    items.append(made)
    s.reorder(*items, *pixels, *vector)
    return _Nest(items, pixels, vector)


def _sliced(s: Schedule, product: str) -> str:
    """The products of a few slices of the channels, which the stage itself adds up."""
    part = slice_over_groups(s, product)
    (slices,) = [n for n in s.loops(product) if s.loop(n).reduce]
    s.require(s.loop(slices).extent <= _MOST_SLICES, "adding the slices up takes too long")
    return part


def _transform_products(s: Schedule, product: str, columns: str, *, sliced: bool) -> None:
    """Columns on registers, each from the products of its own v, whose slices are added up."""
    p, v = s.loops(columns)[-6:-4]
    s.reorder(v, p)
    _write_out(s, columns)
    if not sliced:
        _write_out(s, s.cache_read(product, v))
        return
    s.compute_at(product, v)
    *own, slices = [n for n in s.loops(product) if n.startswith(product)]
    s.reorder(slices, *own)
    s.unroll(slices)
    _write_out(s, product)

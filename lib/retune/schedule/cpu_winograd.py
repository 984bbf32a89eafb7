"""Winograd sketches for CPU devices: one fused nest for each block of tiles.

A work-group takes a block of output tiles and some output channels. It transforms the block's
inputs into a private array, multiplies them with the transformed weights on register tiles as a
1x1 convolution does, and transforms the products to outputs on registers, epilogue included.
Decisions size the arrays, so that they can stay in the second-level cache.
"""

from dataclasses import dataclass, replace
from functools import partial

from retune.core.errors import ScheduleError
from retune.core.target import DeviceSpec
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Expr, Select, const, loads
from retune.ir.stmt import Program, blocks
from retune.schedule.cpu import (
    Plan,
    epilogue_of,
    heaviest_reduction,
    inline_elementwise,
    limit_registers,
    order_reduction,
    pack_operands,
    schedule_elementwise,
    vector_lanes,
)
from retune.schedule.schedule import Schedule
from retune.schedule.space import Sketch, sketch_of
from retune.schedule.stages import readers
from retune.schedule.winograd import ERRORS, Convolution, find_convolution

PREFIX = "cpu.winograd"
"""What the names of these sketches start with; the size of an output tile follows."""
_LEAST_CHANNELS = 16
"""Fewer channels in or out leave too little work between the transforms."""
_MAX_TILES = 16
"""Tiles of one axis in a register tile at most."""
_PRIVATE_BYTES = 2 << 20
"""Private arrays of a work-group at most: they lie on the stack of a runtime's thread."""


def winograd_sketches(program: Program, spec: DeviceSpec) -> tuple[Sketch, ...]:
    """A sketch for each tile size, if the program's heaviest stage is a convolution that fits."""
    reductions = [block for block in blocks(program.body) if block.reducer is not None]
    anchor = heaviest_reduction(program)
    if anchor is None or len(reductions) > 1 or spec.device_class != "cpu" or spec.lanes_f32 == 1:
        return ()
    try:
        found = find_convolution(program, anchor.name)
    except ScheduleError:
        return ()
    if min(found.extents[found.depth], found.extents[found.made]) < _LEAST_CHANNELS:
        return ()
    rules = {m: partial(schedule_winograd, m=m, spec=spec) for m in ERRORS}
    return tuple(
        replace(sketch_of(program, rule, f"{PREFIX}{m}"), error=ERRORS[m])
        for m, rule in rules.items()
    )


def schedule_winograd(s: Schedule, m: int, spec: DeviceSpec) -> None:
    """Schedules every stage; tile sizes are sampled.

    for block of tiles, group of channels f:                                 # work-groups
      factors[all, tiles, all c] = ...      data and rows in registers, lanes over c
      for part of f:
        product[all, tiles, part] = ...     register tiles of tiles x channels, as a 1x1 layer
        for tile, vector of f: out = ...    columns and outputs in registers, lanes over f
    """
    anchor = heaviest_reduction(s.program)
    assert anchor is not None, "winograd_sketches found it"
    name = anchor.name
    inline_elementwise(s)
    shape = find_convolution(s.program, name)
    data, rows, factors, taps, filters, product, columns, outputs = s.winograd(name, m)
    s.precompute(taps)
    s.precompute(filters)
    _inline_padding(s, data)
    out = epilogue_of(s, name)
    if out is not None:
        s.compute_inline(name)
    stored = s.cache_write(product)
    nest = _tile_outputs(s, out or name, shape, m, spec)
    channels_last = shape.block.indices[-1] == shape.made
    s.compute_at(outputs, nest.vectors, "register" if channels_last else "private")
    s.compute_at(columns, nest.vectors)
    s.compute_at(stored, nest.part, "private")
    _tile_products(s, product, stored, nest, spec)
    s.compute_at(factors, nest.group, "private")
    _transform_inputs(s, (data, rows, factors), vector_lanes(spec, shape.extents[shape.depth]))
    for stage in (columns, outputs):
        _write_out(s, stage)
    if channels_last:
        s.unroll(nest.pixels[0])
        s.vectorize(nest.lanes)
    s.unroll(nest.pixels[1])
    used = _bytes(s, factors) + _bytes(s, stored)
    s.require(used <= _PRIVATE_BYTES, "the private arrays exceed a thread's stack")
    _schedule_others(s, spec)


@dataclass(frozen=True, slots=True)
class _Nest:
    """The loops of the last stage, by name, and the sizes of a register tile."""

    group: str
    """Innermost loop over work-groups: blocks of tiles and of channels."""
    part: str
    """Loop over parts of a group's channels."""
    vectors: str
    """Innermost loop over tiles and vectors of channels."""
    pixels: tuple[str, str]
    """Loops over the m x m pixels of a tile."""
    lanes: str
    """Loop over the lanes of a vector."""
    tile: tuple[Expr, Expr]
    """Tiles of one register tile, along rows and columns."""
    depth: Expr
    """Vectors of channels of one register tile."""
    width: int
    """Lanes of a vector."""


def _inline_padding(s: Schedule, data: str) -> None:
    """Zeros around the input are part of the reading of its tiles."""
    for load in loads(s.block(data).value):
        for stage in blocks(s.program.body):
            padding = stage.buffer == load.buffer and isinstance(stage.value, Select)
            if padding and len(readers(s.program, stage.buffer)) == 1:
                s.compute_inline(stage.name)
                return


def _tile_outputs(s: Schedule, out: str, shape: Convolution, m: int, spec: DeviceSpec) -> _Nest:
    """Blocks of tiles and channels over work-groups, then tiles, then vectors, then pixels."""
    loops = dict(zip(shape.block.indices, s.loops(out), strict=True))
    batch, made = loops[shape.axis(shape.batch)], loops[shape.made]
    width = vector_lanes(spec, shape.extents[shape.made])
    far, tiles, pixels, tile = [], [], [], []
    for dim in (shape.rows, shape.columns):
        every, pixel = s.split(loops[shape.axis(dim)], [m], "guard")
        middle, near = s.sample_tile(every, 3, _MAX_TILES)
        block, inside = s.split(every, [middle * near], "shift")
        far.append(block)
        tiles.append(inside)
        pixels.append(pixel)
        tile.append(near)
    parts, middle, vectors = s.sample_tile(made, 4, _MAX_TILES, unit=width)
    group, part, vector, lanes = s.split(made, [parts, middle * vectors, const(width)], "shift")
    s.reorder(batch, *far, group, part, *tiles, vector, *pixels, lanes)
    rows, columns = far
    if evaluate_int(s.loop(batch).extent) > 1:
        rows = s.fuse(batch, rows)
    for loop, axis in ((rows, "group.2"), (columns, "group.1"), (group, "group.0")):
        s.bind(loop, axis)
    return _Nest(
        group, part, vector, (pixels[0], pixels[1]), lanes, (tile[0], tile[1]), vectors, width
    )


def _tile_products(s: Schedule, product: str, stored: str, nest: _Nest, spec: DeviceSpec) -> None:
    """Register tiles of the products; weights are read once for all tiles of a block."""
    u, v, n, y, x, f = s.loops(stored)[-6:]
    tile_y, near_y = s.split(y, [nest.tile[0]])
    tile_x, near_x = s.split(x, [nest.tile[1]])
    part, vectors, lanes = s.split(f, [nest.depth, const(nest.width)])
    s.reorder(u, v, n, part, tile_y, tile_x, near_y, near_x, vectors, lanes)
    s.compute_at(product, tile_x)
    order_reduction(s, product, Plan(nest.width, window=False, channels_slow=False), sampled=True)
    s.vectorize(lanes)
    for loop in (near_y, near_x, vectors):
        s.unroll(loop)
    limit_registers(s, (near_y, near_x), vectors, spec)
    pack_operands(s, product)


def _transform_inputs(s: Schedule, stages: tuple[str, str, str], width: int) -> None:
    """For each tile and vector of channels, the transform on registers, one column at a time."""
    data, rows, factors = stages
    u, v, n, y, x, c = s.loops(factors)[-6:]
    vector, lanes = s.split(c, [width], "shift")
    s.reorder(n, y, x, vector, u, v, lanes)
    s.compute_at(rows, vector)
    i, j = s.loops(rows)[-6:-4]
    s.reorder(j, i)
    s.compute_at(data, j)
    for loop in (u, v):
        s.unroll(loop)
    s.vectorize(lanes)
    for stage in (rows, data):
        _write_out(s, stage)


def _write_out(s: Schedule, stage: str) -> None:
    """The stage's own loops written out, the last one as lanes."""
    *own, last = s.loops(stage)[-len(s.block(stage).indices) :]
    for loop in own:
        s.unroll(loop)
    s.vectorize(last)


def _bytes(s: Schedule, stage: str) -> Expr:
    """Size of the private array that a stage fills."""
    size: Expr = const(4)
    for extent in s.block(stage).buffer.shape:
        size = size * extent
    return size


def _schedule_others(s: Schedule, spec: DeviceSpec) -> None:
    """Stages that run by themselves, before or after the convolution."""
    for stage in s.blocks():
        block = s.block(stage)
        free = all(s.loop(n).kind == "serial" for n in s.loops(stage))
        if free and block.buffer.scope == "global" and block.reducer is None:
            schedule_elementwise(s, stage, spec)

"""Winograd sketches for CPU devices: one fused nest for each block of tiles, or three nests.

In the fused one a work-group takes a block of output tiles and some output channels. It transforms
the block's inputs into a private array, multiplies them with the transformed weights on register
tiles as a 1x1 convolution does, and transforms the products to outputs on registers, epilogue
included. Decisions size the arrays, so that they can stay in the second-level cache.

In three nests no input is transformed twice, and each weight is read for all tiles at once, in a
product that is tiled as a 1x1 layer is; the transformed maps go through global memory. That is
better where the weights are larger than the caches and the map is small.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import inf

from retune.core.errors import ScheduleError
from retune.core.target import DeviceSpec
from retune.ir.expr import Expr, const
from retune.ir.stmt import Program
from retune.schedule.schedule import Schedule
from retune.schedule.space import Family, Rule
from retune.schedule.winograd import WinogradConvolution
from retune.targets.cpu.elementwise import tile_near, wanted_groups
from retune.targets.cpu.space import schedule_rest
from retune.targets.cpu.tile import (
    RegisterTile,
    limit_registers,
    order_reduction,
    schedule_register_tile,
)
from retune.targets.fusion import accesses, pack_operands
from retune.targets.instructions import find_instruction
from retune.targets.tiling import fuse_all, made_loops, sized_tail, unroll_all
from retune.targets.transforms import (
    Rewritten,
    rewritten,
    split_inputs,
    split_pixels,
    transform_inputs,
    transform_outputs,
    winograd_families,
    write_pixels,
)

PREFIX = "cpu.winograd"
"""What the names of these sketches start with; the size of an output tile follows."""
_MAX_TILES = 16
"""Tiles of one axis in a register tile at most."""
_PRIVATE_BYTES = 2 << 20
"""Private arrays of a work-group at most: they lie on the stack of a runtime's thread."""


def cpu_winograd_families(
    program: Program, spec: DeviceSpec, max_error: float = inf
) -> tuple[Family, ...]:
    """Two sketches for each tile size, if the program's reduction is a convolution that fits."""
    if spec.lanes_f32 == 1:
        return ()

    def named(_: WinogradConvolution, m: int, stored: bool) -> Iterator[tuple[str, Rule]]:
        if not stored:  # instructions read packs of what another nest has written
            yield f"{PREFIX}{m}", partial(schedule_winograd, m=m, spec=spec)
        suffix = ".words" * stored
        yield f"{PREFIX}{m}.staged{suffix}", partial(schedule_staged, m=m, stored=stored, spec=spec)

    return winograd_families(program, named, max_error)


def schedule_winograd(s: Schedule, m: int, spec: DeviceSpec) -> None:
    """Schedules every stage; tile sizes are sampled.

    for block of tiles, group of channels f:                                 # work-groups
      factors[all, tiles, all c] = ...      data and rows in registers, lanes over c
      for part of f:
        product[all, tiles, part] = ...     register tiles of tiles x channels, as a 1x1 layer
        for tile, vector of f: out = ...    columns and outputs in registers, lanes over f
    """
    conv = rewritten(s, m)
    stored = s.cache_write(conv.product)
    nest = _tile_outputs(s, conv, spec)
    transform_outputs(s, conv, nest.vectors)
    s.compute_at(stored, nest.part, "private")
    _tile_products(s, conv, stored, nest, spec)
    s.compute_at(conv.inputs[-1], nest.group, "private")
    *_, vector = split_inputs(s, conv, spec.vector_lanes(conv.shape.extents[conv.shape.depth]))
    transform_inputs(s, conv, vector)
    write_pixels(s, conv, nest.pixels, nest.lanes)
    used = _bytes(s, conv.inputs[-1]) + _bytes(s, stored)
    s.require(used <= _PRIVATE_BYTES, "the private arrays exceed a thread's stack")
    schedule_rest(s, spec)


@dataclass(frozen=True, slots=True)
class _FusedNest:
    """The loops of the last stage, by name, and the sizes of a register tile."""

    group: str
    """Innermost loop over work-groups: blocks of tiles and of channels."""
    part: str
    """Loop over parts of a group's channels."""
    vectors: str
    """Innermost loop over tiles and vectors of channels."""
    pixels: list[str]
    """Loops over the pixels of a tile."""
    lanes: str
    """Loop over the lanes of a vector."""
    tile: list[Expr]
    """Tiles of one register tile, along the last two axes."""
    depth: Expr
    """Vectors of channels of one register tile."""
    width: int
    """Lanes of a vector."""


def _tile_outputs(s: Schedule, conv: Rewritten, spec: DeviceSpec) -> _FusedNest:
    """Blocks of tiles and channels over work-groups, then tiles, then vectors, then pixels."""
    width = spec.vector_lanes(conv.shape.extents[conv.shape.made])
    every, pixels, made = split_pixels(s, conv)
    far, tiles, tile = [], [], []
    for loop in every[-2:]:
        middle, near = s.sample_tile(loop, 3, _MAX_TILES)
        block, inside = s.split(loop, [middle * near], sized_tail(s, loop, "guard"))
        far.append(block)
        tiles.append(inside)
        tile.append(near)
    parts, middle, vectors = s.sample_tile(made, 4, _MAX_TILES, unit=width)
    group, part, vector, lanes = s.split(made, [parts, middle * vectors, const(width)], "shift")
    s.reorder(*every[:-2], *far, group, part, *tiles, vector, *pixels, lanes)
    for loop in reversed(every[:-2]):
        if s.several(loop):
            far[0] = s.fuse(loop, far[0])
    for number, loop in enumerate((group, *reversed(far))):
        s.bind(loop, f"group.{number}")
    return _FusedNest(group, part, vector, pixels, lanes, tile, vectors, width)


def _tile_products(
    s: Schedule, conv: Rewritten, stored: str, nest: _FusedNest, spec: DeviceSpec
) -> None:
    """Register tiles of the products; weights are read once for all tiles of a block."""
    *positions, f = made_loops(s, stored)
    tiled = positions[-len(nest.tile) :]
    splits = [s.split(loop, [near]) for loop, near in zip(tiled, nest.tile, strict=True)]
    tiles, inner = [far for far, _ in splits], [near for _, near in splits]
    part, vectors, lanes = s.split(f, [nest.depth, const(nest.width)])
    s.reorder(*positions[: -len(tiled)], part, *tiles, *inner, vectors, lanes)
    s.compute_at(conv.product, tiles[-1])
    order_reduction(s, conv.product, RegisterTile(nest.width), sampled=True)
    s.vectorize(lanes)
    unroll_all(s, [*inner, vectors])
    limit_registers(s, [*inner, vectors], spec)
    pack_operands(s, conv.product)


def _bytes(s: Schedule, stage: str) -> Expr:
    """Size of the private array that a stage fills."""
    buffer = s.block(stage).buffer
    size: Expr = const(buffer.dtype.itemsize)
    for extent in buffer.shape:
        size = size * extent
    return size


# -- three nests -------------------------------------------------------------------------------


def schedule_staged(s: Schedule, m: int, *, stored: bool, spec: DeviceSpec) -> None:
    """Schedules every stage; the tile sizes of the products are sampled.

    Of factors that are `stored` in the data's type, an instruction makes the products.

    for tile, vector of c: factors[all, tile, vector] = ...     data and rows in registers
    for point: product[point, tiles, f] = ...                   a product of matrices
    for tile, vector of f: out = ...                            columns and outputs in registers
    """
    conv = rewritten(s, m, stored=stored)
    extents = conv.shape.extents
    loops = split_inputs(s, conv, spec.vector_lanes(extents[conv.shape.depth]))
    transform_inputs(s, conv, _shared(s, loops, spec))
    width = spec.vector_lanes(extents[conv.shape.made])
    plan = _products(s, conv, width, spec, stored=stored)
    schedule_register_tile(s, conv.product, plan, spec, sampled=True)
    _outputs(s, conv, width, spec)
    schedule_rest(s, spec)


def _products(
    s: Schedule, conv: Rewritten, width: int, spec: DeviceSpec, *, stored: bool
) -> RegisterTile:
    """How products are tiled: where factors are `stored` in the data's type, by its instruction.

    Raises: ScheduleError where the device has none.
    """
    if not stored:
        return RegisterTile(width)
    packed = find_instruction(accesses(s, conv.product), spec, "vector lane", width)
    if packed is None:
        raise ScheduleError(f"{conv.product}: no instruction makes products of its factors")
    return RegisterTile(width, packed=packed)


def _outputs(s: Schedule, conv: Rewritten, width: int, spec: DeviceSpec) -> None:
    """The last stage: for each tile and vector, its pixels."""
    tiles, pixels, made = split_pixels(s, conv)
    vector, lanes = s.split(made, [width], "shift")
    s.reorder(*tiles, vector, *pixels, lanes)
    transform_outputs(s, conv, _shared(s, [*tiles, vector], spec))
    write_pixels(s, conv, pixels, lanes)


def _shared(s: Schedule, loops: list[str], spec: DeviceSpec) -> str:
    """The loops as one, shared out evenly over work-groups; its part of one group."""
    whole = fuse_all(s, loops)
    size = tile_near(s.likely(whole), wanted_groups(spec))
    group, own = s.split(whole, [size], "shift")
    s.bind(group, "group.0")
    return own

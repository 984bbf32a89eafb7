"""Winograd on CPU devices in three nests: all inputs transformed, all products, all outputs.

No input is transformed twice, and each weight is read for all tiles at once, in a product that is
tiled as a 1x1 layer is; the transformed maps go through global memory. That is better than the
fused nest of `cpu_winograd` where the weights are larger than the caches and the map is small.
"""

from retune.core.target import DeviceSpec
from retune.schedule.schedule import Schedule
from retune.targets.cpu.elementwise import share
from retune.targets.cpu.space import schedule_rest
from retune.targets.cpu.tile import RegisterTile, schedule_register_tile
from retune.targets.tiling import fuse_all
from retune.targets.transforms import (
    Rewritten,
    rewritten,
    split_inputs,
    split_pixels,
    transform_inputs,
    transform_outputs,
    write_pixels,
)


def schedule_staged(s: Schedule, m: int, spec: DeviceSpec) -> None:
    """Schedules every stage; the tile sizes of the products are sampled.

    for tile, vector of c: factors[all, tile, vector] = ...     data and rows in registers
    for point: product[point, tiles, f] = ...                   a product of matrices
    for tile, vector of f: out = ...                            columns and outputs in registers
    """
    conv = rewritten(s, m)
    extents = conv.shape.extents
    loops = split_inputs(s, conv, spec.vector_lanes(extents[conv.shape.depth]))
    transform_inputs(s, conv, _shared(s, loops, spec))
    width = spec.vector_lanes(extents[conv.shape.made])
    schedule_register_tile(s, conv.product, RegisterTile(width), spec, sampled=True)
    _outputs(s, conv, width, spec)
    schedule_rest(s, spec)


def _outputs(s: Schedule, conv: Rewritten, width: int, spec: DeviceSpec) -> None:
    """The last stage: for each tile and vector, its pixels."""
    shape = conv.shape
    made = dict(zip(shape.block.indices, s.loops(conv.out), strict=True))[shape.made]
    tiles, pixels = split_pixels(s, conv)
    vector, lanes = s.split(made, [width], "shift")
    s.reorder(*tiles, vector, *pixels, lanes)
    transform_outputs(s, conv, _shared(s, [*tiles, vector], spec))
    write_pixels(s, conv, pixels, lanes)


def _shared(s: Schedule, loops: list[str], spec: DeviceSpec) -> str:
    """The loops as one, shared out evenly over work-groups; its part of one group."""
    whole = fuse_all(s, loops)
    size = share(s.extent(whole), spec)
    group, own = s.split(whole, [size], "shift")
    s.bind(group, "group.0")
    return own

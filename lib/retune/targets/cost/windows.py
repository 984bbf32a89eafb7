"""What a tile of windows costs: reductions that broadcast nothing (`Accesses.lane_wise`).

Measured on 3x3 depthwise convolutions and pools: what comes from the second-level cache adds to
the arithmetic, since a tile is too short to hide it.
"""

from collections.abc import Sequence

import numpy as np

from retune.core.target import DeviceSpec
from retune.ir.stmt import For
from retune.schedule.access import AffineAccess
from retune.targets.cost.core import Core
from retune.targets.cost.nests import Array, BlockNest, on
from retune.targets.tiling import BLOCK, REGISTER


def window_cycles(nest: BlockNest, spec: DeviceSpec, core: Core) -> Array:
    """Cycles of one core for all iterations of such a reduction."""
    stage = nest.accesses
    # Constants alone are as good as data.
    data = next((x for x in stage.operands if not x.constant), stage.operands[0])
    constants = sum(x.constant for x in stage.operands)
    tile, serial = nest.size(on(stage.results, REGISTER)), on(stage.results, BLOCK)
    rows, taps = nest.size(on(stage.steps, BLOCK)), nest.size(on(stage.steps, REGISTER))
    steps = nest.work / nest.lanes
    tiles = steps / tile / taps / rows
    # Vectors of data that a row of taps reads, and those of them that are not near any more.
    width, vectors = _row(nest, data, on(nest.loops, REGISTER))
    run = data.item_bytes * nest.lanes * vectors
    kept = (rows * width + tile / vectors) * run * nest.size(serial[-1:]) <= spec.l1_bytes
    # Rows of taps that the tile before, one result further up, has not read.
    down = [loop for loop in serial if loop.var in data.outer]
    new = np.minimum(rows, data.step(down[-1].var)) if down else rows
    fresh = np.where(kept, new, rows)
    lines = width * vectors * fresh + tile
    waiting = steps * core.window_latency / tile * np.minimum(1.0, taps * rows / core.in_flight)
    loaded = tiles * rows * vectors * (width + constants * taps)
    arithmetic = steps + core.widened * loaded * data.load.buffer.dtype.is_small_float
    started = np.maximum(arithmetic, loaded) + core.beside * np.minimum(arithmetic, loaded)
    busy = np.maximum(started * nest.turns(spec) / core.pipes, waiting)
    # The tile beside it reads the rest of a line while that is near.
    beside = nest.size([loop for loop in serial if loop.var in data.last])
    run = np.maximum(run, np.minimum(run * beside, spec.cache_line_bytes))
    far = tiles * lines * core.line * (1.0 + core.run_bytes / run)
    return busy + far + tiles * (core.tile_cycles + core.row_cycles * rows)


def _row(nest: BlockNest, data: AffineAccess, written: Sequence[For]) -> tuple[Array, Array]:
    """Distinct places along a row that a tile reads, and the vectors at each of them."""
    width, vectors = nest.one, nest.one
    for loop in written:
        if loop.var in data.last:
            vectors = vectors * nest.extent(loop)
        else:
            width = width + data.step(loop.var) * (nest.extent(loop) - 1.0)
    return width, vectors

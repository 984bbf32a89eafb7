"""What a tile of windows costs: the part of `estimate` for reductions that broadcast nothing.

Measured on 3x3 depthwise convolutions and pools: what comes from the second-level cache adds to
the arithmetic, since a tile is too short to hide it.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from retune.core.target import DeviceSpec
from retune.ir.expr import Const, Expr, Load, Var, loads, variables
from retune.ir.simplify import affine
from retune.ir.stmt import Block, For

_PER_CYCLE = 2.0
"""Vector operations, or loads from the nearest cache, that a core starts in each cycle."""
_LATENCY = 4.0
"""Cycles until the next step of the same accumulator can start."""
_IN_FLIGHT = 64.0
"""Steps of one accumulator whose tiles a core works on at once."""
_LINE_CYCLES = 1.7
"""Cycles for a line from or to the second-level cache."""
_ROW_CYCLES = 6.0
"""Cycles that entering a row of taps costs: its loop, its guard."""
_TILE_CYCLES = 5.0
"""Cycles that a tile costs: addresses, start values."""
_RUN_BYTES = 64.0
"""Adjacent bytes that cost as much as starting to read them elsewhere. What a tile reads at once
counts, not what the tiles beside it read later (measured in turns on 13 layers: the tiles chosen
so take 0.96 times as long as those chosen with 128 bytes and nothing beside, none over 1.02)."""
_BESIDE = 0.25
"""Part of the loads, or of the arithmetic if that is less, that does not hide beside the other."""


def broadcasts_nothing(block: Block, path: Sequence[For]) -> bool:
    """Whether the block is a reduction each of whose operands is a vector."""
    lanes = {loop.var for loop in path if loop.kind == "vectorize" and not loop.reduce}
    operands = loads(block.value)
    return bool(
        block.reducer is not None
        and operands
        and lanes
        and all(any(_moves(i, lanes) for i in load.indices) for load in operands)
    )


def _moves(index: Expr, lanes: Collection[Var]) -> bool:
    """Whether the index is another one for each lane; the group that a channel is of is not."""
    form = affine(index, lanes)
    return form is not None and bool(form[0])


def window_cycles(
    block: Block, path: Sequence[For], extents: Mapping[Var, np.ndarray], spec: DeviceSpec
) -> np.ndarray:
    """Cycles of one core for all iterations of such a block. float64 [candidates]"""
    one = np.ones_like(next(iter(extents.values())))

    def size(loops: Sequence[For]) -> np.ndarray:
        return np.prod([extents[loop.var] for loop in loops], axis=0) * one

    data = next((x for x in loads(block.value) if x.buffer.scope != "constant"), None)
    constants = sum(x.buffer.scope == "constant" for x in loads(block.value))
    written = [loop for loop in path if loop.kind == "unroll"]
    taps = [loop for loop in written if loop.reduce]
    rows = [loop for loop in path if loop.reduce and loop.kind == "serial"]
    lanes = size([loop for loop in path if loop.kind == "vectorize"])
    tile = size([loop for loop in written if not loop.reduce])
    steps = size(path) / lanes
    tiles = steps / tile / size(taps) / size(rows)
    # Vectors of data that a row of taps reads, and those of them that are not near any more.
    width, vectors = _row(data, written, extents, one)
    near = [loop for loop in path if loop.kind == "serial" and not loop.reduce][-1:]
    run = 4.0 * lanes * vectors
    kept = (size(rows) * width + tile / vectors) * run * size(near) <= spec.l1_bytes
    fresh = np.where(kept, _new_rows(data, path, size(rows)), size(rows))
    lines = width * vectors * fresh + tile
    depth = size(taps) * size(rows)
    waiting = steps * _LATENCY / tile * np.minimum(1.0, depth / _IN_FLIGHT)
    loaded = tiles * size(rows) * vectors * (width + constants * size(taps))
    started = np.maximum(steps, loaded) + _BESIDE * np.minimum(steps, loaded)
    busy = np.maximum(started / _PER_CYCLE, waiting)
    far = tiles * lines * _LINE_CYCLES * (1.0 + _RUN_BYTES / run)
    return busy + far + tiles * (_TILE_CYCLES + _ROW_CYCLES * size(rows))


def _row(
    data: Load | None,
    written: Sequence[For],
    extents: Mapping[Var, np.ndarray],
    one: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Distinct places along a row that a tile reads, and the vectors at each of them."""
    width, vectors = one, one
    if data is None:
        return width, vectors
    for loop in written:
        extent = extents[loop.var]
        if loop.var in variables(data.indices[-1]):
            vectors = vectors * extent
        else:
            width = width + _step(data, loop.var) * (extent - 1.0)
    return width, vectors


def _new_rows(data: Load | None, path: Sequence[For], rows: np.ndarray) -> np.ndarray:
    """Rows of taps that the tile before, one result further up, has not read."""
    if data is None:
        return rows
    down = [
        loop
        for loop in path
        if loop.kind == "serial"
        and not loop.reduce
        and any(loop.var in variables(i) for i in data.indices[:-1])
    ]
    return np.minimum(rows, _step(data, down[-1].var)) if down else rows


def _step(data: Load, var: Var) -> float:
    """How far the index that the variable is in moves with it."""
    for index in data.indices:
        if var in variables(index):
            form = affine(index, {var})
            coefficient = form[0].get(var) if form else None
            return float(coefficient.value) if isinstance(coefficient, Const) else 1.0
    return 0.0

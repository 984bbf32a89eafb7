"""What a register tile costs: reductions in which an operand serves several results."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from retune.core.dtypes import FLOAT32, itemsize
from retune.core.target import DeviceSpec
from retune.ir.expr import Binary, loads
from retune.ir.stmt import For
from retune.schedule.access import Accesses, AffineAccess
from retune.targets.cost.core import Core
from retune.targets.cost.nests import Array, BlockNest, moving, off, on, operators
from retune.targets.tiling import BLOCK, GROUP, LANE, PACK, REGISTER

_WIDE_BITS = 512
"""Of vectors whose instructions take a number for all lanes from memory."""


def tile_cycles(nest: BlockNest, spec: DeviceSpec, core: Core) -> Array:
    """Cycles of one core for all iterations of such a reduction."""
    reduce = nest.accesses.steps
    depth, written = nest.size(off(reduce, LANE, PACK)), on(nest.accesses.results, REGISTER)
    tile = nest.size(written)
    steps = nest.work / nest.lanes / nest.packs / tile * (1.0 + core.start_steps / depth)
    steps = steps * (1.0 + core.entry_steps / nest.size(off(reduce, PACK)[-1:]))
    pixels, rows = _loads(nest)
    part, size = nest.short_tiles
    whole = _step_cycles(nest, tile, pixels, rows, spec, core)
    short = _step_cycles(nest, size * tile, size * pixels, rows, spec, core) if part.any() else 0.0
    cycles = steps * ((1.0 - part) * whole + part * short)
    return cycles * core.handed_over if nest.handed_over else cycles


def _loads(nest: BlockNest) -> tuple[Array, Array]:
    """What a step of a register tile loads: single numbers for all lanes, and vectors.

    Each operand once for all results that read the same of it: of a matrix product a number for
    each row and a vector for each 16 columns, but of one for each head both for each head as well.
    """
    written, found = on(nest.accesses.results, REGISTER), [0.0 * nest.one, 0.0 * nest.one]
    for operand in nest.accesses.operands:
        if moving(operand, nest.accesses.steps):  # others are loaded once, before
            along = bool(moving(operand, on(nest.loops, LANE)))
            found[along] = found[along] + nest.size(moving(operand, written))
    return found[0], found[1]


def _step_cycles(
    nest: BlockNest, tile: Array, pixels: Array, rows: Array, spec: DeviceSpec, core: Core
) -> Array:
    """Cycles of one step of a register tile that loads so many numbers and vectors, see `_loads`.

    The slowest of: multiply-adds with what unpacks the vectors of constants, their latency, loads
    from the nearest cache, and the way of both from the caches beyond.
    """
    slots, vectors = tile, 1.0
    if (chosen := nest.implementation(spec)) is None:
        slots = slots + rows * _unpacking(nest.accesses)
    else:
        slots = tile * chosen.slots + pixels * chosen.first_slots + rows * chosen.second_slots
        vectors = chosen.vectors
    turns = nest.turns(spec)
    # An intrinsic's instruction takes no number for all lanes from memory: it is spread before.
    broadcasts = pixels if chosen is None else pixels * turns
    arithmetic = np.maximum(slots * turns, core.latency_chains) / core.pipes
    wide = spec.vector_bits >= _WIDE_BITS
    slack = core.load_slack if wide else core.narrow_load_slack
    near = slack * vectors * (broadcasts + rows * turns) / core.loads
    far = rows * vectors * _vector_cycles(nest, spec, core)
    far = far + pixels / nest.lanes * _data_cycles(nest, spec, core)
    far = far + pixels * _conflict_cycles(nest, spec, core)
    spilled = 0.0 if wide else core.spilled * tile * _spills(nest, tile, rows, spec)
    spilled = spilled + core.spilled * turns * _spread_again(nest, tile, rows, spec)
    return np.maximum(np.maximum(arithmetic, near), far) + spilled + _refetches(nest, spec, core)


def _refetches(nest: BlockNest, spec: DeviceSpec, core: Core) -> Array:
    """Cycles of a step for what tiles and groups come back to, and no near cache kept.

    The rows of a tile are no stream that is read ahead, so nothing hides what the tiles of a group
    come back to. What groups come back to is read ahead, but takes its part of the way.
    """
    written = nest.size(on(nest.accesses.results, REGISTER))
    steps = nest.work / nest.lanes / nest.packs / written
    groups, operands = nest.size(on(nest.loops, GROUP)), nest.accesses.operands
    inside = sum((_refetched(nest, o, spec) for o in operands if o.scope == "global"), 0.0)
    shared = [operand for operand in operands if operand.scope in ("global", "constant")]
    between = sum((_passed_again(nest, operand, spec, core) for operand in shared), 0.0)
    return (core.refetch * groups * inside + between) / spec.cache_line_bytes / steps


def _refetched(nest: BlockNest, operand: AffineAccess, spec: DeviceSpec) -> Array:
    """Bytes that one group reads again from beyond the second-level cache.

    From the innermost loop outward: what several iterations read stays near if all of it fits. The
    taps of a window read the same data.
    """
    taps, size = {loop.var for loop in nest.accesses.window}, operand.item_bytes * nest.one
    read = size
    for loop in reversed(off(nest.loops, GROUP)):
        if loop.var in operand.changing and loop.var not in taps:
            size = size * nest.extent(loop)
        read = np.where(size > spec.l2_bytes, read * nest.extent(loop), size)
    return np.where(size > spec.l2_bytes, read, 0.0)


def _passed_again(nest: BlockNest, operand: AffineAccess, spec: DeviceSpec, core: Core) -> Array:
    """Cycles, times a line's bytes, for what groups read of what earlier ones have read.

    From the fastest number of a group to the slowest: of what groups read in turn, what exceeds the
    second-level cache comes from the shared one, or from memory where that does not hold it.
    """
    taps = {loop.var for loop in nest.accesses.window}
    every = [n for n in moving(operand, nest.loops) if n.var not in taps]
    size, again = operand.item_bytes * nest.size(off(every, GROUP)), 0.0 * nest.one
    if taps:  # windows that are some steps apart read what lies between, too
        read = operand.item_bytes * nest.size(every)
        size = size * np.maximum(1.0, nest.buffer_bytes(operand) / read)
    kept = (spec.l3_bytes or np.inf) * (1.0 if operand.constant else core.data_share)
    for loop in sorted(on(nest.loops, GROUP), key=lambda loop: loop.kind):
        extent = nest.extent(loop)
        again = again * extent
        if loop.var in operand.changing:
            size = size * extent
        else:
            cycles = np.where(size > kept, core.from_memory, core.passed_again)
            beyond = np.maximum(size - spec.l2_bytes, 0.0)
            again = again + cycles * beyond * (extent - 1.0)
    return again


def _spills(nest: BlockNest, tile: Array, rows: Array, spec: DeviceSpec) -> Array:
    """Whether an unrolled step of single vectors lacks a register for the broadcast of the next."""
    innermost = off(nest.accesses.steps, LANE, PACK)[-1:]
    unrolled = nest.unroll_factor(innermost[0]) > 1.0 if innermost else nest.one < 0.0
    return unrolled & (rows == 1.0) & (tile + rows + 1.0 >= spec.vector_registers)


def _spread_again(nest: BlockNest, tile: Array, rows: Array, spec: DeviceSpec) -> Array:
    """Vectors that a step stores and loads, where taps that read the same numbers are written out.

    The device's compiler spreads such a number over the lanes of a register once, for all of these
    taps. A tile that leaves too few registers for them has it store them until the next tap.
    """
    taps, shared = on(nest.accesses.window, REGISTER), 0.0 * nest.one
    for operand in nest.accesses.operands:
        if moving(operand, taps) and not moving(operand, on(nest.loops, LANE)):
            shared = shared + _shared_numbers(nest, operand, taps)
    return np.where(tile + rows + shared > spec.vector_registers, shared, 0.0) / nest.size(taps)


def _shared_numbers(nest: BlockNest, operand: AffineAccess, taps: Sequence[For]) -> Array:
    """Elements of an operand that several of a register tile's taps read."""
    written = on(nest.accesses.results, REGISTER)
    every, once = nest.one, nest.one
    for d in range(len(operand.load.indices)):
        along = [[n for n in loops if d in operand.dimensions(n.var)] for loops in (written, taps)]
        far, near = (max((operand.step(n.var) for n in x), default=1.0) for x in along)
        found = window_elements(nest.size(along[0]), nest.size(along[1]), far / near)
        every, once = every * found[0], once * found[1]
    return every - once


def window_elements(results: Array, taps: Array, stride: float) -> tuple[Array, Array]:
    """Elements along an axis that neighbouring windows read, and those that only one of them reads.

    `stride`, in taps, lies between two windows. Each float64 [n].
    """
    if stride < 1.0:  # dilated: taps lie several results apart
        results, taps, stride = taps, results, 1.0 / stride
    read_again = (results - 1.0) * np.maximum(taps - stride, 0.0)
    every = results * taps - read_again
    ends = np.minimum(2.0 * stride, every)
    return every, np.maximum(every - read_again, np.where(results > 1.0, ends, every))


@lru_cache(maxsize=1024)
def _unpacking(stage: Accesses) -> int:
    """Operators that make a factor of a product from constants: once for all pixels of a tile."""
    value = stage.block.value
    if not isinstance(value, Binary) or value.op != "mul":
        return 0
    constants = {operand.load for operand in stage.operands if operand.constant}
    factors = [factor for factor in (value.a, value.b) if set(loads(factor)) <= constants]
    return sum(map(operators, factors))


def _conflict_cycles(nest: BlockNest, spec: DeviceSpec, core: Core) -> Array:
    """Cycles for a broadcast where a tile's pixels share too few sets of the nearest cache."""
    return core.conflict * np.any(nest.crowds(nest.broadcasts, spec), axis=0)


def _vector_cycles(nest: BlockNest, spec: DeviceSpec, core: Core) -> Array:
    """Cycles for a vector of a step's rows, on the average over the tiles that read it again."""
    constants = [operand for operand in nest.accesses.operands if operand.constant]
    if constants:
        costs = [_constant_cycles(nest, operand, spec, core) for operand in constants]
        return np.maximum.reduce(costs)
    maps = [o for o in nest.accesses.operands if o.scope == "global" and _jumps(nest, o)]
    return np.maximum.reduce(
        [core.far * nest.one, *(_lane_map_cycles(nest, o, core) for o in maps)]
    )


def _jumps(nest: BlockNest, operand: AffineAccess) -> bool:
    """Whether each step reads vectors of it somewhere else."""
    steps = off(nest.accesses.steps, LANE, PACK)
    along = operand.runs_along(on(nest.loops, LANE))
    return along and bool(moving(operand, steps)) and not operand.runs_along(steps)


def _lane_map_cycles(nest: BlockNest, operand: AffineAccess, core: Core) -> Array:
    """Rows of a map lie as they are: the fewer vectors lie side by side in a step, the more of each
    line is read for nothing, and the less is read ahead."""
    written = on(nest.accesses.results, REGISTER)
    beside = nest.size([loop for loop in written if loop.var in operand.last])
    run = operand.item_bytes * nest.lanes * beside
    return core.far * (1.0 + core.run_bytes / run / _tiles_around(nest, operand))


def _tiles_around(nest: BlockNest, operand: AffineAccess) -> Array:
    """Tiles of a block, one after the other, that read the same of it."""
    around = [n for n in on(nest.accesses.results, BLOCK) if n.var not in operand.changing]
    return np.maximum(1.0, nest.size(around) * nest.inside(around))


def _constant_cycles(nest: BlockNest, operand: AffineAccess, spec: DeviceSpec, core: Core) -> Array:
    """Beside private arrays constants share the caches; on their own they are read ahead.

    What one tile reads may stay in the nearest cache for the next one, or else in the one
    after it. The first time it comes from beyond that, unless all of it fits, and from memory, if
    the shared cache does not hold it either. A vector takes its part of a line.
    """
    group = off(nest.loops, GROUP)
    far, farther, stream, memory = (
        part * spec.lanes_f32 * itemsize(FLOAT32) / spec.cache_line_bytes
        for part in (core.far, core.farther, core.stream, core.memory_stream)
    )
    every = nest.footprint(operand, nest.loops)
    if any(operand.scope == "private" for operand in nest.accesses.operands):
        shared = np.where(nest.footprint(operand, group) > spec.l2_bytes, farther, far)
        again = far * nest.one
    else:
        tile = nest.footprint(operand, [*off(group, BLOCK), *on(nest.accesses.steps, BLOCK)])
        shared = np.where(every > spec.l2_bytes, stream, far)
        again = np.where(2.0 * tile > spec.l1_bytes, far, core.near)
    kept = (spec.l3_bytes or np.inf) * core.constants_share
    first = np.where(every > kept, memory, shared)
    tiles = _tiles_around(nest, operand)
    return (first + (tiles - 1.0) * again) / tiles


def _data_cycles(nest: BlockNest, spec: DeviceSpec, core: Core) -> Array:
    """Cycles for a vector of a private array that exceeds the cache."""
    private = [operand for operand in nest.accesses.operands if operand.scope == "private"]
    beyond = [nest.buffer_bytes(operand) > spec.l2_bytes for operand in private]
    return core.farther * np.any(beyond, axis=0)

"""A static estimate of candidates for CPUs: work, what keeps it waiting, and the cores' shares.

Work done (overlapping tiles count twice), the share of it that vector units and registers can
keep busy, and the idle tail of the last work-groups, from loop extents alone.
"""

from functools import lru_cache

import numpy as np

from retune.core.dtypes import FLOAT32, itemsize
from retune.core.target import DeviceSpec
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Select, Var, loads, variables
from retune.ir.te import body_flops
from retune.schedule.access import Accesses, AffineAccess
from retune.targets.cost.core import Core
from retune.targets.cost.nests import Array, BlockNest, Kernel, off, on, parallel_extent
from retune.targets.cost.tiles import tile_cycles
from retune.targets.cost.windows import window_cycles
from retune.targets.tiling import GROUP

_CORE = Core()


def cpu_cycles(kernel: Kernel, spec: DeviceSpec, core: Core = _CORE) -> Array:
    """Cycles until all cores are done with a kernel. float64 [n]"""
    cycles = _map_cycles(kernel, spec, core)
    for nest in kernel:
        cycles = cycles + _nest_cycles(nest, spec, core)
    cycles = _spread(cycles, parallel_extent(kernel, GROUP), spec, core)
    return cycles + core.wait_cycles * any(nest.handed_over for nest in kernel)


def _nest_cycles(nest: BlockNest, spec: DeviceSpec, core: Core) -> Array:
    """Cycles of one core for all iterations."""
    if nest.accesses.block.reducer is None:
        arithmetic, traffic = _element_cycles(nest.accesses, core)
        cycles = nest.work / nest.lanes * (nest.turns(spec) * arithmetic + traffic)
        cycles = cycles + _conflict_cycles(nest, spec, core)
        return cycles + _line_cycles(nest, spec, core)
    cost = window_cycles if nest.accesses.lane_wise else tile_cycles
    return cost(nest, spec, core)


def _conflict_cycles(nest: BlockNest, spec: DeviceSpec, core: Core) -> Array:
    """Cycles for private arrays of which a tile takes more lines of one set than the nearest cache
    holds: the places of a transform lie as far apart as its tiles and channels are many."""
    return core.crowded * nest.crowds(nest.private, spec).sum(axis=0) * nest.work / nest.lanes


def _line_cycles(nest: BlockNest, spec: DeviceSpec, core: Core) -> Array:
    """Cycles for coming back to lines of a map that were written in part before.

    What a tile writes side by side may be less than a line, as vectors of bytes are. The rest of it
    comes while the line is near, or else the line is fetched again.
    """
    result = nest.accesses.result
    if result.scope != "global":
        return 0.0 * nest.one
    run, between = result.item_bytes * nest.one, nest.one
    beside = _neighbours(result, spec.cache_line_bytes)
    for loop in reversed(off(nest.loops, GROUP)):
        if loop.var in beside:
            near = core.kept * spec.cache_line_bytes * between <= spec.l1_bytes
            run = run * np.where(near, nest.extent(loop), 1.0)
        elif loop.var in result.moving:
            between = between * nest.extent(loop)
    times = np.maximum(spec.cache_line_bytes / np.maximum(run, 1.0), 1.0) - 1.0
    lines = times * result.item_bytes * nest.work / spec.cache_line_bytes
    return core.returned * (lines + _divided_lines(nest, spec))


def _divided_lines(nest: BlockNest, spec: DeviceSpec) -> Array:
    """Lines at the ends of rows that a group writes in part, and another one much later.

    Lines that groups write side by side in turn do not count: they are still near.
    """
    result = nest.accesses.result
    along = [loop for loop in nest.loops if loop.var in result.last - result.outer]
    run = result.item_bytes * nest.size(off(along, GROUP))
    late, groups = nest.one < 0.0, nest.one
    for loop in sorted(on(nest.loops, GROUP), key=lambda loop: loop.kind):
        if loop in along:
            late = late | ((groups > 1.0) & (nest.extent(loop) > 1.0))
        groups = groups * nest.extent(loop)
    ends = nest.work * result.item_bytes / run * (1.0 - 1.0 / nest.size(on(along, GROUP)))
    return ends * (late & (run % spec.cache_line_bytes > 0.0))


def _neighbours(result: AffineAccess, line_bytes: int) -> frozenset[Var]:
    """The variables along which results lie side by side: of the last index, and of the one before
    it where a row is less than a line."""
    indices, shape = result.load.indices, result.load.buffer.shape
    row = evaluate_int(shape[-1]) * result.item_bytes if len(shape) > 1 else line_bytes
    return result.last | (variables(indices[-2]) if row < line_bytes else frozenset[Var]())


@lru_cache(maxsize=1024)
def _element_cycles(stage: Accesses, core: Core) -> tuple[float, float]:
    """Cycles for a vector of an element-wise stage: its operators, and private arrays' traffic.

    Traffic takes no turns: what the nearest cache does not hold comes and goes by lines.
    """
    choices, value = 1, stage.block.value
    while isinstance(value, Select) and not loads(value.condition) and loads(value.otherwise):
        choices, value = choices + 1, value.otherwise
    private = stage.result.scope == "private"
    private += any(operand.scope == "private" for operand in stage.operands)
    operators = max(1.0, body_flops(stage.block.value) / choices)
    return operators / core.pipes, core.private * private


def _map_cycles(kernel: Kernel, spec: DeviceSpec, core: Core) -> Array:
    """Cycles of one core for the maps that a kernel hands over, or takes, and no cache holds."""
    maps = {name: (nest, o) for nest in kernel for name, o in nest.maps.items()}
    cycles = 0.0 * kernel[0].one
    for nest, operand in maps.values():
        size = nest.buffer_bytes(operand)
        vectors = size / (spec.lanes_f32 * itemsize(FLOAT32))
        cycles = cycles + (size > spec.l2_bytes * spec.compute_units) * core.map * vectors
    return cycles


def _spread(cycles: Array, groups: Array, spec: DeviceSpec, core: Core) -> Array:
    """Cycles until the last core is done: each has taken whole groups, and not all at one pace."""
    units = spec.compute_units
    even = groups / units + core.uneven * (1.0 - 1.0 / units)
    return (cycles / np.maximum(groups, 1) + core.group_cycles) * np.maximum(
        np.ceil(groups / units), even
    )

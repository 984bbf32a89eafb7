"""A static estimate of candidates: the order in which to try them before anything is measured.

Work done (overlapping tiles count twice), the share of it that vector units and registers can
keep busy, and the idle tail of the last work-groups, from loop extents alone.
"""

from collections.abc import Mapping

import numpy as np

from retune.core.target import DeviceSpec
from retune.ir.evaluate import evaluate
from retune.ir.expr import Expr, Select, Var, loads, variables
from retune.ir.reduction import path_to
from retune.ir.stmt import Block, For, blocks
from retune.ir.te import body_flops
from retune.schedule.space import Candidate, Candidates, Sketch, Space
from retune.schedule.window_cost import broadcasts_nothing, window_cycles

_LATENCY_CHAINS = 10.0
"""Independent accumulators that hide the latency of a multiply-add on two pipes."""
_LOADS_PER_CYCLE = 2.0
_LOAD_SLACK = 1.15
"""Loads reach this much less than their peak rate beside multiply-adds (measured, 14 x 1 tiles)."""
_FAR_CYCLES = 2.0
"""Cycles for a vector from the second-level cache."""
_PIPES = 2.0
"""Vector multiply-adds that a core starts in each cycle."""
_START = 4.0
"""Steps of a reduction's depth that setting and storing the accumulators costs."""
_STEP = 0.5
"""Steps of the innermost reduce loop that entering it costs."""
_GROUP_CYCLES = 600.0
"""What taking a work-group of a nest costs (persistent workers share a counter)."""
_FARTHER_CYCLES = 8.0
"""Cycles for a vector from beyond the second-level cache."""
_PRIVATE_CYCLES = 1.5
"""Cycles for a vector to or from a private array."""
_SAMPLES = 1024
_SEED = 0


def estimate(sketch: Sketch, rows: np.ndarray, spec: DeviceSpec) -> np.ndarray:
    """Relative time of each row's program, in cycles; smaller is better. float64 [n]"""
    values = sketch.symbols(rows)
    total = np.zeros(len(rows))
    for root in sketch.program.body.stmts:
        if blocks(root)[0].buffer.scope == "constant":
            continue  # evaluated at compile time
        cycles, groups = np.zeros(len(rows)), np.ones(len(rows))
        for block in blocks(root):
            nest = _Nest(block, path_to(root, block) or [], values, len(rows))
            groups = np.maximum(groups, nest.groups)
            cycles = cycles + nest.cycles(spec)
        total = total + _spread(cycles, groups, spec)
    return total


class _Nest:
    """One block with the extents of the loops around it, for all candidates. Each float64 [n]."""

    def __init__(
        self, block: Block, path: list[For], values: Mapping[Var, np.ndarray], count: int
    ) -> None:
        self.block = block
        self.path = path
        self.extents = {loop.var: _sized(loop.extent, values, count) for loop in path}
        self.sizes = {
            load.buffer: np.prod([_sized(e, values, count) for e in load.buffer.shape], axis=0)
            for load in loads(block.value)
        }
        self.one = np.ones(count)
        self.work, self.groups, self.tile, self.lanes, self.rows, self.depth = (self.one,) * 6
        for loop in path:
            extent = self.extents[loop.var]
            self.work = self.work * extent
            if loop.kind.startswith("group"):
                self.groups = self.groups * extent
            elif loop.kind == "vectorize":
                self.lanes = self.lanes * extent
            elif loop.kind == "unroll" and not loop.reduce:
                self.rows, self.tile = extent, self.tile * extent
            elif loop.reduce:
                self.depth = self.depth * extent

    def cycles(self, spec: DeviceSpec) -> np.ndarray:
        """Cycles of one core for all iterations."""
        if self.block.reducer is None:
            return self.work / self.lanes * _element_cycles(self.block)
        if broadcasts_nothing(self.block, self.path):
            return window_cycles(self.block, self.path, self.extents, spec)
        near = self.one
        for loop in self.path:
            near = self.extents[loop.var] if loop.reduce else near
        steps = self.work / self.lanes / self.tile
        steps = steps * (1.0 + _START / self.depth) * (1.0 + _STEP / near)
        return steps * self._step_cycles(spec)

    def _step_cycles(self, spec: DeviceSpec) -> np.ndarray:
        """Cycles of one step of a register tile of `rows` vectors for each of its pixels.

        The slowest of: multiply-adds, their latency, loads from the nearest cache (a broadcast
        for each pixel, `rows` vectors), and the way of both from the caches beyond.
        """
        pixels = self.tile / self.rows
        arithmetic = np.maximum(self.tile, _LATENCY_CHAINS) / _PIPES
        near = _LOAD_SLACK * (pixels + self.rows) / _LOADS_PER_CYCLE
        far = self.rows * self._weight_cycles(spec) + pixels / self.lanes * self._data_cycles(spec)
        return np.maximum(np.maximum(arithmetic, near), far)

    def _weight_cycles(self, spec: DeviceSpec) -> np.ndarray:
        """Cycles for a vector of constants: beside private arrays they may exceed the cache.

        They come from beyond it once, and stay near for the loops inside that read them again. On
        their own they are read ahead in time, wherever they lie (measured: 512 channels of 3x3).
        """
        cycles = _FAR_CYCLES * self.one
        if not any(buffer.scope == "private" for buffer in self.sizes):
            return cycles
        for load in loads(self.block.value):
            if load.buffer.scope != "constant":
                continue
            used = {v for index in load.indices for v in variables(index)}
            own, again = 4.0 * self.one, self.one
            for loop in self.path:
                if loop.var in used and not loop.kind.startswith("group"):
                    own = own * self.extents[loop.var]
                elif loop.kind == "serial" and not loop.reduce:
                    again = again * self.extents[loop.var]
            first = np.where(own > spec.l2_bytes, _FARTHER_CYCLES, _FAR_CYCLES)
            cycles = np.maximum(cycles, (first + (again - 1.0) * _FAR_CYCLES) / again)
        return cycles

    def _data_cycles(self, spec: DeviceSpec) -> np.ndarray:
        """Cycles for a vector of a private array that exceeds the cache."""
        cycles = 0.0 * self.one
        for buffer, elements in self.sizes.items():
            if buffer.scope == "private":
                cycles = np.where(4.0 * elements > spec.l2_bytes, _FARTHER_CYCLES, cycles)
        return cycles


def _sized(extent: Expr, values: Mapping[Var, np.ndarray], count: int) -> np.ndarray:
    return np.broadcast_to(np.asarray(evaluate(extent, values), float), count)


def _element_cycles(block: Block) -> float:
    """Cycles for a vector of an element-wise stage: its operators, and private arrays' traffic."""
    choices, value = 1, block.value
    while isinstance(value, Select) and not loads(value.condition) and loads(value.otherwise):
        choices, value = choices + 1, value.otherwise
    private = block.buffer.scope == "private"
    private += any(load.buffer.scope == "private" for load in loads(block.value))
    return max(1.0, body_flops(block.value) / choices) / _PIPES + _PRIVATE_CYCLES * private


def _spread(cycles: np.ndarray, groups: np.ndarray, spec: DeviceSpec) -> np.ndarray:
    """Cycles until the last core is done: each has taken whole groups."""
    return (cycles / groups + _GROUP_CYCLES) * np.ceil(groups / spec.compute_units)


def default_candidate(space: Space, spec: DeviceSpec) -> Candidate:
    """What to compile with when no record exists: the best by the estimate, always the same.

    A sketch that states an untuned row enters with that row alone.
    """
    rng = np.random.default_rng(_SEED)
    best: tuple[float, Candidates] | None = None
    for number, sketch in enumerate(space.sketches):
        stated = sketch.untuned
        rows = sketch.sample(_SAMPLES, rng) if stated is None else stated[None]
        if not len(rows):
            continue
        times = estimate(sketch, rows, spec)
        winner = int(np.argmin(times))
        if best is None or times[winner] < best[0]:
            best = (float(times[winner]), space.population(number, rows[winner : winner + 1]))
    assert best is not None, "a space has at least one valid candidate"
    return space.candidate(best[1], 0)

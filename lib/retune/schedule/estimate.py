"""A static estimate of candidates: the order in which to try them before anything is measured.

Work done (overlapping tiles count twice), the share of it that vector units and registers can
keep busy, and the idle tail of the last work-groups, from loop extents alone.
"""

import numpy as np

from retune.core.target import DeviceSpec
from retune.ir.evaluate import evaluate
from retune.ir.expr import Var
from retune.ir.reduction import path_to
from retune.ir.stmt import Block, For, blocks
from retune.schedule.space import Candidate, Candidates, Sketch, Space

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
_GROUP_CYCLES = 300.0
"""What taking a work-group costs (persistent workers share a counter)."""
_SAMPLES = 1024
_SEED = 0


def estimate(sketch: Sketch, rows: np.ndarray, spec: DeviceSpec) -> np.ndarray:
    """Relative time of each row's program, in cycles; smaller is better. float64 [n]"""
    values = sketch.symbols(rows)
    total = np.zeros(len(rows))
    for block in blocks(sketch.program.body):
        if block.buffer.scope == "constant":
            continue  # evaluated at compile time
        path = path_to(sketch.program.body, block) or []
        extents = {
            loop.var: np.broadcast_to(np.asarray(evaluate(loop.extent, values), float), len(rows))
            for loop in path
        }
        total = total + _block_time(block, path, extents, len(rows), spec)
    return total


def _block_time(
    block: Block, path: list[For], extents: dict[Var, np.ndarray], count: int, spec: DeviceSpec
) -> np.ndarray:
    work, groups, tile, lanes, rows, depth = (np.ones(count) for _ in range(6))
    for loop in path:
        extent = extents[loop.var]
        work = work * extent
        if loop.kind.startswith("group"):
            groups = groups * extent
        elif loop.kind == "vectorize":
            lanes = lanes * extent
        elif loop.kind == "unroll" and not loop.reduce:
            rows, tile = extent, tile * extent
        elif loop.reduce:
            depth = depth * extent
    if block.reducer is None:
        return _spread(work / lanes / _PIPES, groups, spec)
    near = np.ones(count)
    for loop in path:
        near = extents[loop.var] if loop.reduce else near
    steps = work / lanes / tile * (1.0 + _START / depth) * (1.0 + _STEP / near)
    return _spread(steps * _step_cycles(tile, rows), groups, spec)


def _step_cycles(tile: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Cycles of one step of a register tile of `rows` vectors for each of its pixels.

    The slowest of: multiply-adds, their latency, loads from the nearest cache (a broadcast for
    each pixel, `rows` vectors), and the vectors' way from the next cache.
    """
    pixels = tile / rows
    arithmetic = np.maximum(tile, _LATENCY_CHAINS) / _PIPES
    near = _LOAD_SLACK * (pixels + rows) / _LOADS_PER_CYCLE
    return np.maximum(np.maximum(arithmetic, near), _FAR_CYCLES * rows)


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

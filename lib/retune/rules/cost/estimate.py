"""A static estimate of candidates: the order in which to try them before anything is measured.

Work done (overlapping tiles count twice), the share of it that vector units and registers can
keep busy, and the idle tail of the last work-groups, from loop extents alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from retune.core.target import DeviceSpec
from retune.ir.evaluate import Formulas
from retune.ir.expr import Buffer, Expr, Load, Select, Var, const, loads, variables
from retune.ir.reduction import path_to
from retune.ir.simplify import affine
from retune.ir.stmt import Block, For, blocks, is_compile_time
from retune.ir.te import body_flops
from retune.rules.cost.conflicts import WAY_BYTES, crowded
from retune.rules.cost.gpu import gpu_estimate
from retune.rules.cost.windows import broadcasts_nothing, window_cycles
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
_GROUP_CYCLES = 600.0
"""What taking a work-group of a nest costs (persistent workers share a counter)."""
_FARTHER_CYCLES = 8.0
"""Cycles for a vector from beyond the second-level cache, where private arrays are read too."""
_STREAM_CYCLES = 5.6
"""Cycles for a vector from there when nothing else is read: constants come ahead of their use
(measured: 38 MB of transformed weights in 870 us on two cores)."""
_NEAR_CYCLES = 0.5
"""Cycles for a vector from the first-level cache."""
_CONFLICT_CYCLES = 1.3
"""Cycles for a broadcast from a line that others of its set push out (measured, 14 in 12 ways; as
many as there are ways, 8 in 8, take 1.02 to 1.14 of the time)."""
_HANDED_OVER = 1.06
"""Time of a reduction over what the nest before has just written, such as padded data (measured:
1.08 times the time of like tiles over masked data, 162 candidates of 24 layers; vgg19 with default
schedules so takes 0.91 of the time, in turns). The copy itself is a hundredth of it; the rest is
not proven: the lines lie in the caches of the cores that wrote them."""
_MAP_CYCLES = 5.0
"""Cycles for a vector of a map between two nests, to or from beyond the second-level caches
(measured: staged Winograd on 55x55 to 224x224 maps took 3 to 12 a vector longer than without)."""
_WAIT_CYCLES = 3000.0
"""What a nest that reads another one's results waits until all of them are there (measured:
staged Winograd on 6x6 and 7x7 maps)."""
_UNEVEN = 0.5
"""Work-groups that a core waits for the others at the end: cores are disturbed, groups are not
equal (measured: two groups for two cores took up to 1.7 times as long as sixteen)."""
_PRIVATE_CYCLES = 1.5
"""Cycles for a vector to or from a private array."""
_SAMPLES = 1024
_SEED = 0


def estimate(sketch: Sketch, rows: np.ndarray, spec: DeviceSpec) -> np.ndarray:
    """Relative time of each row's program, in cycles; smaller is better. float64 [n]"""
    if spec.device_class == "gpu":
        return gpu_estimate(sketch, rows, spec)
    formulas, roots = _shapes(sketch)
    numbers = formulas(sketch.symbols(rows), len(rows))
    total = np.zeros(len(rows))
    for shapes in roots:
        cycles, groups = _map_cycles(shapes, numbers, spec), np.ones(len(rows))
        for shape in shapes:
            nest = _Nest(shape, numbers)
            groups = np.maximum(groups, nest.groups)
            cycles = cycles + nest.cycles(spec)
        total = total + _spread(cycles, groups, spec)
        total = total + _WAIT_CYCLES * any(shape.handed_over for shape in shapes)
    return total


def _map_cycles(shapes: Sequence["_Shape"], numbers: np.ndarray, spec: DeviceSpec) -> np.ndarray:
    """Cycles of one core for the maps that a nest hands over, or takes, and no cache holds."""
    maps: dict[Buffer, tuple[int, ...]] = {}
    for shape in shapes:
        maps |= shape.maps
    cycles = np.zeros(numbers.shape[1])
    for extents in maps.values():
        elements = np.prod(numbers[list(extents)], axis=0)
        far = 4.0 * elements > spec.l2_bytes * spec.compute_units
        cycles = cycles + far * _MAP_CYCLES * elements / spec.lanes_f32
    return cycles


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class _Shape:
    """A block and the loops around it. Rows are places of values in what `Formulas` gives."""

    block: Block
    path: tuple[For, ...]
    extents: tuple[int, ...]
    """Rows of the loops' extents."""
    sizes: Mapping[Buffer, tuple[int, ...]]
    """Rows of the extents of each buffer that is read."""
    maps: Mapping[Buffer, tuple[int, ...]]
    """Rows of the extents of each buffer between two nests that is read or written."""
    window: bool
    """Whether it is a reduction each of whose operands is a vector."""
    handed_over: bool
    """Whether it reads what another nest writes."""
    element_cycles: float
    """Cycles for a vector, if it is no reduction."""
    constants: tuple[set[Var], ...]
    """For each read of a constant, the variables that change what is read."""
    broadcasts: tuple[tuple[tuple[Var, int], ...], ...]
    """For each read of one number for all lanes: the written-out spatial loops, with the row of
    the bytes between what two neighbouring copies read."""


@lru_cache(maxsize=256)
def _shapes(sketch: Sketch) -> tuple[Formulas, tuple[tuple[_Shape, ...], ...]]:
    """The blocks of each root nest that runs; what is evaluated at compile time costs nothing."""
    formulas = Formulas()
    roots = [
        tuple(
            _shape(block, tuple(path_to(root, block) or ()), formulas, sketch.program.scratch)
            for block in blocks(root)
        )
        for root in sketch.program.body.stmts
        if not is_compile_time(root)
    ]
    return formulas, tuple(roots)


def _shape(
    block: Block, path: tuple[For, ...], formulas: Formulas, scratch: tuple[Buffer, ...]
) -> _Shape:
    reads = loads(block.value)
    between = {b for b in (block.buffer, *(r.buffer for r in reads)) if b in scratch}
    across = {loop.var for loop in path if loop.kind == "vectorize"}
    copied = [loop.var for loop in path if loop.kind == "unroll" and not loop.reduce]
    return _Shape(
        block=block,
        path=path,
        extents=tuple(formulas.row(loop.extent) for loop in path),
        sizes={r.buffer: tuple(formulas.row(e) for e in r.buffer.shape) for r in reads},
        maps={b: tuple(formulas.row(e) for e in b.shape) for b in between if b.scope == "global"},
        window=broadcasts_nothing(block, path),
        handed_over=any(r.buffer in scratch and r.buffer.scope == "global" for r in reads),
        element_cycles=_element_cycles(block),
        constants=tuple(variables(read) for read in reads if read.buffer.scope == "constant"),
        broadcasts=tuple(
            tuple((var, formulas.row(_bytes_apart(read, var))) for var in copied)
            for read in reads
            if read.buffer.scope == "global" and not variables(read) & across
        ),
    )


def _bytes_apart(load: Load, var: Var) -> Expr:
    """Bytes between what neighbouring iterations read; what is not affine counts as staying."""
    step: Expr = const(0)
    size: Expr = const(4)
    for index, extent in zip(reversed(load.indices), reversed(load.buffer.shape), strict=True):
        form = affine(index, [var])
        if form is not None and var in form[0]:
            step = step + size * form[0][var]
        size = size * extent
    return step


class _Nest:
    """One block with the extents of the loops around it, for all candidates. Each float64 [n]."""

    def __init__(self, shape: _Shape, numbers: np.ndarray) -> None:
        self.shape = shape
        self.block = shape.block
        self.path = shape.path
        self.numbers = numbers
        self.extents = {
            loop.var: numbers[row] for loop, row in zip(shape.path, shape.extents, strict=True)
        }
        self.one = np.ones(numbers.shape[1])
        self.work, self.groups, self.tile, self.lanes, self.rows, self.depth = (self.one,) * 6
        for loop in self.path:
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
            return self.work / self.lanes * self.shape.element_cycles
        if self.shape.window:
            return window_cycles(self.block, self.path, self.extents, spec)
        near = self.one
        for loop in self.path:
            near = self.extents[loop.var] if loop.reduce else near
        steps = self.work / self.lanes / self.tile
        steps = steps * (1.0 + _START / self.depth) * (1.0 + _STEP / near)
        cycles = steps * self._step_cycles(spec)
        return cycles * _HANDED_OVER if self.shape.handed_over else cycles

    def _step_cycles(self, spec: DeviceSpec) -> np.ndarray:
        """Cycles of one step of a register tile of `rows` vectors for each of its pixels.

        The slowest of: multiply-adds, their latency, loads from the nearest cache (a broadcast
        for each pixel, `rows` vectors), and the way of both from the caches beyond.
        """
        pixels = self.tile / self.rows
        arithmetic = np.maximum(self.tile, _LATENCY_CHAINS) / _PIPES
        near = _LOAD_SLACK * (pixels + self.rows) / _LOADS_PER_CYCLE
        far = self.rows * self._weight_cycles(spec) + pixels / self.lanes * self._data_cycles(spec)
        far = far + pixels * self._conflict_cycles(spec)
        return np.maximum(np.maximum(arithmetic, near), far)

    def _conflict_cycles(self, spec: DeviceSpec) -> np.ndarray:
        """Cycles for a broadcast where a tile's pixels share too few sets of the nearest cache."""
        ways = max(1, spec.l1_bytes // WAY_BYTES)
        cycles = 0.0 * self.one
        for loops in self.shape.broadcasts:
            axes = [(self.extents[var], self.numbers[row]) for var, row in loops]
            cycles = np.where(crowded(axes, len(self.one)) > ways, _CONFLICT_CYCLES, cycles)
        return cycles

    def _weight_cycles(self, spec: DeviceSpec) -> np.ndarray:
        """Cycles for a vector of constants, on the average over the tiles that read it again."""
        private = any(buffer.scope == "private" for buffer in self.shape.sizes)
        found = [
            self._constant_cycles(used, spec, private=private) for used in self.shape.constants
        ]
        return np.max(found, axis=0) if found else _FAR_CYCLES * self.one

    def _constant_cycles(self, used: set[Var], spec: DeviceSpec, *, private: bool) -> np.ndarray:
        """Beside private arrays constants share the caches; on their own they are read ahead.

        What one tile reads may stay in the nearest cache for the next one, or else in the one
        after it. The first time it comes from beyond that, unless all of it fits.
        """
        tile, group, whole, tiles = 4.0 * self.one, 4.0 * self.one, 4.0 * self.one, self.one
        for loop in self.path:
            extent = self.extents[loop.var]
            shared = loop.kind.startswith("group")
            repeated = loop.kind == "serial" and not loop.reduce
            if loop.var in used:
                whole = whole * extent
                group = group if shared else group * extent
                tile = tile if shared or repeated else tile * extent
            elif repeated:
                tiles = tiles * extent
        if private:
            first = np.where(group > spec.l2_bytes, _FARTHER_CYCLES, _FAR_CYCLES)
            again = _FAR_CYCLES * self.one
        else:
            first = np.where(whole > spec.l2_bytes, _STREAM_CYCLES, _FAR_CYCLES)
            again = np.where(2.0 * tile > spec.l1_bytes, _FAR_CYCLES, _NEAR_CYCLES)
        return (first + (tiles - 1.0) * again) / tiles

    def _data_cycles(self, spec: DeviceSpec) -> np.ndarray:
        """Cycles for a vector of a private array that exceeds the cache."""
        cycles = 0.0 * self.one
        for buffer, extents in self.shape.sizes.items():
            if buffer.scope == "private":
                elements = np.prod(self.numbers[list(extents)], axis=0)
                cycles = np.where(4.0 * elements > spec.l2_bytes, _FARTHER_CYCLES, cycles)
        return cycles


def _element_cycles(block: Block) -> float:
    """Cycles for a vector of an element-wise stage: its operators, and private arrays' traffic."""
    choices, value = 1, block.value
    while isinstance(value, Select) and not loads(value.condition) and loads(value.otherwise):
        choices, value = choices + 1, value.otherwise
    private = block.buffer.scope == "private"
    private += any(load.buffer.scope == "private" for load in loads(block.value))
    return max(1.0, body_flops(block.value) / choices) / _PIPES + _PRIVATE_CYCLES * private


def _spread(cycles: np.ndarray, groups: np.ndarray, spec: DeviceSpec) -> np.ndarray:
    """Cycles until the last core is done: each has taken whole groups, and not all at one pace."""
    units = spec.compute_units
    even = groups / units + _UNEVEN * (1.0 - 1.0 / units)
    return (cycles / groups + _GROUP_CYCLES) * np.maximum(np.ceil(groups / units), even)


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

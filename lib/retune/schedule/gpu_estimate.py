"""A static estimate of candidates for GPUs: occupancy, coalescing and arithmetic intensity.

For each kernel: the cycles in which one compute unit issues a work-group's instructions and reads
its operands, how many groups it holds at once (registers, local memory, items), whether these
have enough independent work to hide latency, and how many rounds of groups the device runs. The
figures are those of NVIDIA's compute units since Volta; other GPUs differ in scale, and only the
order of candidates matters. Sources: CUDA C++ Programming Guide, chapter "Arithmetic Instructions"
and "Technical Specifications per Compute Capability".
"""

from collections.abc import Mapping

import numpy as np

from retune.core.target import DeviceSpec
from retune.ir.evaluate import evaluate_each
from retune.ir.expr import Expr, Load, Var, loads, variables
from retune.ir.reduction import path_to
from retune.ir.stmt import Block, For, Stmt, blocks, is_compile_time
from retune.schedule.space import Sketch

Array = np.ndarray

_WARP = 32.0
_ISSUES = 4.0
"""Warp instructions that a compute unit starts in a cycle."""
_REGISTERS = 65_536.0
_OWN_REGISTERS = 40.0
"""Registers of an item besides its accumulators: operands and addresses."""
_MOST_ITEMS = 2048.0
_MOST_GROUPS = 32.0
_LOCAL_BYTES = 228.0 * 1024
"""Local memory of a compute unit; one group may take `spec.local_memory_bytes` of it."""
_CHAINS = 32.0
"""Independent warp instructions that keep a unit's pipelines full: four parts, latency of some
four cycles, two issued at once."""
_FETCH_LATENCY = 700.0
"""Cycles from global memory to the other side of a barrier."""
_FETCH_INSTRUCTIONS = 12.0
"""Addresses, test, load and store for each vector that is copied to local memory."""
_L2_BYTES = 32.0
"""Bytes that a unit gets from the second-level cache in a cycle, all units at once."""
_SECTOR_BYTES = 32.0
_LAUNCH = 4000.0
"""Cycles of a kernel's start and end: some two microseconds, on a queue that never runs dry."""
_WRITTEN_OUT = ("unroll", "vectorize", "vthread")


def gpu_estimate(sketch: Sketch, rows: Array, spec: DeviceSpec) -> Array:
    """Relative time of each row's program, in cycles; smaller is better. float64 [n]"""
    values = sketch.symbols(rows)
    total = np.zeros(len(rows))
    for root in sketch.program.body.stmts:
        if not is_compile_time(root):
            total = total + _Kernel(root, values, len(rows)).cycles(spec)
    return total


class _Kernel:
    """One nest for all candidates; every array is float64 [n]."""

    def __init__(self, root: Stmt, values: Mapping[Var, Array], count: int) -> None:
        self.root = root
        self.values = values
        self.one = np.ones(count)
        self.paths = {b.name: path_to(root, b) or [] for b in blocks(root)}
        self.groups = self._across("group")
        self.items = self._across("local")
        self.warps = np.ceil(self.items / _WARP)

    def cycles(self, spec: DeviceSpec) -> Array:
        """From launch to end."""
        own, fetches, traffic, held = 0.0 * self.one, 0.0 * self.one, 0.0 * self.one, self.one
        for block in blocks(self.root):
            own = own + self._issue(block)
            traffic = traffic + self._bytes(block)
            if block.buffer.scope == "local":
                fetches = np.maximum(fetches, self._repeats(block))
            elif block.buffer.scope in ("register", "private"):
                held = np.maximum(held, self._tile(self.paths[block.name]))
        at_once = self._groups_at_once(held, spec)
        units = float(max(1, spec.compute_units))
        resident = np.minimum(at_once, np.ceil(self.groups / units))
        busy = np.minimum(1.0, resident * self.warps * np.minimum(held, 8.0) / _CHAINS)
        rounds = np.ceil(self.groups / (units * resident))
        arithmetic = rounds * (resident * own / busy + fetches * _FETCH_LATENCY)
        memory = traffic / (_L2_BYTES * np.minimum(units, self.groups))
        return _LAUNCH + np.maximum(arithmetic, memory)

    def _across(self, kind: str) -> Array:
        """Iterations of the loops that run as work-groups, or as the items of one."""
        total = self.one
        kinds = {n.kind: n for path in self.paths.values() for n in path if n.kind.startswith(kind)}
        for loop in kinds.values():
            total = total * self._size(loop.extent)
        return total

    def _size(self, extent: Expr) -> Array:
        return evaluate_each(extent, self.values, len(self.one))

    def _product(self, loops: list[For]) -> Array:
        total = self.one
        for loop in loops:
            total = total * self._size(loop.extent)
        return total

    def _tile(self, path: list[For]) -> Array:
        """Copies of a statement that one item holds: its accumulators."""
        return self._product([p for p in path if p.kind in _WRITTEN_OUT and not p.reduce])

    def _repeats(self, block: Block) -> Array:
        """How often a group comes to the block's nest."""
        used = {v for i in block.indices for v in variables(i)}
        path = self.paths[block.name]
        return self._product([p for p in path if p.kind == "serial" and p.var not in used])

    def _issue(self, block: Block) -> Array:
        """Cycles of a unit for one group's share of the block."""
        path = self.paths[block.name]
        inside = [p for p in path if not p.kind.startswith("group")]
        work = self._product(inside)
        shared = block.buffer.scope == "local"
        doubled = [p for p in path if p.kind.startswith("local")]
        if shared and len({p.kind for p in doubled}) < len(doubled):
            work = work / self.items  # the items around share what the inner ones do
        vector = self._product([p for p in path if p.kind == "vectorize"])
        warps = work / np.minimum(self.items, self.warps * _WARP)
        warps = warps * self.warps if doubled else work
        if shared:
            return warps / vector * _FETCH_INSTRUCTIONS / _ISSUES
        tile = self._tile(path)
        steps = warps / tile
        reads = sum((self._read(load, path) for load in loads(block.value)), 0.0 * self.one)
        return steps * np.maximum((tile + reads) / _ISSUES, reads)

    def _read(self, load: Load, path: list[For]) -> Array:
        """Cycles for a warp to read what one step of its registers needs of an operand."""
        if load.buffer.scope in ("register", "private"):
            return 0.0 * self.one
        used = {v for i in load.indices for v in variables(i)}
        tile = self._tile([p for p in path if p.var in used])
        vector = self._product([p for p in path if p.kind == "vectorize" and p.var in used])
        spread = any(p.kind == "local.0" and p.var in used for p in path)
        if load.buffer.scope == "local":
            return tile if spread else tile / 2.0
        if spread and not self._runs_along(load, path):
            return 8.0 * tile
        short = self._pieces(path) if spread else self.one
        return 2.0 * tile / np.sqrt(vector) * np.minimum(short, 4.0)

    def _runs_along(self, load: Load, path: list[For]) -> bool:
        """True where neighbouring items read neighbouring elements."""
        near = [p.var for p in path if p.kind == "local.0"]
        return bool(load.indices) and any(v in variables(load.indices[-1]) for v in near)

    def _pieces(self, path: list[For]) -> Array:
        """Sectors for each that neighbouring items would fill if there were enough of them."""
        side = self._product([p for p in path if p.kind in ("local.0", "vectorize")])
        return np.maximum(1.0, _SECTOR_BYTES / 4.0 / side)

    def _bytes(self, block: Block) -> Array:
        """Bytes that cross from the second-level cache; scattered reads cost whole sectors."""
        path = self.paths[block.name]
        total = 0.0 * self.one
        for load in loads(block.value):
            if load.buffer.scope not in ("global", "constant"):
                continue
            used = {v for i in load.indices for v in variables(i)}
            touched = self._product([p for p in path if p.var in used or p.kind[:5] == "group"])
            near = self._runs_along(load, path)
            total = total + touched * (4.0 if near else _SECTOR_BYTES / 4.0)
        if block.buffer.scope == "global":
            total = total + self._product([p for p in path if not p.reduce]) * 4.0
        return total

    def _groups_at_once(self, held: Array, spec: DeviceSpec) -> Array:
        """Groups that one unit holds by its registers, items and local memory; at least one."""
        local = 1.0 + sum(
            (
                4.0 * np.prod([self._size(e) for e in buffer.shape], axis=0)
                for buffer in {b.buffer for b in blocks(self.root) if b.buffer.scope == "local"}
            ),
            0.0 * self.one,
        )
        limits = (
            _REGISTERS / ((held + _OWN_REGISTERS) * self.warps * _WARP),
            _MOST_ITEMS / (self.warps * _WARP),
            max(_LOCAL_BYTES, float(spec.local_memory_bytes)) / local,
            _MOST_GROUPS * self.one,
        )
        return np.maximum(1.0, np.floor(np.minimum.reduce(limits)))

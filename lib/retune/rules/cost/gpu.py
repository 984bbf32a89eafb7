"""A static estimate of candidates for GPUs: instructions, latency and traffic.

For each kernel: the cycles in which one compute unit issues the instructions of the work-groups
that it holds at once (registers, local memory, items), those in which one warp goes through its
loops, each step of which waits for what it reads, how many rounds of groups the device runs, and
the traffic. They are added up, which orders candidates better than the largest of them does:
nothing overlaps as well as it might. The figures are those of an H200, fitted to the times of 4,977
candidates of 284 tasks (convolutions of two and three dimensions, products, windows, rows): the
candidate that it puts first takes 1.10 times the best one's time in the geometric mean, where an
occupancy model took 1.36. Other GPUs differ in scale, and only the order matters. Source of
the limits: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
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
_OWN_REGISTERS = 24.0
"""Registers of an item besides its accumulators: operands and addresses."""
_MOST_ITEMS = 2048.0
_MOST_GROUPS = 32.0
_LOCAL_BYTES = 228.0 * 1024
"""Local memory of a compute unit; one group may take `spec.local_memory_bytes` of it."""
_FETCH_LATENCY = 200.0
"""Cycles from global memory to the other side of a barrier, beside what other groups do."""
_FETCH_INSTRUCTIONS = 12.0
"""Addresses, test, load and store for each vector that is copied to local memory."""
_STEP_LATENCY = {"global": 500.0, "local": 30.0, "": 0.0}
"""Cycles until what a step of a loop reads is there, by where it lies; steps that are unrolled
together wait together."""
_READ = {"global": 3.0, "local": 0.75}
"""Cycles of a unit for a warp's read of one register's worth."""
_L2_BYTES = 64.0
"""Bytes that a unit gets from the second-level cache in a cycle, all units at once."""
_SECTOR_BYTES = 32.0
_LAUNCH = 2000.0
"""Cycles of a kernel's start and end, on a queue that never runs dry."""
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
        own, depth, traffic, held = 0.0 * self.one, 0.0 * self.one, 0.0 * self.one, self.one
        for block in blocks(self.root):
            issue = self._issue(block)
            own = own + issue
            depth = depth + issue * _ISSUES / self.warps + self._waits(block)
            traffic = traffic + self._bytes(block)
            if block.buffer.scope in ("register", "private"):
                held = np.maximum(held, self._tile(self.paths[block.name]))
        units = float(max(1, spec.compute_units))
        resident = np.minimum(self._groups_at_once(held, spec), np.ceil(self.groups / units))
        rounds = np.ceil(self.groups / (units * resident))
        memory = traffic / (_L2_BYTES * np.minimum(units, self.groups))
        return _LAUNCH + rounds * (resident * own + depth) + memory

    def _waits(self, block: Block) -> Array:
        """Cycles in which a warp has nothing to do but wait for what the block reads."""
        if block.buffer.scope == "local":
            return self._repeats(block) * _FETCH_LATENCY
        serial = [p for p in self.paths[block.name] if p.kind == "serial"]
        together = self.one
        for loop in serial:
            if loop.unroll is not None:
                together = np.minimum(self._size(loop.extent), self._size(loop.unroll))
        return self._product(serial) / together * _STEP_LATENCY[_farthest(block)]

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
            return _READ["local"] * (tile if spread else tile / 2.0)
        if spread and not self._runs_along(load, path):
            return _READ["global"] * tile
        short = self._pieces(path) if spread else self.one
        return _READ["global"] * tile / np.sqrt(vector) * np.minimum(short, 4.0)

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


def _farthest(block: Block) -> str:
    """The farthest memory that the block reads, as `_STEP_LATENCY` names it."""
    scopes = {load.buffer.scope for load in loads(block.value)}
    if scopes & {"global", "constant"}:
        return "global"
    return "local" if "local" in scopes else ""

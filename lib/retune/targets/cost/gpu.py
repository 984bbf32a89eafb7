"""A static estimate of candidates for GPUs: instructions, latency and traffic.

For each kernel: the cycles in which one compute unit issues the instructions of the work-groups
that it holds at once (registers, local memory, items), those in which one warp goes through its
loops, each step of which waits for what it reads, how many rounds of groups the device runs, and
the traffic. They are added up, which orders candidates better than the largest of them does:
nothing overlaps as well as it might.
"""

from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from retune.core.target import DeviceSpec
from retune.intrinsics import Intrinsic, intrinsic
from retune.ir.evaluate import evaluate_int
from retune.ir.stmt import AHEAD, NEAR, For
from retune.schedule.access import AffineAccess
from retune.targets.cost.attention import attention_cycles, attention_tile
from retune.targets.cost.nests import (
    Array,
    BlockNest,
    Kernel,
    moving,
    off,
    on,
    operators,
    parallel_extent,
)
from retune.targets.tiling import BLOCK, GROUP, ITEM, LANE, PACK


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeUnit:
    """A compute unit of a GPU.

    The figures are those of an H200, fitted to the times of 4,977 candidates of 284 tasks
    (convolutions of two and three dimensions, products, windows, rows): the candidate that the
    estimate puts first takes 1.10 times the best one's time in the geometric mean, where an
    occupancy model took 1.36. Other GPUs differ in scale, and only the order matters. Source of the
    limits: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
    """

    warp: float = 32.0
    """Items that run in step."""
    issues: float = 4.0
    """Warp instructions that it starts in a cycle."""
    registers: float = 65_536.0
    register_bytes: float = 4.0
    own_registers: float = 24.0
    """Registers of an item besides its accumulators: operands and addresses."""
    most_items: float = 2048.0
    most_groups: float = 32.0
    local_bytes: float = 228.0 * 1024
    """Local memory of all groups; one of them may take `spec.local_memory_bytes` of it."""
    fetch_latency: float = 200.0
    """Cycles from global memory to the other side of a barrier, beside what other groups do."""
    fetch_instructions: float = 12.0
    """Addresses, test, load and store for each vector that is copied to local memory."""
    global_latency: float = 500.0
    local_latency: float = 30.0
    """Cycles until what a step of a loop reads is there, by where it lies; steps that are unrolled
    together wait together."""
    global_read: float = 3.0
    local_read: float = 0.75
    """Cycles for a warp's read of one register's worth."""
    l2_bytes: float = 64.0
    """Bytes from the second-level cache in a cycle, all units at once."""
    sector_bytes: float = 32.0
    alone_bytes: float = 8.0
    """Bytes that a scattered read costs: neighbours come back to a part of its sector."""
    launch: float = 2000.0
    """Cycles of a kernel's start and end, on a queue that never runs dry."""

    def registers_of(self, operand: AffineAccess) -> float:
        """Registers that an element takes."""
        return max(1.0, operand.item_bytes / self.register_bytes)


_H200 = ComputeUnit()


@dataclass(frozen=True, slots=True, kw_only=True)
class WarpFigures:
    """Cycles of kernels that multiply by instructions of warps.

    The figures are those of an H100. Those of local memory were fitted to the times of 3,087
    candidates of 120 tasks that may copy their operands there (layers of nine networks in TF32 and
    float16, of one and 16 images, and square products): within a task the logarithm of an estimate
    has a standard deviation of 0.18. Those of direct reads, with 3,000 candidates on an H200: of
    490 tasks the candidate that is put first takes 1.12 times the best one's time in the geometric
    mean.
    """

    launch: float = 5300.0
    """A kernel's start and end, in a full queue."""
    direct_step: float = 87.0
    """Until what a step reads from global memory is there, beside what each read adds."""
    direct_read: float = 55.0
    """Of an item, in a step: its address, its test, and a place in the queue."""
    shared_step: float = 370.0
    """The same where the warps of a group take slices of the reduction."""
    copied_step: float = 82.0
    """Until what a step copies to local memory is there."""
    ahead_step: float = 300.0
    """The same for copies that run ahead by one step of the instruction; by two it is a quarter of
    that."""
    near_step: float = 60.0
    """Beside that, for what windows read: the places of its pixels, and the first-level cache."""
    ahead_start: float = 1270.0
    """The first copies of a group that run ahead."""
    direct_rate: float = 0.95
    """Of a unit's share of the instructions, where they wait for direct reads: other groups'
    instructions hide the rest of `warp_rate`."""
    warp_rate: float = 1.0
    """Of the instructions of one warp, one after the other."""
    busy_warps: float = 8.0
    """That keep a unit's matrix instructions busy, where they do not wait for copies."""
    registers: float = 77.0
    """Of an item besides its accumulators: fragments and addresses."""
    direct_bytes: float = 132.0
    """That the groups of a unit read directly in a cycle."""
    copied_bytes: float = 44.0
    """That they copy to local memory in a cycle."""
    local_bytes: float = 365.0
    """That its warps read from local memory in a cycle."""
    stored_bytes: float = 21.0
    """That they store, or read beside the product, in a cycle."""
    beside: float = 40.0
    """For each result of an item, where something is read beside results: the more an item has, the
    fewer items ask for it at once."""
    partial_bytes: float = 51.0
    """Of partial sums that they put into local memory in a cycle."""
    memory_bytes: float = 14.7
    """Of results, and of what is read beside the product, in a cycle: a unit's share of memory."""


_H100 = WarpFigures()


def gpu_cycles(kernel: Kernel, spec: DeviceSpec, unit: ComputeUnit = _H200) -> Array:
    """Cycles of a kernel from launch to end. float64 [n]"""
    if (tile := attention_tile(kernel)) is not None:
        return attention_cycles(kernel, tile, spec)
    if any(_of_warps(nest) for nest in kernel):
        return _warp_cycles(kernel, spec, unit)
    groups, items = parallel_extent(kernel, GROUP), parallel_extent(kernel, ITEM)
    warps = np.ceil(items / unit.warp)
    one = np.ones_like(items)
    own, depth, traffic, held = 0.0 * one, 0.0 * one, 0.0 * one, one
    packed = _in_packs(kernel)
    for nest in kernel:
        issue = _issue(nest, items, warps, _slots(nest, spec) if packed else 1.0, unit)
        own = own + issue
        depth = depth + issue * unit.issues / warps + _waits(nest, unit)
        traffic = traffic + _bytes(nest, unit)
        if nest.accesses.result.scope in ("register", "private"):
            wide = unit.registers_of(nest.accesses.result)
            held = np.maximum(held, wide * nest.size(nest.copies))
    units = float(max(1, spec.compute_units))
    resident = np.minimum(_resident(kernel, held, warps, spec, unit), np.ceil(groups / units))
    rounds = np.ceil(groups / (units * resident))
    if packed:
        own = own * _unevenness(resident * warps, unit)
    memory = traffic / (unit.l2_bytes * np.minimum(units, groups))
    return unit.launch + rounds * (resident * own + depth) + memory


def _warp_cycles(
    kernel: Kernel, spec: DeviceSpec, unit: ComputeUnit, warp: WarpFigures = _H100
) -> Array:
    """Cycles of a kernel whose warps multiply matrices.

    Groups that a unit holds at once go through their steps at the same pace: a step waits for what
    it reads and for its warp's own instructions, and what all groups issue, copy and store is added
    to that. Where copies run ahead, the instructions of one group hide in the waits of the others.
    """
    groups, items = parallel_extent(kernel, GROUP), parallel_extent(kernel, ITEM)
    warps = np.ceil(items / unit.warp)
    own, issued, waits, held, moved = (np.zeros_like(groups) for _ in range(5))
    for nest in {n.accesses.block.buffer.name: n for n in kernel}.values():
        result = nest.accesses.result
        if _of_warps(nest) is not None:
            issued = nest.size(off(nest.loops, GROUP)) / nest.packs / unit.warp * _slots(nest, spec)
            waits = waits + _warp_waits(kernel, nest, warp)
            own = own + _operands_cycles(kernel, nest, issued / unit.issues, warp)
        if nest.accesses.block.reducer is not None:
            held = np.maximum(held, nest.size(nest.copies) * _results_together(nest))
        if result.scope == "global":
            moved = moved + _moved_bytes(nest)
            if any(o.scope == "global" for o in nest.accesses.operands):
                waits = waits + warp.beside * nest.size(off(nest.loops, GROUP)) / items
        elif _is_partial(nest):
            own = own + nest.buffer_bytes(result) / warp.partial_bytes
    own, chain = own + moved / warp.stored_bytes, warp.warp_rate * issued
    ahead = any(map(_is_ahead, kernel))

    def taken(together: Array) -> Array:
        busy = np.minimum(warps * together, warp.busy_warps) / together if ahead else warps
        return waits + chain / busy + together * own

    units = float(max(1, spec.compute_units))
    wide = replace(unit, own_registers=warp.registers)
    resident = _resident(kernel, held, warps, spec, wide)
    whole, rest = np.divmod(groups, units * resident)
    last = np.where(rest > 0, taken(np.maximum(1.0, np.ceil(rest / units))), 0.0)
    memory = moved * groups / units / warp.memory_bytes
    return warp.launch + whole * taken(resident) + last + memory


def _operands_cycles(kernel: Kernel, product: BlockNest, issued: Array, warp: WarpFigures) -> Array:
    """Cycles of a unit for what the product of a group reads, which issues for so many."""
    if any(operand.scope == "local" for operand in product.accesses.operands):
        read = _shared_bytes(product) / warp.local_bytes
        return read + _copied_bytes(kernel, product) / warp.copied_bytes
    return warp.direct_rate * issued + _read_bytes(product) / warp.direct_bytes


def _warp_waits(kernel: Kernel, product: BlockNest, warp: WarpFigures) -> Array:
    """Cycles in which a group waits for what the steps of its product read."""
    steps = product.size(on(product.loops, BLOCK))
    ahead = next((nest for nest in kernel if _is_ahead(nest)), None)
    if ahead is not None:
        entry = _of_warps(product)
        assert entry is not None, "it is a product by warps"
        whole = product.size(loop for loop in product.loops if loop.reduce) / entry.k
        distance = (_slots_ahead(ahead) - 1.0) * whole / steps
        near = any(NEAR in dict(loop.notes) for loop in product.loops)
        each = warp.ahead_step / distance**2 + warp.near_step * near
        return warp.ahead_start + steps * each
    if any(map(_is_copy, kernel)):
        return steps * warp.copied_step
    if any(map(_is_partial, kernel)):
        return steps * warp.shared_step
    return steps * (warp.direct_step + warp.direct_read * _reads(product))


def _reads(product: BlockNest) -> Array:
    """Vectors that an item reads for a step of its product."""
    read = {operand.load: operand for operand in product.accesses.operands}.values()
    return sum((product.size(moving(o, product.copies)) for o in read), np.zeros_like(product.one))


def _slots_ahead(nest: BlockNest) -> float:
    """Copies of a panel that local memory holds."""
    stages = nest.accesses.result.load.buffer.shape[0]
    return float(evaluate_int(stages)) if _is_ahead(nest) else 1.0


def _copied_bytes(kernel: Kernel, product: BlockNest) -> Array:
    """Bytes that a group copies to local memory for all steps of its product."""
    steps = {loop.var for loop in on(product.loops, BLOCK)}
    total = np.zeros_like(product.one)
    for nest in {n.accesses.block.buffer.name: n for n in kernel if _is_copy(n)}.values():
        times = nest.size(loop for loop in nest.loops if loop.var in steps)
        panel = nest.buffer_bytes(nest.accesses.result) / _slots_ahead(nest)
        total = total + times * panel
    return total


def _results_together(nest: BlockNest) -> int:
    """Results of an item that an instruction adds to."""
    entry = _of_warps(nest)
    return 1 if entry is None else entry.m * entry.n


def _shared_bytes(nest: BlockNest) -> Array:
    """Bytes that a group's warps read from local memory: each warp all that its items multiply."""
    entry, near = _of_warps(nest), _near(nest)
    assert entry is not None and entry.warp is not None, "it is a product by warps"
    total = np.zeros_like(nest.one)
    for operand in nest.accesses.operands:
        first = bool(moving(operand, near))
        own = entry.m * entry.warp.first if first else entry.n * entry.warp.second
        total = total + nest.footprint(operand, nest.copies) * own
    steps = nest.size(loop for loop in nest.loops if loop.reduce)
    return total * steps * nest.size(on(nest.loops, ITEM)) / entry.warp.items


def _read_bytes(nest: BlockNest) -> Array:
    """Bytes that a group reads directly, each of them once."""
    read = {operand.load: operand for operand in nest.accesses.operands}.values()
    loops = off(nest.loops, GROUP)
    return sum((nest.footprint(operand, loops) for operand in read), np.zeros_like(nest.one))


def _moved_bytes(nest: BlockNest) -> Array:
    """Bytes of a group's results, and of what is read for each of them from global memory."""
    read = {o.load: o for o in nest.accesses.operands if o.scope == "global"}.values()
    each = sum(o.item_bytes for o in (nest.accesses.result, *read))
    return nest.size(off(nest.loops, GROUP)) * each


def _is_local(nest: BlockNest) -> bool:
    return nest.accesses.result.scope == "local" and nest.accesses.block.reducer is None


def _is_copy(nest: BlockNest) -> bool:
    """Whether it fills local memory with what lies in global memory."""
    scopes = {operand.scope for operand in nest.accesses.operands}
    return _is_local(nest) and bool(scopes & {"global", "constant"})


def _is_partial(nest: BlockNest) -> bool:
    """Whether it puts sums into local memory."""
    return _is_local(nest) and not _is_copy(nest)


def _in_packs(kernel: Kernel) -> bool:
    """Whether it multiplies bytes, which the figures of `ComputeUnit` were not fitted to.

    The rate of the instruction, its epilogue and the shares of schedulers are counted there, and
    lie in the fitted figures elsewhere.
    """
    return any(on(nest.loops, PACK) for nest in kernel)


def _unevenness(warps: Array, unit: ComputeUnit) -> Array:
    """Time of the scheduler that has most of a unit's warps, over that of an equal share.

    Nine warps keep one of four schedulers busy for three of them, as twelve do.
    """
    return np.ceil(warps / unit.issues) * unit.issues / warps


def _slots(nest: BlockNest, spec: DeviceSpec) -> float:
    """Instructions for each iteration of a nest, beside its reads: an epilogue on integers is a
    dozen of them."""
    if (chosen := nest.implementation(spec)) is not None:
        return chosen.slots
    block = nest.accesses.block
    return max(1.0, operators(block.value)) if block.reducer is None else 1.0


def _near(nest: BlockNest) -> list[For]:
    """The loops over neighbouring items."""
    return [loop for loop in nest.loops if loop.kind == ITEM.runs[0]]


def _waits(nest: BlockNest, unit: ComputeUnit) -> Array:
    """Cycles in which a warp has nothing to do but wait for what the block reads."""
    result, serial = nest.accesses.result, on(nest.loops, BLOCK)
    shared = result.scope == "local"
    if shared and nest.accesses.block.reducer is None:
        return nest.repeats(result, serial) * unit.fetch_latency
    together = nest.one
    for loop in serial:
        together = together * np.minimum(nest.extent(loop), nest.unroll_factor(loop))
    scopes = {operand.scope for operand in nest.accesses.operands}
    latency = unit.local_latency if "local" in scopes else 0.0
    latency = unit.global_latency if scopes & {"global", "constant"} else latency
    others = [loop for loop in serial if not loop.reduce]
    barrier = nest.repeats(result, others) * unit.fetch_latency if shared else 0.0
    return barrier + nest.size(serial) / together * latency


def _is_ahead(nest: BlockNest) -> bool:
    """Whether what it copies is read a stage later, or more."""
    return any(AHEAD in dict(loop.notes) for loop in nest.loops)


def _issue(nest: BlockNest, items: Array, warps: Array, slots: float, unit: ComputeUnit) -> Array:
    """Cycles of a unit for one group's share of the block, `slots` of a warp for each result."""
    shared = nest.accesses.result.scope == "local"
    sides = on(nest.loops, ITEM)
    work = nest.size(off(nest.loops, GROUP))
    if shared and len({loop.kind for loop in sides}) < len(sides):
        work = work / items  # the items around share what the inner ones do
    issued = work / items * warps if sides else work
    if shared:
        return issued / nest.lanes * unit.fetch_instructions / unit.issues
    tile = nest.size(nest.copies)
    reads = sum((_read(nest, o, unit) for o in nest.accesses.operands), 0.0 * nest.one)
    return issued / nest.packs / tile * np.maximum((slots * tile + reads) / unit.issues, reads)


def _of_warps(nest: BlockNest) -> Intrinsic | None:
    """The instruction by which the items of a warp multiply what they read for each other."""
    found = (intrinsic(n.intrinsic) for n in nest.loops if n.intrinsic)
    return next((entry for entry in found if entry.warp is not None), None)


def _read(nest: BlockNest, operand: AffineAccess, unit: ComputeUnit) -> Array:
    """Cycles for a warp to read what one step of its registers needs of an operand."""
    if operand.scope in ("register", "private"):
        return 0.0 * nest.one
    wide, near = unit.registers_of(operand), _near(nest)
    tile, spread = wide * nest.size(moving(operand, nest.copies)), moving(operand, near)
    if operand.scope == "local":
        return unit.local_read * (tile if spread else tile / 2.0)
    if spread and not operand.runs_along(near):
        return unit.global_read * tile
    vectors = on(nest.loops, LANE)
    cycles = unit.global_read * tile / np.sqrt(nest.size(moving(operand, vectors)))
    # Sectors for each that neighbouring items would fill if there were enough of them.
    full = unit.sector_bytes / (wide * unit.register_bytes) / nest.size([*near, *vectors])
    return cycles * np.minimum(np.maximum(1.0, full), 4.0) if spread else cycles


def _bytes(nest: BlockNest, unit: ComputeUnit) -> Array:
    """Bytes that cross from the second-level cache; scattered reads cost a part of a sector."""
    total, near, groups = 0.0 * nest.one, _near(nest), on(nest.loops, GROUP)
    for operand in nest.accesses.operands:
        if operand.scope in ("global", "constant"):
            waste = 1.0 if operand.runs_along(near) else unit.alone_bytes / operand.item_bytes
            touched = nest.footprint(operand, nest.loops) * nest.repeats(operand, groups)
            total = total + touched * waste
    if (result := nest.accesses.result).scope == "global":
        total = total + nest.size(nest.accesses.results) * result.item_bytes
    return total


def _resident(
    kernel: Kernel, held: Array, warps: Array, spec: DeviceSpec, unit: ComputeUnit
) -> Array:
    """Groups that one unit holds by its registers, items and local memory; at least one."""
    made = {nest.accesses.block.buffer.name: nest for nest in kernel}.values()
    local = [n.buffer_bytes(n.accesses.result) for n in made if n.accesses.result.scope == "local"]
    limits = (
        unit.registers / ((held + unit.own_registers) * warps * unit.warp),
        unit.most_items / (warps * unit.warp),
        max(unit.local_bytes, float(spec.local_memory_bytes)) / sum(local, 1.0),
        unit.most_groups,
    )
    return np.maximum(1.0, np.floor(reduce(np.minimum, limits)))

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
from retune.ir.stmt import AHEAD, For
from retune.schedule.access import AffineAccess
from retune.targets.cost.attention import attention_cycles, attention_tile
from retune.targets.cost.nests import (
    Array,
    BlockNest,
    Kernel,
    across,
    moving,
    off,
    on,
    operators,
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
    ahead_latency: float = 400.0
    """The same for copies that run ahead of what reads them, by one stage."""
    ahead_bytes: float = 27.0
    """Bytes that such copies bring from the second-level cache in a cycle."""
    ahead_registers: float = 64.0
    """Registers of an item of such a kernel besides its accumulators: fragments and addresses."""
    fetch_instructions: float = 12.0
    """Addresses, test, load and store for each vector that is copied to local memory."""
    global_latency: float = 500.0
    local_latency: float = 30.0
    """Cycles until what a step of a loop reads is there, by where it lies; steps that are unrolled
    together wait together."""
    global_read: float = 3.0
    local_read: float = 0.75
    """Cycles for a warp's read of one register's worth."""
    warp_latency: float = 300.0
    """The same for an instruction of warps: what the next tap reads is asked for before."""
    warp_read: tuple[float, float] = (8.0, 4.0)
    """Cycles for a warp's read of `warp_bytes` of the rows of weights, or of data, that a step of
    an instruction of warps multiplies: lines of 128 bytes that it touches."""
    warp_local_read: tuple[float, float] = (8.0, 2.0)
    """The same where these rows lie in local memory, in different banks."""
    warp_bytes: float = 32.0
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


def gpu_cycles(kernel: Kernel, spec: DeviceSpec, unit: ComputeUnit = _H200) -> Array:
    """Cycles of a kernel from launch to end. float64 [n]"""
    if (tile := attention_tile(kernel)) is not None:
        return attention_cycles(kernel, tile, spec)
    if any(map(_is_ahead, kernel)):
        return _ahead_cycles(kernel, spec, unit)
    groups, items = across(kernel, GROUP), across(kernel, ITEM)
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


def _ahead_cycles(kernel: Kernel, spec: DeviceSpec, unit: ComputeUnit) -> Array:
    """Cycles of a kernel whose copies run ahead of what a loop of steps computes.

    All groups go through the steps at about the same pace: one takes as long as the units of the
    instruction are busy, or as its copies take, of which fewer stages hide less. H100, 88 tiles of
    float16 products of 1024, 4096 and 8192 rows: it puts the fastest one first, and is off by a
    tenth for most of them. The sum of all terms put one first that took 1.16 to 1.25 times as long.
    """
    groups, warps = across(kernel, GROUP), np.ceil(across(kernel, ITEM) / unit.warp)
    one = np.ones_like(groups)
    copied, steps, stages, busy, held, stored = 0.0 * one, one, one, 0.0 * one, one, 0.0 * one
    for nest in {n.accesses.block.buffer.name: n for n in kernel}.values():
        result = nest.accesses.result
        if _is_ahead(nest):
            slots = float(evaluate_int(result.load.buffer.shape[0]))
            stages, copied = slots * one, copied + nest.buffer_bytes(result) / slots
        elif nest.accesses.block.reducer is not None:
            steps = nest.size(on(nest.loops, BLOCK))
            results = nest.size(off(nest.loops, GROUP)) / nest.packs
            busy = busy + results / unit.warp * _slots(nest, spec) / unit.issues
        else:
            stored = stored + nest.size(off(nest.loops, GROUP)) * result.item_bytes
            held = np.maximum(held, nest.size(nest.copies))
    units = float(max(1, spec.compute_units))
    wide = replace(unit, own_registers=unit.ahead_registers)
    resident = _resident(kernel, held, warps, spec, wide)

    def taken(together: Array) -> Array:
        waits = unit.ahead_latency / (stages - 1) + together * copied / unit.ahead_bytes
        step = np.maximum(together * busy / steps, waits + busy / steps / stages / together)
        return steps * step + unit.ahead_latency + together * stored / unit.ahead_bytes

    whole, rest = np.divmod(groups, units * resident)
    last = np.where(rest > 0, taken(np.maximum(1.0, np.ceil(rest / units))), 0.0)
    return unit.launch + whole * taken(resident) + last


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
    if result.scope == "local":
        return nest.repeats(result, serial) * unit.fetch_latency
    together = nest.one
    for loop in serial:
        together = together * np.minimum(nest.extent(loop), nest.together(loop))
    scopes = {operand.scope for operand in nest.accesses.operands}
    latency = unit.local_latency if "local" in scopes else 0.0
    far = unit.warp_latency if _of_warps(nest) else unit.global_latency
    latency = far if scopes & {"global", "constant"} else latency
    return nest.size(serial) / together * latency


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
    """The instruction by which the items of a warp read for each other: whole sectors of every
    operand."""
    found = (intrinsic(n.intrinsic) for n in nest.loops if n.intrinsic)
    return next((entry for entry in found if entry.warp is not None), None)


def _read(nest: BlockNest, operand: AffineAccess, unit: ComputeUnit) -> Array:
    """Cycles for a warp to read what one step of its registers needs of an operand."""
    if operand.scope in ("register", "private"):
        return 0.0 * nest.one
    if (entry := _of_warps(nest)) is not None:
        if operand.scope == "local":
            columns = nest.accesses.channel in operand.moving
            lines = unit.warp_local_read[0 if columns else 1] / unit.warp_bytes
        else:
            lines = unit.warp_read[0 if operand.constant else 1] / unit.warp_bytes
        step = lines * entry.k * operand.item_bytes
        return step * nest.size(moving(operand, nest.copies))
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
            whole = operand.runs_along(near) or _of_warps(nest) is not None
            waste = 1.0 if whole else unit.alone_bytes / operand.item_bytes
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

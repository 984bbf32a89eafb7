"""The memory plan: offsets of temporaries in one arena, by liveness.

Read `plan_memory`. A temporary is alive from the first launch that names it (or an alias of it) to
the last one, and throughout a loop unless each time of it makes it anew; two that are alive at once
never overlap, all others may. Placement is greedy best-fit, tried in two orders; the better one is
kept and stands beside the lower bound. Values that cross between device and host steps lie beside
inputs and outputs, for the whole run. Where extents depend on sizes, all is for the largest ones;
variants are launches behind each other, so that their temporaries share memory.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import get_args

import numpy as np

from retune.bundle.plan import (
    NetworkPlan,
    PlanLoop,
    host_roots,
    roots_off_device,
)
from retune.bundle.states import state_memories
from retune.codegen.source import Role
from retune.device.opencl.runtime import PART_ALIGN_BYTES, aligned


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBlock:
    """Memory that one temporary needs, from its first to its last launch (both included)."""

    name: str
    bytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The arena of the temporaries, and what the rest of the plan needs. All sizes are bytes."""

    offsets: Mapping[str, int]
    """Storage root of each temporary -> its offset in the arena."""
    arena_bytes: int
    """Size of the arena: the peak of the temporaries as placed."""
    lower_bound_bytes: int
    """Most bytes alive at one launch: no placement needs less than this."""
    unshared_bytes: int
    """What the temporaries would take if each one had its own memory."""
    weight_bytes: int
    io_bytes: int
    """Inputs, outputs and sizes, and what host steps exchange with the device; no states."""
    state_bytes: int = 0
    """The states of one session; the module has as much for runs without one."""

    @property
    def peak_bytes(self) -> int:
        """Device memory of the whole module without sessions."""
        return self.arena_bytes + self.weight_bytes + self.io_bytes + self.state_bytes


def plan_memory(plan: NetworkPlan, *, align_bytes: int = PART_ALIGN_BYTES) -> MemoryPlan:
    """Every temporary that a launch uses has an offset, a multiple of `align_bytes`."""
    blocks = temp_blocks(plan, align_bytes=align_bytes)
    offsets, arena = place(blocks)
    sizes = {entry.name: entry.most_bytes for entry in plan.buffers}
    held = dict.fromkeys(get_args(Role), 0)
    off_device, crossing = roots_off_device(plan), host_roots(plan)
    states = state_memories(plan)
    apart = {root for each in states for root in each.roots} | off_device
    for root, role in plan.roles.items():
        if root not in apart:
            held["output" if role == "temp" and root in crossing else role] += sizes[root]
    return MemoryPlan(
        offsets=offsets,
        arena_bytes=arena,
        lower_bound_bytes=most_alive(blocks),
        unshared_bytes=sum(block.bytes for block in blocks),
        weight_bytes=held["weight"],
        io_bytes=held["input"] + held["output"] + held["size"],
        state_bytes=sum(each.bytes * (1 if each.in_place else 2) for each in states),
    )


def temp_blocks(
    plan: NetworkPlan, *, align_bytes: int = PART_ALIGN_BYTES
) -> tuple[MemoryBlock, ...]:
    """One block for each temporary that a launch uses, aliases counted with their root."""
    roots, roles, crossing = plan.roots, plan.roles, host_roots(plan)
    spans: dict[str, tuple[int, int]] = {}
    for position, launch in enumerate(plan.launches):
        for root in (roots[name] for name in launch.args):
            if roles[root] == "temp" and root not in crossing:
                spans[root] = (spans.get(root, (position, 0))[0], position)
    sizes = {entry.name: aligned(entry.most_bytes, align_bytes) for entry in plan.buffers}
    loops = sorted(plan.loops, key=lambda loop: loop.end - loop.first)
    beside = _side_by_side(plan, roots)
    return tuple(
        MemoryBlock(name=root, bytes=sizes[root], first=first, last=_to_end(first, last, beside))
        for root, span in spans.items()
        for first, last in [_through_loops(*span, loops)]
    )


def _through_loops(first: int, last: int, loops: Sequence[PlanLoop]) -> tuple[int, int]:
    """The launches at which a temporary is alive: what is not made anew in each time of a loop is
    so for all of the loop. `loops` are in the order of their sizes."""
    for loop in loops:
        meets = first < loop.end and loop.first <= last
        if meets and not (loop.first <= first and last < loop.end):
            first, last = min(first, loop.first), max(last, loop.end - 1)
    return first, last


def _side_by_side(plan: NetworkPlan, roots: Mapping[str, str]) -> list[range]:
    """Launches of lone loops that do not need each other, with what stands between these."""
    found: list[range] = []
    needing = set[str]()  # the loops of the last range made it, or it was made of that
    for loop in plan.lone_loops:
        between = plan.launches[found[-1].stop : loop.first] if found else ()
        for launch in between:
            if not needing.isdisjoint(roots[name] for name in launch.args):
                needing |= {roots[name] for name in launch.writes}
        own = {roots[n] for launch in plan.launches[loop.first : loop.end] for n in launch.args}
        if found and needing.isdisjoint(own):
            found[-1] = range(found[-1].start, loop.end)
        else:
            found.append(range(loop.first, loop.end))
            needing = set()
        for launch in plan.launches[loop.first : loop.end]:
            needing |= {roots[name] for name in launch.writes}
    return found


def _to_end(first: int, last: int, ranges: Sequence[range]) -> int:
    """The last launch at which a temporary is alive whose memory nobody else takes while loops run
    side by side: who took it would have to wait for the loop that used it."""
    for each in ranges:
        if first < each.stop and each.start <= last < each.stop:
            last = each.stop - 1
    return last


def place(blocks: Sequence[MemoryBlock]) -> tuple[dict[str, int], int]:
    """Offsets of the blocks and the size of the arena; blocks alive at once never overlap."""
    orders: tuple[Callable[[MemoryBlock], tuple[int, int, str]], ...] = (
        lambda block: (-block.bytes, block.first, block.name),
        lambda block: (block.first, -block.bytes, block.name),
    )
    by_size, by_start = (partial(_place_in_order, sorted(blocks, key=order)) for order in orders)
    first = by_size()
    if first[1] == most_alive(blocks):
        return first  # none is better
    return min(first, by_start(), key=lambda placement: placement[1])


def most_alive(blocks: Sequence[MemoryBlock]) -> int:
    """Most bytes alive at one launch."""
    changes: dict[int, int] = {}
    for block in blocks:
        changes[block.first] = changes.get(block.first, 0) + block.bytes
        changes[block.last + 1] = changes.get(block.last + 1, 0) - block.bytes
    alive = peak = 0
    for position in sorted(changes):
        alive += changes[position]
        peak = max(peak, alive)
    return peak


def _place_in_order(blocks: Sequence[MemoryBlock]) -> tuple[dict[str, int], int]:
    found: dict[str, int] = {}
    table = np.zeros((4, len(blocks)), np.int64)  # offset, end, first, last; sorted by offset
    for count, block in enumerate(blocks):
        placed = table[:, :count]
        starts, _, first, last = placed
        rivals = placed[:2, (first <= block.last) & (last >= block.first)]
        offset = found[block.name] = _best_fit(block.bytes, rivals[0], rivals[1])
        number = int(starts.searchsorted(offset, side="right"))
        table[:, number + 1 : count + 1] = table[:, number:count]
        table[:, number] = (offset, offset + block.bytes, block.first, block.last)
    return found, int(table[1].max(initial=0))


def _best_fit(size: int, starts: np.ndarray, ends: np.ndarray) -> int:
    """Offset of the smallest gap between the rivals that holds `size`, or their end.

    Shapes: [rivals], sorted by their starts.
    """
    reached = np.maximum.accumulate(np.concatenate([[0], ends]))
    gaps = starts - reached[:-1]
    fitting = np.flatnonzero(gaps >= size)
    return int(reached[fitting[gaps[fitting].argmin()]] if fitting.size else reached[-1])

"""Placement of a plan's values: an allocation and an offset in it for each of them.

The arena holds the temporaries, as the memory plan lays them out; one allocation holds all weights
and one all inputs and outputs, with what host steps read and make: the host reads and writes that
one in place where the device allows it. Kernels can so be given any value as a base pointer and an
offset. States have allocations of their own, which each session has for itself: one of those that
are updated in place, and two others that are swapped after each run. Where `lent` says how, so
have large inputs and outputs, in whose stead a run may use other memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from retune.bundle.memory import MemoryPlan
from retune.bundle.plan import (
    NetworkPlan,
    host_roots,
    roots_off_device,
)
from retune.bundle.runtime.hazards import MemoryAccess, Region
from retune.bundle.states import state_memories
from retune.codegen.network.extents import SizesAt
from retune.core.dims import most, sizes_of
from retune.core.dtypes import itemsize
from retune.device.opencl.runtime import aligned
from retune.ir.storage import Span

ARENA, WEIGHTS, INTERFACE, IN_PLACE, BEFORE, AFTER = range(6)
"""Numbers of the allocations. The last three are there if the plan has states: those in place, what
runs read of the others, and what they make of them. What is lent has the numbers behind these."""
LEAST_LENT_BYTES = 1 << 17
"""A smaller value is copied as fast as a kernel is told where another one lies."""
_MOST_LENT = 8
"""Each is an argument of a kernel."""
_MOST_FLOPS = 4
"""For each byte of a kernel that reads an input where the caller has it. Vectors there begin in the
middle of cache lines: a kernel that reads lines again and again would pay more than the copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueMemory:
    """The memory of one value."""

    base: int
    """Number of the allocation."""
    offset: int
    """Bytes from its start, a multiple of PART_ALIGN_BYTES."""
    bytes: int
    """For the largest sizes."""
    spans: tuple[Span, ...] = ()
    """What is meant of it, in bytes, where that is not all."""

    @property
    def region(self) -> Region:
        """The bytes that the value takes."""
        return Region(self.base, self.offset, self.offset + self.bytes, self.spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Allocation and offset of every value, and the sizes of the allocations."""

    memory: Mapping[str, ValueMemory]
    """By buffer name; values of one alias chain share their memory."""
    base_bytes: tuple[int, ...]
    lent: tuple[str, ...] = ()
    """Roots of the last allocations, one for each: a run may use others in their stead."""

    @property
    def first_lent(self) -> int:
        """Number of the first allocation of what is lent."""
        return len(self.base_bytes) - len(self.lent)

    @property
    def state_bytes(self) -> tuple[int, ...]:
        """Those of the states, of which each session has its own."""
        return self.base_bytes[INTERFACE + 1 : self.first_lent]


def lent_roots(plan: NetworkPlan) -> tuple[str, ...]:
    """Large inputs that nothing writes or returns and that launches only pass over, and large
    outputs, neither of them states: runs may use those of the caller. The largest come first.

    There are none where host steps read and write in between. Inputs of indices are copied: another
    thread that changed one during a run would have the kernel read outside.
    """
    if plan.hosts:
        return ()
    roots, sizes = plan.roots, {entry.name: entry.most_bytes for entry in plan.buffers}
    names = {name for variant in plan.alternatives for name in variant.outputs or plan.outputs}
    returned, states = {roots[name] for name in names}, _states(plan)[0]
    closely = {
        roots[name]
        for launch in plan.launches
        for name in launch.args
        if name in launch.writes or most(launch.flops) > _MOST_FLOPS * most(launch.bytes)
    }
    copied = returned | closely | plan.indices.keys()
    own = {"output": returned, "input": plan.roles.keys() - copied}
    found = [
        root
        for root, role in plan.roles.items()
        if root in own.get(role, ()) and root not in states and sizes[root] >= LEAST_LENT_BYTES
    ]
    return tuple(sorted(found, key=lambda root: -sizes[root])[:_MOST_LENT])


def lay_out(plan: NetworkPlan, memory: MemoryPlan, lent: Sequence[str] = ()) -> Placement:
    """Every value that a launch uses, and every input, output and weight, has memory.

    Roots that are `lent` have allocations of their own. What exists on the host only has none,
    nor has what is an image.
    """
    sizes = {entry.name: entry.most_bytes for entry in plan.buffers}
    ends = [memory.arena_bytes, 0, 0]
    placed, state_bytes = _states(plan)
    for number, root in enumerate(lent, len(ends) + len(state_bytes)):
        placed[root] = ValueMemory(base=number, offset=0, bytes=sizes[root])
    elsewhere = {entry.name for entry in plan.buffers if entry.image} | placed.keys()
    elsewhere |= roots_off_device(plan)
    crossing = host_roots(plan)
    for root, role in plan.roles.items():
        if root in elsewhere:
            continue
        if role == "temp" and root not in crossing:
            base, offset = ARENA, memory.offsets.get(root)
        else:
            base = WEIGHTS if role == "weight" else INTERFACE
            offset = ends[base]
            ends[base] += aligned(max(1, sizes[root]))
        if offset is not None:
            placed[root] = ValueMemory(base=base, offset=offset, bytes=sizes[root])
    roots = plan.roots
    found = {name: placed[root] for name, root in roots.items() if root in placed}
    for alias in plan.aliases:
        if alias.storage is not None and alias.value in found:
            spans = alias.storage.spans(itemsize(plan.buffer(alias.value).dtype))
            found[alias.value] = replace(found[alias.value], spans=spans)
    own = (aligned(sizes[root]) for root in lent)
    return Placement(memory=found, base_bytes=(*ends, *state_bytes, *own), lent=tuple(lent))


def _states(plan: NetworkPlan) -> tuple[dict[str, ValueMemory], tuple[int, ...]]:
    """Memory of the states by their roots, and the sizes of their allocations, if there are any.

    What a run reads of a state and what it makes of it have one offset.
    """
    placed: dict[str, ValueMemory] = {}
    in_place, others = 0, 0
    for each in state_memories(plan):
        if each.in_place:
            placed[each.read] = ValueMemory(base=IN_PLACE, offset=in_place, bytes=each.bytes)
            in_place += aligned(max(1, each.bytes))
            continue
        placed[each.read] = ValueMemory(base=BEFORE, offset=others, bytes=each.bytes)
        for root in each.made:
            placed[root] = ValueMemory(base=AFTER, offset=others, bytes=each.bytes)
        others += aligned(max(1, each.bytes))
    return placed, (in_place, others, others) if plan.states else ()


def sizes_at(plan: NetworkPlan, placement: Placement) -> SizesAt:
    """Where the sizes of a plan lie: with its inputs and outputs."""
    offsets = {each.size.name: placement.memory[each.buffer].offset for each in plan.sizes}
    return SizesAt(base=INTERFACE, offsets=offsets)


def touched(plan: NetworkPlan, placement: Placement) -> list[MemoryAccess]:
    """The memory that each launch reads and writes, less images, which nothing writes.

    The sizes that say over which range it runs are read.
    """
    buffers = {each.size: each.buffer for each in plan.sizes}
    return [
        MemoryAccess(
            reads=tuple(
                placement.memory[name].region
                for name in dict.fromkeys([*launch.read, *sizes])
                if name in placement.memory
            ),
            writes=tuple(placement.memory[name].region for name in launch.writes),
        )
        for launch in plan.launches
        for sizes in [sorted(buffers[size] for size in sizes_of(launch.global_size))]
    ]

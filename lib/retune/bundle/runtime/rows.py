"""Tables for persistent workers: the plan's launches as rows, and its loops as chains.

Read `step_rows`. Launches have the rows of their numbers, so that single ones can be timed. Behind
them each part of the plan that has loops has rows of its own: small kernels of a loop that follow
each other are one row, and so is a loop of small kernels alone, which one worker runs all times.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import prod

from retune.bundle.plan import NetworkPlan, Segment
from retune.bundle.runtime.hazards import MemoryAccess, dependencies, union
from retune.bundle.runtime.placement import INTERFACE, Placement, sizes_at, touched
from retune.codegen.network.chains import Chain, chained_launch
from retune.codegen.network.extents import SizesAt
from retune.codegen.network.persistent import Callee, CalleeLaunch
from retune.codegen.source import MOST_LINKS, three
from retune.core.dims import always_equal

Row = tuple[tuple[int, ...], int]
"""Launches that one row runs in order, and how many times over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """The table of a persistent kernel that runs a plan."""

    callees: Sequence[Callee]
    text: str
    """Of the chains."""
    steps: Sequence[CalleeLaunch]
    """The plan's launches, then what runs instead of those of parts with loops."""
    segments: Mapping[tuple[int, int], tuple[Segment, ...]]
    """The first launch of a part that has loops and the launch after its last one -> the steps that
    run it."""

    def segments_of(self, first: int, end: int) -> tuple[Segment, ...]:
        """The steps that run a part of the plan, from its first launch to before `end`."""
        return self.segments.get((first, end), (Segment(first=first, end=end),))


def step_rows(plan: NetworkPlan, placement: Placement) -> StepRows:
    """The steps of a persistent kernel that runs the plan."""
    accesses = touched(plan, placement)
    table = _Table(
        callees={callee.kernel: callee for callee in callees_of(plan)},
        accesses=accesses,
        steps=steps_of(plan, placement, befores_of(plan, accesses)),
        sizes=sizes_at(plan, placement),
    )
    segments = {
        (part.first, part.end): tuple(_segments(plan, table, part.first, part.end))
        for part in plan.parts
        if any(part.first <= loop.first < part.end for loop in plan.loops)
    }
    return StepRows(
        callees=[*table.callees.values(), *(chain.callee for chain in table.chains.values())],
        text="\n".join(chain.text for chain in table.chains.values()),
        steps=table.steps,
        segments=segments,
    )


def callees_of(plan: NetworkPlan) -> list[Callee]:
    """The plan's kernels, each once, by the functions of their groups."""
    found: dict[str, Callee] = {}
    for kernel, launch in plan.runs:
        if launch.kernel in found:
            continue
        pairs = zip(launch.global_size, launch.local_size, strict=True)
        found[launch.kernel] = Callee(
            kernel=launch.kernel,
            parameters=len(launch.args),
            groups=three([size // local for size, local in pairs]),
            items=prod(launch.local_size),
            arena=None if kernel.single_item else kernel.arena_bytes,
            streams=launch.streams,
        )
    return list(found.values())


def befores_of(plan: NetworkPlan, accesses: Sequence[MemoryAccess]) -> list[tuple[int, ...]]:
    """What each launch waits for, among those of its variant."""
    return [
        tuple(variant.first + before for before in befores)
        for variant in plan.alternatives
        for befores in dependencies(accesses[variant.first : variant.end])
    ]


def steps_of(
    plan: NetworkPlan, placement: Placement, befores: Sequence[tuple[int, ...]]
) -> list[CalleeLaunch]:
    """The plan's launches as steps, each of which waits for those before it."""
    memory = placement.memory
    return [
        CalleeLaunch(
            kernel=launch.kernel,
            args=tuple((memory[name].base, memory[name].offset) for name in launch.args),
            waits=before,
            label=launch.label,
        )
        for launch, before in zip(plan.launches, befores, strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """The rows as they grow."""

    callees: Mapping[str, Callee]
    accesses: Sequence[MemoryAccess]
    steps: list[CalleeLaunch]
    sizes: SizesAt
    chains: dict[tuple[tuple[str, ...], int], Chain] = field(
        default_factory=dict[tuple[tuple[str, ...], int], Chain]
    )
    """By their kernels and how many times they run."""
    added: dict[tuple[Row, ...], Segment] = field(default_factory=dict[tuple[Row, ...], Segment])
    """What was added, by what it runs."""

    def add(self, rows: tuple[Row, ...]) -> Segment:
        """The rows are at the end of the table, or where they were before."""
        if rows not in self.added:
            begin = len(self.steps)
            befores = dependencies([union([self.accesses[i] for i in run]) for run, _ in rows])
            for (run, times), before in zip(rows, befores, strict=True):
                own = [self.steps[i] for i in run]
                name = self._callee(tuple(step.kernel for step in own), times)
                chain = self.chains.get((tuple(step.kernel for step in own), times))
                more = [(INTERFACE, 0)] if chain and chain.reads_sizes else []
                waiting = tuple(begin + b for b in before)
                self.steps.append(chained_launch(name, own, waiting, more))
            self.added[rows] = Segment(first=begin, end=len(self.steps))
        return self.added[rows]

    def _callee(self, names: tuple[str, ...], times: int) -> str:
        """The kernel that runs those of these names in order, so many times."""
        if len(names) == 1 and times == 1:
            return names[0]
        if (names, times) not in self.chains:
            links = tuple(self.callees[name] for name in names)
            name = f"chain_{len(self.chains)}"
            self.chains[names, times] = Chain(name, links, times, self.sizes)
        return self.chains[names, times].name


def _segments(plan: NetworkPlan, table: _Table, first: int, end: int) -> Iterator[Segment]:
    """The steps that run the launches from `first` to before `end`: in a row what workers can go
    through without all waiting for all, such as the loops that one of them runs alone."""
    alone = {(loop.first, loop.end) for loop in plan.lone_loops}

    def straight(segment: Segment) -> bool:
        return always_equal(segment.times, 1) or (segment.first, segment.end) in alone

    for in_row, group in groupby(plan.segments(first, end), straight):
        segments = list(group)
        if not in_row:
            yield from (_chained(plan, table, segment) for segment in segments)
        elif any(segment.times > 1 for segment in segments):
            yield table.add(tuple(row for segment in segments for row in _rows(segment)))
        else:
            yield from segments


def _rows(segment: Segment) -> list[Row]:
    every = tuple(range(segment.first, segment.end))
    return [(every, segment.times)] if segment.times > 1 else [((i,), 1) for i in every]


def _chained(plan: NetworkPlan, table: _Table, segment: Segment) -> Segment:
    """The steps of a loop, of which one worker runs small kernels that may follow each other."""
    runs: list[tuple[int, ...]] = []
    for number in _small_together(plan, table, segment):
        joins = runs and plan.launches[number].small and plan.launches[runs[-1][-1]].small
        if joins and len(runs[-1]) < MOST_LINKS:
            runs[-1] = (*runs[-1], number)
        else:
            runs.append((number,))
    made = table.add(tuple((run, 1) for run in runs))
    return Segment(first=made.first, end=made.end, times=segment.times)


def _small_together(plan: NetworkPlan, table: _Table, segment: Segment) -> list[int]:
    """The launches of a loop in an order that hazards allow: as many small ones together as can
    be, then what else can start."""
    left = list(range(segment.first, segment.end))
    befores = dependencies(table.accesses[segment.first : segment.end])
    needed = {n: {segment.first + b for b in own} for n, own in zip(left, befores, strict=True)}
    found: list[int] = []
    small = True
    while left:
        ready = [n for n in left if plan.launches[n].small == small and needed[n].isdisjoint(left)]
        if ready:
            found.append(ready[0])
            left.remove(ready[0])
        else:
            small = not small
    return found

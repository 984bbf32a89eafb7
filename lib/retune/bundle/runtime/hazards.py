"""Hazards between steps: which ones must wait for each other, by the memory that they touch."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from retune.core.dims import always_equal, never_above
from retune.ir.storage import Span


class Region(NamedTuple):
    """Bytes of an allocation: all of a stretch, or what a storage map takes of it."""

    allocation: int
    first: int
    end: int
    """The byte after the last one."""
    spans: tuple[Span, ...] = ()
    """What is meant, counted from `first` on: the bytes within all of them."""

    def overlaps(self, other: "Region") -> bool:
        """Whether they have a byte in common, as far as it is known."""
        if self.allocation != other.allocation:
            return False
        if self.first == other.first and are_disjoint(self.spans, other.spans):
            return False
        return self.first < other.end and other.first < self.end


def are_disjoint(some: Sequence[Span], others: Sequence[Span]) -> bool:
    """Whether nothing lies within all spans of both; True only where two of one period say so, for
    all sizes."""
    return any(
        always_equal(period, other) and (never_above(end, start) or never_above(stop, first))
        for period, first, end in some
        for other, start, stop in others
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAccess:
    """The memory that one step touches."""

    reads: tuple[Region, ...]
    writes: tuple[Region, ...]


def union(parts: Sequence[MemoryAccess]) -> MemoryAccess:
    """The memory that any of them touches."""
    return MemoryAccess(
        reads=tuple(dict.fromkeys(r for part in parts for r in part.reads)),
        writes=tuple(dict.fromkeys(w for part in parts for w in part.writes)),
    )


def dependencies(accesses: Sequence[MemoryAccess]) -> list[tuple[int, ...]]:
    """For each step the earlier ones that it must wait for, newest first, none that is implied.

    A step waits for writers of what it reads (true dependence), for readers of what it writes
    (memory used again), and for writers of what it writes.
    """
    memory: dict[int, _Allocation] = {}
    direct: list[tuple[int, ...]] = []
    implied: list[int] = []  # steps that are complete with each one, as bits of a number
    for number, access in enumerate(accesses):
        touches = [(region, False) for region in access.reads]
        touches += [(region, True) for region in access.writes]
        needed: set[int] = set()
        for region, writes in touches:
            own = memory.setdefault(region.allocation, _Allocation())
            needed.update(own.conflicts(region, writes=writes))
        for region, writes in touches:
            memory[region.allocation].add(number, region, writes=writes)
        chosen: list[int] = []
        behind = 0
        for before in sorted(needed, reverse=True):
            if not behind >> before & 1:
                chosen.append(before)
                behind |= implied[before] | 1 << before
        direct.append(tuple(chosen))
        implied.append(behind)
    return direct


class _Allocation:
    """The steps that touched each stretch of an allocation and that a later step may wait for.

    All of a stretch is of one history. Those before a write of all of it are forgotten: who waits
    for the write waits for them.
    """

    def __init__(self) -> None:
        self._starts = [0]
        self._readers: list[list[tuple[int, Region]]] = [[]]
        self._writers: list[list[tuple[int, Region]]] = [[]]

    def conflicts(self, region: Region, *, writes: bool) -> Iterator[int]:
        """The steps that one that reads or writes the region must not overtake."""
        for at in self._stretches(region):
            yield from (step for step, other in self._writers[at] if other.overlaps(region))
            if writes:
                yield from (step for step, other in self._readers[at] if other.overlaps(region))

    def add(self, step: int, region: Region, *, writes: bool) -> None:
        """The step is the latest one to read or write the region."""
        for at in self._stretches(region):
            if not writes:
                self._readers[at].append((step, region))
                continue
            for each in (self._readers, self._writers):
                each[at] = [entry for entry in each[at] if not _covers(region, entry[1])]
            self._writers[at].append((step, region))

    def _stretches(self, region: Region) -> range:
        """Numbers of the stretches that the region consists of."""
        if region.first >= region.end:
            return range(0)
        return range(self._cut(region.first), self._cut(region.end))

    def _cut(self, at: int) -> int:
        """The number of the stretch that begins there."""
        number = bisect_left(self._starts, at)
        if number == len(self._starts) or self._starts[number] != at:
            self._starts.insert(number, at)
            for each in (self._readers, self._writers):
                each.insert(number, list(each[number - 1]))
        return number


def _covers(region: Region, other: Region) -> bool:
    """Whether what a stretch of both has of the other region is certainly the region's."""
    return not region.spans or (region.first, region.spans) == (other.first, other.spans)

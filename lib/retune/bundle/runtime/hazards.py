"""Which steps must wait for which: hazards between the memory that they read and write."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from retune.ir.storage import Span


class Region(NamedTuple):
    """Bytes of an allocation: all of a stretch, or what a storage map takes of it."""

    allocation: int
    first: int
    end: int
    """The byte after the last one."""
    spans: tuple[Span, ...] = ()
    """What is meant, counted from `first` on: the bytes within all of them."""

    def meets(self, other: "Region") -> bool:
        """Whether they have a byte in common, as far as it is known."""
        if self.allocation != other.allocation:
            return False
        if self.first == other.first and are_apart(self.spans, other.spans):
            return False
        return self.first < other.end and other.first < self.end


def are_apart(some: Sequence[Span], others: Sequence[Span]) -> bool:
    """Whether nothing lies within all spans of both; True only where two of one period say so."""
    return any(
        period == other and (end <= start or stop <= first)
        for period, first, end in some
        for other, start, stop in others
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """The memory that one step touches."""

    reads: tuple[Region, ...]
    writes: tuple[Region, ...]


def waits(accesses: Sequence[Touched]) -> list[tuple[int, ...]]:
    """For each step the earlier ones that it must wait for, newest first, none that is implied.

    A step waits for writers of what it reads (true dependence), for readers of what it writes
    (memory used again), and for writers of what it writes.
    """
    direct: list[tuple[int, ...]] = []
    implied: list[set[int]] = []
    for number, access in enumerate(accesses):
        chosen: list[int] = []
        behind: set[int] = set()
        for before in range(number - 1, -1, -1):
            if before not in behind and _conflict(accesses[before], access):
                chosen.append(before)
                behind |= implied[before]
                behind.add(before)
        direct.append(tuple(chosen))
        implied.append(behind)
    return direct


def _conflict(before: Touched, after: Touched) -> bool:
    return _meet(before.writes, (*after.reads, *after.writes)) or _meet(before.reads, after.writes)


def _meet(some: Sequence[Region], others: Sequence[Region]) -> bool:
    return any(a.meets(b) for a in some for b in others)

"""Which steps must wait for which: hazards between the memory that they read and write."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Region(NamedTuple):
    """Bytes of an allocation: all of a stretch, or some columns of the rows in it."""

    allocation: int
    first: int
    end: int
    """The byte after the last one."""
    columns: tuple[int, int, int] | None = None
    """Bytes of a row, the first one that is meant, and the one after the last one."""

    def meets(self, other: "Region") -> bool:
        """Whether they have a byte in common, as far as it is known."""
        if self.allocation != other.allocation:
            return False
        if self.columns and other.columns and self.first == other.first:
            (row, left, right), (rows, first, last) = self.columns, other.columns
            if row == rows and (right <= first or last <= left):
                return False
        return self.first < other.end and other.first < self.end


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

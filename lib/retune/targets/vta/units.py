"""A stream in units: instructions that are executed at once.

Read `units_of`. Instructions that follow each other in their queue are one unit if they do the same
kind of thing side by side, and have no token between them: who can rely on one of them can rely on
all, so that a unit is executed, and checked, as if it were one instruction.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from retune.targets.vta.copies import Copies
from retune.targets.vta.isa import ALU
from retune.targets.vta.queues import Course

_LOOPS = (
    "opcode", "reset", "use_imm", "uop_begin", "uop_end", "iter_out", "iter_in", "dst_out",
    "dst_in", "src_out", "src_in", "wgt_out", "wgt_in",
)  # fmt: skip
"""What says which elements a GEMM or ALU instruction works on."""


class Unit(NamedTuple):
    """Instructions of one queue that are executed at once."""

    alike: bytes
    """Equal for units that do the same: of copies, wherever it is; of others, with any ALU
    operation and immediate."""
    at: int
    """Where in `Units.numbers` its instructions are."""
    length: int
    opcode: int
    memory: int
    """Of copies, as are those from `begin` on."""
    queue: int
    last: int
    """How many of its queue are done when it is."""
    known: list[int]
    """How many of each queue are certain to be done when it begins."""
    begin: int
    """First element on chip."""
    end: int
    buffer: int
    """See `Copies`."""
    row: int


@dataclass(frozen=True, eq=False, slots=True)
class Units:
    """All of a stream."""

    numbers: np.ndarray
    """The instructions by queue, in the order of each. int64 [n]"""
    units: list[Unit]
    """In an order in which they can be executed."""

    def of(self, unit: Unit) -> np.ndarray:
        """The numbers of its instructions. int64 [n]"""
        return self.numbers[unit.at : unit.at + unit.length]


def units_of(stream: np.ndarray, copies: Copies, course: Course) -> Units:
    """The stream in units."""
    numbers = np.argsort(course.queue, kind="stable")
    begins = _begins(stream, copies, course, numbers)
    counts = np.diff(begins, append=len(numbers))
    rank = np.empty(len(numbers), np.int64)
    rank[course.order] = np.arange(len(numbers))
    order = np.argsort(rank[numbers[begins]])
    table = _alike(stream, copies, numbers, begins, counts)
    begins, counts = begins[order], counts[order]
    first, last = numbers[begins], numbers[begins + counts - 1]
    columns = (
        *(begins, counts, stream["opcode"][first], stream["memory_type"][first]),
        *(course.queue[first], course.position[last] + 1, course.known[first]),
        *(copies.begin[first], copies.end[last], copies.buffer[first], copies.row[first]),
    )
    rows = np.where(copies.chosen[first], counts, 1)
    text, size = table.tobytes(), table.shape[1] * table.itemsize
    alike = [
        text[a * size : b * size]
        for a, b in zip(begins.tolist(), (begins + rows).tolist(), strict=True)
    ]
    return Units(
        numbers, [Unit(*u) for u in zip(alike, *map(np.ndarray.tolist, columns), strict=True)]
    )


def _begins(stream: np.ndarray, copies: Copies, course: Course, numbers: np.ndarray) -> np.ndarray:
    """Where in the `numbers`, which are by queue, units begin. int64 [units]"""
    a, b = numbers[:-1], numbers[1:]
    pushes = (stream["push_prev"] | stream["push_next"])[a]
    pops = (stream["pop_prev"] | stream["pop_next"])[b]
    alike = [stream["opcode"], stream["memory_type"], course.queue, copies.buffer]
    joined = np.all([column[a] == column[b] for column in alike], axis=0)
    joined &= (pushes | pops) == 0
    follows = copies.chosen[a] & (copies.end[a] == copies.begin[b])
    same = (stream["opcode"][a] == ALU) & np.all(
        [stream[name][a] == stream[name][b] for name in _LOOPS], axis=0
    )
    joined &= follows | same
    return np.flatnonzero(np.append(True, ~joined)[: len(numbers)])


def _alike(
    stream: np.ndarray,
    copies: Copies,
    numbers: np.ndarray,
    begins: np.ndarray,
    counts: np.ndarray,
) -> np.ndarray:
    """For each of the `numbers` what `Unit.alike` is made of. int64 [n, columns]"""
    found = np.stack([stream[name] for name in _LOOPS], axis=1)[numbers]
    owner = np.repeat(begins, counts)
    moved = np.column_stack([copies.shape, copies.row])[numbers]
    moved[:, -1] -= moved[owner, -1]
    copied = copies.chosen[numbers]
    found[copied, : moved.shape[1]] = moved[copied]
    found[copied, moved.shape[1] :] = -1
    return found

"""Lanes that lie apart, read by vectors where their neighbours are read beside them.

A transpose of a few rows reads lane after lane from different addresses, and yet the lanes of one
vector, or of the vectors written together, are whole runs of each row. A run is one load, and
shuffles bring its elements where they belong, instead of a load and an insertion for each lane.
Shuffles of one vector and choices between two are all that is written: an expression that names
sixteen lanes of four vectors becomes an insertion for most of them in PoCL's compiler. Items of a
GPU read single elements so, too, four at once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby

from retune.codegen.addresses import Address
from retune.codegen.kernel import VECTOR_LANES, Lanes, Literal, Name, Operation, Value
from retune.core.dtypes import DType

_LEAST = 4
"""Shorter runs are read element by element."""
_WIDTHS = sorted((n for n in VECTOR_LANES if n >= _LEAST), reverse=True)


Runs = Mapping[Address, tuple[Address, int]]
"""Single elements, each with the vector to read, and its lane that is the element."""


@dataclass(frozen=True, slots=True)
class Lane:
    """An element that is a lane of a named vector."""

    vector: Name
    number: int

    @property
    def value(self) -> Value:
        """The element."""
        return Lanes(self.vector, (self.number,), self.vector.dtype)


def vectors_of(scattered: Iterable[Address]) -> Runs:
    """Single elements that lie in runs.

    Vectors hold nothing but elements that were asked for. The rest of a run overlaps what is read
    already.
    """
    found: dict[Address, tuple[Address, int]] = {}
    ordered = sorted(set(scattered), key=lambda p: (p.buffer.name, str(p.base), p.offset))
    for _, pairs in groupby(enumerate(ordered), _run):
        run = [address for _, address in pairs]
        at = 0
        while at < len(run) >= _LEAST:
            width = next((n for n in _WIDTHS if n <= len(run) - at), _LEAST)
            at = min(at, len(run) - width)
            vector = replace(run[at], lanes=width)
            found |= {address: (vector, lane) for lane, address in enumerate(run[at : at + width])}
            at += width
    return found


def words_of(elements: Iterable[Address]) -> Runs:
    """Single elements that are all of an aligned vector of four.

    Items read sixteen bytes at once as fast as four; compilers do not know what is aligned.
    """
    own = set(elements)
    found: dict[Address, tuple[Address, int]] = {}
    for address in own:
        vector = replace(address, lanes=_LEAST)
        run = [replace(address, offset=address.offset + lane) for lane in range(_LEAST)]
        if vector.aligned and own.issuperset(run):
            found |= {each: (vector, lane) for lane, each in enumerate(run)}
    return found


def _run(numbered: tuple[int, Address]) -> tuple[object, ...]:
    """A key that is equal for neighbours in the order of their offsets, and for these alone."""
    number, address = numbered
    return address.buffer, address.base, address.divisor, address.offset - number


def shuffled(lanes: Sequence[Lane], dtype: DType) -> Value | None:
    """Shuffles that gather these lanes; None where the sources' widths allow none."""
    count = len(lanes)
    vectors = list(dict.fromkeys(lane.vector for lane in lanes))
    if sum(vector.lanes for vector in vectors) in VECTOR_LANES:
        return _of_one(lanes, vectors, dtype)
    if all(vector.lanes == count for vector in vectors):
        return _chosen(lanes, vectors, dtype)
    return None


def _of_one(lanes: Sequence[Lane], vectors: Sequence[Name], dtype: DType) -> Value:
    """All sources side by side, and one shuffle."""
    *starts, total = accumulate((vector.lanes for vector in vectors), initial=0)
    first = dict(zip(vectors, starts, strict=True))
    joined = Operation("vector", tuple(vectors), dtype, total)
    whole = vectors[0] if len(vectors) == 1 else joined
    return Lanes(whole, tuple(first[n.vector] + n.number for n in lanes), dtype)


def _chosen(lanes: Sequence[Lane], vectors: Sequence[Name], dtype: DType) -> Value:
    """A shuffle of each source, and between two of them a choice for each lane."""
    value: Value | None = None
    for vector in vectors:
        own = [lane.vector == vector for lane in lanes]
        picks = (
            n.number if mine else i for i, (n, mine) in enumerate(zip(lanes, own, strict=True))
        )
        part = Lanes(vector, tuple(picks), dtype)
        kind = DType(
            f"int{8 * dtype.itemsize}"
        )  # a mask has elements of the size of what it chooses
        bits = tuple(Literal(-1 if mine else 0, kind) for mine in own)
        mask = Operation("vector", bits, kind, len(lanes))
        if value is None:
            value = part
        else:
            value = Operation("choose", (mask, part, value), dtype, len(lanes))
    assert value is not None
    return value

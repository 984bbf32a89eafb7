"""Lanes that lie apart, read by vectors where their neighbours are read beside them.

A transpose of a few rows reads lane after lane from different places, and yet the lanes of one
vector, or of the vectors written together, are whole runs of each row. A run is one load, and
shuffles bring its elements where they belong, instead of a load and an insertion for each lane.
Shuffles of one vector and choices between two are all that is written: an expression that names
sixteen lanes of four vectors becomes an insertion for most of them in PoCL's compiler.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby

from retune.codegen import opencl
from retune.codegen.addresses import Place

_LEAST = 4
"""Shorter runs are read element by element."""
_WIDTHS = sorted((n for n in opencl.VECTOR_LANES if n >= _LEAST), reverse=True)


@dataclass(frozen=True, slots=True)
class Lane:
    """An element that is a lane of a named vector."""

    vector: str
    width: int
    number: int

    @property
    def text(self) -> str:
        """The element as C text."""
        return f"{self.vector}.s{self.number:x}"


def vectors_of(scattered: Iterable[Place]) -> Mapping[Place, tuple[Place, int]]:
    """For single elements that lie in runs: the vector to read, and its lane that is the element.

    Vectors hold nothing but elements that were asked for. The rest of a run overlaps what is read
    already.
    """
    found: dict[Place, tuple[Place, int]] = {}
    ordered = sorted(set(scattered), key=lambda p: (p.buffer.name, p.base, p.offset))
    for _, pairs in groupby(enumerate(ordered), _run):
        run = [place for _, place in pairs]
        at = 0
        while at < len(run) >= _LEAST:
            width = next((n for n in _WIDTHS if n <= len(run) - at), _LEAST)
            at = min(at, len(run) - width)
            vector = replace(run[at], lanes=width)
            found |= {place: (vector, lane) for lane, place in enumerate(run[at : at + width])}
            at += width
    return found


def _run(numbered: tuple[int, Place]) -> tuple[object, ...]:
    """The same for neighbours in the order of their offsets, and for no others."""
    number, place = numbered
    return place.buffer, place.base, place.divisor, place.offset - number


def shuffled(lanes: Sequence[Lane], dtype: str) -> str | None:
    """The vector of these lanes as C text, where its sources are as wide or fill a vector."""
    count = len(lanes)
    widths = {lane.vector: lane.width for lane in lanes}
    total = sum(widths.values())
    if total in opencl.VECTOR_LANES:
        return _of_one(lanes, widths, dtype)
    if all(width == count for width in widths.values()):
        return _chosen(lanes, list(widths))
    return None


def _of_one(lanes: Sequence[Lane], widths: Mapping[str, int], dtype: str) -> str:
    """All sources side by side, and one shuffle."""
    starts = dict(zip(widths, accumulate(widths.values(), initial=0), strict=False))
    kind = opencl.type_name(dtype, sum(widths.values()))
    whole = next(iter(widths)) if len(widths) == 1 else f"(({kind})({', '.join(widths)}))"
    return f"{whole}.s{''.join(f'{starts[n.vector] + n.number:x}' for n in lanes)}"


def _chosen(lanes: Sequence[Lane], names: Sequence[str]) -> str:
    """A shuffle of each source, and between two of them a choice for each lane."""
    text = ""
    for name in names:
        own = [lane.vector == name for lane in lanes]
        picks = (
            n.number if mine else i for i, (n, mine) in enumerate(zip(lanes, own, strict=True))
        )
        part = f"{name}.s{''.join(f'{i:x}' for i in picks)}"
        mask = ", ".join("-1" if mine else "0" for mine in own)
        kind = opencl.type_name("int32", len(lanes))
        text = f"(({kind})({mask}) ? {part} : {text})" if text else part
    return text

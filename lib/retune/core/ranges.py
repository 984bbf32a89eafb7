"""What users state of extents that a bundle leaves open: ranges, and the sizes to tune for.

`1..32` is every extent from 1 to 32, `8..512:8` every eighth one. `1:8` states one extent and how
often it occurs, and several of these, `1:8,32:1`, or plain ones, `1,8,32`, state the range from the
least to the greatest, in steps of their largest common divisor. Read `Extents.of`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd, isqrt, prod
from typing import TypeAlias

from retune.core.dims import Size

Stated: TypeAlias = int | str
"""An extent, or a text for several, see the top of the file."""

_RANGE = re.compile(r"(\d+)\.\.(\d+)(?::(\d+))?")
_WEIGHTED = re.compile(r"(\d+):(\d+(?:\.\d+)?)")
_WIDE = 8
"""A range whose ends are farther apart, by this factor, is tuned between them as well."""
_MOST_POINTS = 4
"""Sizes of several symbols that are all combined with each other."""


def parse_stated(text: str) -> Stated:
    """The extent, or the text where it states several.

    Raises: ValueError saying what was expected.
    """
    plain = text.strip()
    if plain.isdecimal():
        return int(plain)
    if match := _RANGE.fullmatch(plain):
        least, most, step = int(match[1]), int(match[2]), int(match[3] or 1)
        if least > most or step < 1:
            raise ValueError("a range from the least to the greatest extent, such as 1..32")
        return plain
    if (match := _WEIGHTED.fullmatch(plain)) and float(match[2]) > 0:
        return plain
    raise ValueError("whole numbers, or ranges such as 1..32")


def is_open(stated: Sequence[Stated]) -> bool:
    """Whether more than one extent is stated somewhere."""
    return any(isinstance(each, str) for each in stated)


@dataclass(frozen=True, slots=True)
class Extents:
    """The extents of a size, and those that kernels are tuned for."""

    size: Size
    tuned: tuple[tuple[int, float], ...]
    """From the least to the greatest, each with how often it occurs: a share of all."""

    @staticmethod
    def of(name: str, stated: Sequence[Stated]) -> "Extents":
        """What is stated for the size of that name: a range, or extents with or without weights.

        Raises: ValueError saying what was expected.
        """
        if len(stated) == 1 and (match := _RANGE.fullmatch(str(stated[0]))):
            size = Size(name, int(match[1]), int(match[2]), int(match[3] or 1))
            size = Size(name, size.least, size.values[-1], size.step)
            chosen = _spread(size)
            return Extents(size, tuple((value, 1 / len(chosen)) for value in chosen))
        weights: dict[int, float] = {}
        for each in stated:
            match = _WEIGHTED.fullmatch(str(each))
            value, weight = (int(match[1]), float(match[2])) if match else (each, 1.0)
            if not isinstance(value, int):
                raise ValueError("one range, or extents with weights such as 1:8,32:1")
            weights[value] = weights.get(value, 0.0) + weight
        every = sorted(weights)
        step = gcd(*every) or 1
        total = sum(weights.values())
        return Extents(
            Size(name, every[0], every[-1], step), tuple((v, weights[v] / total) for v in every)
        )


def _spread(size: Size) -> list[int]:
    """The ends, and what lies between them by its factor where they are far apart."""
    chosen = {size.least, size.most}
    if size.most > _WIDE * max(1, size.least):
        middle = isqrt(max(1, size.least) * size.most)
        chosen.add(size.values[(middle - size.least) // size.step])
    return sorted(chosen)


@dataclass(frozen=True, slots=True)
class TunedSizes:
    """Values of all sizes for which a network is tuned, and how often they occur."""

    values: tuple[tuple[str, int], ...]
    weight: float
    """A share of all."""

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.values)


FIXED = TunedSizes((), 1.0)
"""Of a network without sizes."""


def usual_sizes(points: Sequence[TunedSizes]) -> TunedSizes:
    """Those that occur most; of equal ones the greatest."""
    return max(reversed(points), key=lambda point: point.weight)


def tuned_sizes(extents: Sequence[Extents]) -> tuple[TunedSizes, ...]:
    """The sizes to tune for, the least first; none without open extents.

    Every combination of what is tuned of each; where these are too many, the least ones together,
    then the next ones, and so on.
    """
    if not extents:
        return ()
    names = [each.size.name for each in extents]
    rows = list(product(*(each.tuned for each in extents)))
    if len(rows) > _MOST_POINTS:
        longest = max(len(each.tuned) for each in extents)
        rows = [
            tuple(each.tuned[i * (len(each.tuned) - 1) // (longest - 1)] for each in extents)
            for i in range(longest)
        ]
    shares = [prod(weight for _, weight in row) for row in rows]
    return tuple(
        TunedSizes(tuple(zip(names, (value for value, _ in row), strict=True)), share / sum(shares))
        for row, share in zip(rows, shares, strict=True)
    )

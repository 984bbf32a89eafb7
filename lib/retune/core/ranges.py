"""Ranges of open sizes that users state, and the sizes to tune for.

The numbers are extents, or values of an input. `1..32` is every one from 1 to 32, `8..512:8` every
eighth one. `1:8` states one number and how often it occurs, and several of these, `1:8,32:1`, plain
ones, `1,8,32`, or ranges among them, `1,16..512`, state the range from the least to the greatest,
in steps of their largest common divisor. Values may be negative, `-6..-1`, but not on both sides of
0. Read `Extents.of`.
"""

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from math import gcd, isqrt, prod
from typing import TypeAlias

from retune.core.dims import Size, dim_of, values_text
from retune.core.errors import ModelError

Stated: TypeAlias = int | str
"""A number, or a text for several, see the top of the file."""

_NUMBER = re.compile(r"-?\d+")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?::(\d+))?")
_WEIGHTED = re.compile(r"(-?\d+):(\d+(?:\.\d+)?)")
_WIDE = 8
"""A range whose ends are farther apart, by this factor, is tuned between them as well."""
_MOST_POINTS = 4
"""Sizes of several symbols that are all combined with each other."""


def parse_stated(text: str, *, negative: bool = False) -> Stated:
    """The number, or the text where it states several; `negative` ones are values of an input.

    Raises: ValueError saying what was expected.
    """
    plain = text.strip()
    if not negative and plain.startswith("-"):
        raise ValueError("whole numbers of 0 or more, or ranges such as 1..32")
    if _NUMBER.fullmatch(plain):
        return int(plain)
    if match := _RANGE.fullmatch(plain):
        least, most, step = int(match[1]), int(match[2]), int(match[3] or 1)
        if least > most:
            raise ValueError("a range from the least to the greatest number, such as 1..32")
        if step < 1:
            raise ValueError("a range in steps of 1 or more, such as 8..512:8")
        return plain
    if match := _WEIGHTED.fullmatch(plain):
        if float(match[2]) <= 0:
            raise ValueError("weights above 0, such as 1:8")
        return plain
    raise ValueError("whole numbers, or ranges such as 1..32")


def is_open(stated: Sequence[Stated]) -> bool:
    """Whether more than one number is stated somewhere."""
    return any(isinstance(each, str) for each in stated)


@dataclass(frozen=True, slots=True)
class Extents:
    """The numbers that a size stands for, and those that kernels are tuned for."""

    size: Size
    tuned: tuple[tuple[int, float], ...]
    """Values of the size, the least first, each with how often it occurs: a share of all."""
    sign: int = 1
    """-1 where the numbers are negative: the size is what they are without the sign."""

    @property
    def dim(self) -> int:
        """The number in terms of the size."""
        return self.sign * dim_of(self.size)

    @staticmethod
    def of(name: str, stated: Sequence[Stated]) -> "Extents":
        """What is stated for the size of that name: ranges, and numbers with or without weights.

        Of negative numbers its name begins with `minus_`. Raises: ValueError saying what was
        expected.
        """
        weights: dict[int, float] = {}
        parts = [_part(each) for each in stated]
        for values, weight in parts:
            chosen = _spread(values)
            for value in chosen:
                weights[value] = weights.get(value, 0.0) + weight / len(chosen)
        total = sum(weights.values())
        every = [end for values, _ in parts for end in (values[0], values[-1])]
        steps = [values.step for values, _ in parts if len(values) > 1]
        step = gcd(*every, *steps) or 1 if len(parts) > 1 else parts[0][0].step
        size, sign = _size(name, min(every), max(every), step)
        tuned = sorted((sign * value, weight / total) for value, weight in weights.items())
        return Extents(size, tuple(tuned), sign)


def _part(stated: Stated) -> tuple[range, float]:
    """The numbers that a text states, and how often they occur."""
    if match := _RANGE.fullmatch(str(stated)):
        return range(int(match[1]), int(match[2]) + 1, int(match[3] or 1)), 1.0
    match = _WEIGHTED.fullmatch(str(stated))
    value, weight = (int(match[1]), float(match[2])) if match else (int(stated), 1.0)
    return range(value, value + 1), weight


def _size(name: str, least: int, most: int, step: int) -> tuple[Size, int]:
    """The size of numbers from the least to the most, and their sign. Raises: ValueError."""
    if least >= 0:
        return Size(name, least, most, step), 1
    if most > 0:
        raise ValueError("numbers on one side of 0, such as -6..-1 or 1..6")
    return Size(f"minus_{name}", -most, -least, step), -1


def _spread(values: range) -> set[int]:
    """The ends, and what lies between them by its factor where they are far apart."""
    least, most = sorted((abs(values[0]), abs(values[-1])))
    chosen = {values[0], values[-1]}
    if most > _WIDE * max(1, least):
        middle = (isqrt(max(1, least) * most) - least) // values.step
        chosen.add(values[middle] if values[0] >= 0 else values[-1 - middle])
    return chosen


@dataclass(frozen=True, slots=True)
class TunedSizes:
    """Values of all sizes for which a network is tuned, and how often they occur."""

    values: tuple[tuple[str, int], ...]
    weight: float
    """A share of all."""

    def __str__(self) -> str:
        return values_text(dict(self.values))


FIXED = TunedSizes((), 1.0)
"""Of a network without sizes."""


@contextmanager
def said_of(sizes: TunedSizes) -> Generator[None]:
    """Within it, what is wrong with a model is said of these sizes; fixed shapes have none."""
    try:
        yield
    except ModelError as error:
        if not sizes.values:
            raise
        raise ModelError(f"at {sizes}: {error}") from error


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

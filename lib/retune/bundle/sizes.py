"""Sizes of a plan: where a run reads them from, and which of its variants they choose.

Read PlanSize and PlanVariant, then `choose`. This file knows no device and no file.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, product
from typing import Any

import numpy as np

from retune.core.dims import Condition, Size, SizeValues

_MOST_TRIES = 1 << 16
"""Sizes that are looked at for one that meets conditions."""
_CHUNK = 1 << 12
"""Sizes that are looked at together."""
_MOST_IN_PRODUCTS = 1 << 16
"""Sizes below this: products of three, times a factor, are exact in 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSize:
    """A size of the values of a network, as an input states it, or as a host step finds it."""

    size: Size
    buffer: str
    """Of role `size`: kernels read its value there."""
    input: str
    """What it is an extent of: an input, or what a host step makes."""
    axis: int | None = None
    """It is the extent along this axis; None: it is what elements of the input say, see
    `NetworkPlan.values`."""

    @property
    def counted(self) -> bool:
        """Whether a host step finds it."""
        return self.size.counted

    def at(self, values: SizeValues) -> "PlanSize":
        """It with its value of these alone."""
        value = values[self.size.name]
        return replace(self, size=replace(self.size, least=value, most=value, step=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanVariant:
    """The steps that run for sizes that meet its conditions and no earlier variant's."""

    conditions: tuple[Condition, ...] = ()
    first: int
    """Number of its first launch."""
    end: int
    """Of the launch after its last one."""
    first_host: int = 0
    """Number of its first host step."""
    end_host: int
    outputs: tuple[str, ...] = ()
    """The buffers that are the plan's outputs, in order, where it has others than those."""

    def holds(self, values: SizeValues) -> bool:
        """Whether its conditions do."""
        return all(condition.at(values) for condition in self.conditions)

    def __str__(self) -> str:
        return " and ".join(map(str, self.conditions)) or "all sizes"


def choose(variants: Iterable[PlanVariant], values: SizeValues) -> int | None:
    """The number of the first variant whose conditions these sizes meet."""
    return next((n for n, variant in enumerate(variants) if variant.holds(values)), None)


def corners(
    sizes: Sequence[Size], variants: Sequence[PlanVariant], *, largest: bool
) -> Iterator[tuple[int, dict[str, int]]]:
    """Number of each variant, and about the largest or the least sizes that choose it.

    In the order in which they are found: the first ones are about the largest or the least that
    choose any. Variants for which no sizes are found are left out.
    """
    left = set(range(len(variants)))
    names = [size.name for size in sizes]
    rows = _rows(sizes, largest=largest)
    while left and (chunk := list(islice(rows, _CHUNK))):
        for at, number in enumerate(_chosen(variants, sizes, chunk).tolist()):
            if number in left:
                left.remove(number)
                yield number, dict(zip(names, chunk[at], strict=True))


def _chosen(
    variants: Sequence[PlanVariant], sizes: Sequence[Size], rows: Sequence[Sequence[int]]
) -> np.ndarray:
    """For each row of values of the sizes what `choose` returns; -1 for none. [rows]"""
    exact = max(size.most for size in sizes) < _MOST_IN_PRODUCTS
    table = np.array(rows, np.int64 if exact else object)
    values: Mapping[str, Any] = {size.name: table[:, n] for n, size in enumerate(sizes)}
    numbers = np.full(len(rows), -1)
    for number, variant in enumerate(variants):
        holds = numbers < 0
        for condition in variant.conditions:
            holds &= condition.at(values)
        numbers[holds] = number
    return numbers


def _rows(sizes: Sequence[Size], *, largest: bool) -> Iterator[tuple[int, ...]]:
    """Values of the sizes, from the largest or the least ones on, as far as it is worthwhile to
    look; then all values of each size with ends of the ranges of the others."""
    every = [size.values[::-1] if largest else size.values for size in sizes]
    ends = [(values[0], values[-1]) for values in every]
    ranges = [values[:_MOST_TRIES] for values in every]
    single = (
        product(
            *(values if other is values else own for other, own in zip(ranges, ends, strict=True))
        )
        for values in ranges
    )
    return chain.from_iterable(islice(rows, _MOST_TRIES) for rows in (product(*ranges), *single))

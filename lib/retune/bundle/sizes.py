"""Sizes of a plan: where a run reads them from, and which of its variants they choose.

Read PlanSize and PlanVariant, then `choose`. This file knows no device and no file.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, product

from retune.core.dims import Condition, Size, SizeValues

_MOST_TRIES = 1 << 16
"""Sizes that are looked at for one that meets conditions."""


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


def size_values(sizes: Sequence[Size], *, largest: bool) -> Iterator[dict[str, int]]:
    """Values of the sizes, from the largest or the least ones on, as far as it is worthwhile to
    look; then all values of each size with ends of the ranges of the others."""
    ranges = [size.values[::-1] if largest else size.values for size in sizes]
    ends = [(values[0], values[-1]) for values in ranges]
    single = (
        product(
            *(values if other is values else own for other, own in zip(ranges, ends, strict=True))
        )
        for values in ranges
    )
    for row in chain(islice(product(*ranges), _MOST_TRIES), chain.from_iterable(single)):
        yield dict(zip((size.name for size in sizes), row, strict=True))


def corner(
    sizes: Sequence[Size], accepts: Callable[[SizeValues], bool], *, largest: bool
) -> dict[str, int] | None:
    """About the largest or the least values that are accepted; None if none is found."""
    return next(filter(accepts, size_values(sizes, largest=largest)), None)

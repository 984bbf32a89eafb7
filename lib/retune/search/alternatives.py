"""Programs of one task for all values of the sizes that a network counts.

Read `covering_counts`. A program holds on conditions (`core.dims`). Those on sizes of inputs choose
a variant of the plan before it runs. Counts are found while it runs: what serves a count is chosen
then, launch by launch, as a launch whose conditions do not hold has no groups.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from retune.codegen.source import KernelLaunch
from retune.core.dims import Condition, Size, apart, at, note, sizes_of
from retune.core.errors import InputError

T = TypeVar("T")

Conditions: TypeAlias = tuple[Condition, ...]

_MOST_ALTERNATIVES = 16
"""Of one task."""
_MOST_VALUES = 1 << 20
"""Of all counts of a task, that are looked at; of more than these those near the ends, and some
between them."""
_NEAR = 1 << 8


@dataclass(frozen=True, slots=True)
class Alternative(Generic[T]):
    """What serves the counts that meet its conditions, and not all of an earlier one's."""

    made: T
    conditions: Conditions = ()
    earlier: tuple[Conditions, ...] = ()
    """Of earlier ones that serve some of these counts."""

    def launch(self, launch: KernelLaunch) -> KernelLaunch:
        """The launch, which has no groups for sizes that this does not serve."""
        if not self.conditions and not self.earlier:
            return launch
        serves = _indicator(self.conditions)
        for conditions in self.earlier:
            serves = serves * (1 - _indicator(conditions))
        first, *others = launch.global_size
        return replace(
            launch,
            global_size=(first * serves, *others),
            flops=launch.flops * serves,
            bytes=launch.bytes * serves,
        )


def _indicator(conditions: Conditions) -> int:
    """1 for sizes that meet all of them, and 0 for others."""
    return prod(condition.indicator for condition in conditions)


def covering_counts(
    counts: Collection[Size], elements: int, make: Callable[[], Sequence[T]]
) -> list[tuple[Alternative[T], ...]]:
    """What `make` makes where these counts are at hand, so often that each value is served for
    which there are any of the `elements` that it is to compute; for each of what it makes.

    Conditions on no count are noted. Raises: InputError if too many would be needed.
    """
    if not counts:
        return [(Alternative(made),) for made in make()]
    values, found = _values(counts), list[Alternative[Sequence[T]]]()
    left = np.asarray(_elements_at(elements, counts, values)) > 0
    while left.any() or not found:
        if len(found) == _MOST_ALTERNATIVES:
            raise InputError(
                f"{', '.join(map(str, counts))}: expected kernels that serve many counts; more "
                f"than {_MOST_ALTERNATIVES} would be needed for one task"
            )
        last = np.flatnonzero(left)[-1] if left.any() else -1
        at_hand = {name: int(row[last]) for name, row in values.items()}
        # Estimates of schedules that have nothing to do may divide by 0.
        with apart(at_hand) as assumed, np.errstate(divide="ignore", invalid="ignore"):
            made = make()
        note(c for c in assumed.conditions if not c.counted)
        own = tuple(c for c in assumed.conditions if c.counted)
        if further := _further(own, counts):
            return covering_counts({*counts, *further}, elements, make)
        met = _meeting(own, values)
        earlier = [a.conditions for a in found if (met & _meeting(a.conditions, values)).any()]
        found.append(Alternative(made, own, tuple(earlier)))
        left &= ~met
    most = max(len(each.made) for each in found)
    return [
        tuple(Alternative(a.made[min(n, len(a.made) - 1)], a.conditions, a.earlier) for a in found)
        for n in range(most)
    ]


def _elements_at(elements: int, counts: Collection[Size], values: Mapping[str, Any]) -> Any:
    """The elements for these counts; 1 where they depend on other sizes."""
    own = sizes_of([elements]) <= {*counts}
    return np.broadcast_to(at(elements if own else 1, values), next(iter(values.values())).shape)


def _meeting(conditions: Conditions, values: Mapping[str, Any]) -> np.ndarray:
    """Which of the values meet all of them."""
    met = np.ones(next(iter(values.values())).shape, bool)
    for condition in conditions:
        met &= condition.at(values)
    return met


def _further(conditions: Conditions, counts: Collection[Size]) -> set[Size]:
    """Counts besides these that conditions are on. Raises: InputError for other sizes."""
    found: set[Size] = set()
    for condition in conditions:
        found |= condition.dim.sizes - {*counts}
        if others := sorted(size.name for size in found if not size.counted):
            raise InputError(
                f"expected kernels whose conditions on counts name no other sizes; got "
                f"'{condition}'; give {', '.join(others)} single extents"
            )
    return found


def _values(counts: Collection[Size]) -> dict[str, Any]:
    """All values of the counts, or some, as arrays of a common length."""
    sizes = sorted(counts, key=lambda size: size.name)
    axes = np.meshgrid(*(_looked_at(size, len(sizes)) for size in sizes), indexing="ij")
    return {size.name: axis.reshape(-1) for size, axis in zip(sizes, axes, strict=True)}


def looks_at_all(counts: Collection[Size]) -> bool:
    """Whether `covering_counts` looks at each value of these: it serves them all then."""
    most = int(_MOST_VALUES ** (1 / max(1, len(counts))))
    return all(len(size.values) <= most for size in counts)


def _looked_at(size: Size, counts: int) -> np.ndarray:
    """Values of one of so many sizes, all of them where these are few."""
    most = int(_MOST_VALUES ** (1 / counts))
    if len(size.values) <= most:
        return np.asarray(size.values)
    near = min(_NEAR, most // 4)
    spread = np.geomspace(max(1, size.least), size.most, most // 2).astype(np.int64)
    ends = (*size.values[:near], *size.values[-near:])
    return np.unique(np.concatenate([spread, np.asarray(ends)]))

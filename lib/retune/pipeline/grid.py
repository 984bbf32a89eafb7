"""All combinations of sizes of a request, as arrays. Read `SizeGrid`."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from retune.core.dims import Condition, Size, SizeValues


class SizeGrid:
    """All values of some sizes, as arrays of a common length."""

    def __init__(self, every: Sequence[Size]) -> None:
        axes = np.meshgrid(*(np.asarray(size.values) for size in every), indexing="ij")
        self._values: Mapping[str, Any] = {
            size.name: axis.reshape(-1) for size, axis in zip(every, axes, strict=True)
        }
        self.count = prod(len(size.values) for size in every)

    def meets(self, conditions: Sequence[Condition]) -> np.ndarray:
        """Whether each of the sizes meets all the conditions. bool [count]"""
        result = np.ones(self.count, bool)
        for condition in conditions:
            result &= condition.at(self._values)
        return result

    def without_implied(self, conditions: Sequence[Condition]) -> tuple[Condition, ...]:
        """The conditions without those that follow from the others."""
        missed = {condition: ~self.meets([condition]) for condition in conditions}
        count = sum(missed.values(), np.zeros(self.count, np.int64))
        for condition, own in list(missed.items()):
            if not np.any(own & (count == 1)):
                count -= missed.pop(condition)
        return tuple(missed)

    def nearest(self, among: np.ndarray, wanted: SizeValues) -> dict[str, int] | None:
        """The one among them that is these sizes, or nearest by factors; None if there is none."""
        numbers = np.flatnonzero(among)
        if not len(numbers):
            return None
        apart = sum(
            np.abs(np.log1p(values[numbers]) - np.log1p(wanted[name]))
            for name, values in self._values.items()
        )
        chosen = numbers[np.argmin(apart)]
        return {name: int(values[chosen]) for name, values in self._values.items()}

    def greatest(self, among: np.ndarray) -> dict[str, int] | None:
        """The last one among them; None if there is none."""
        indices = np.flatnonzero(among)
        if not len(indices):
            return None
        return {name: int(values[indices[-1]]) for name, values in self._values.items()}

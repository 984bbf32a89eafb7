"""How many times longer one choice of schedules takes than the best one for each size.

A bundle for ranges has few programs, and each one serves many sizes with the same tiles. What that
costs is known before anything is measured, by the estimate. Read `SizeTimes`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from retune.core.dims import Condition, Size, SizeValues, samples_at_hand
from retune.core.results import Regret
from retune.core.target import DeviceSpec
from retune.search.task import Task
from retune.targets.cost.estimate import Defaults, least_regret

_SAMPLES = 20
"""Sizes beside those at hand for which tasks are estimated."""


@dataclass(frozen=True, eq=False)
class SizeTimes:
    """Estimates of a network's tasks at some sizes, for all candidates of default schedules."""

    values: Sequence[SizeValues]
    """The sizes."""
    tasks: Sequence[np.ndarray]
    """Of each task, as often as it occurs. float64 [sizes, candidates]"""

    @staticmethod
    def of(tasks: Iterable[Task], sizes: Iterable[Size], spec: DeviceSpec) -> "SizeTimes":
        """Those of these tasks. To be called where sizes are assumed, for which they were made."""
        values = samples_at_hand(sizes, _SAMPLES)
        found = (task.weight * Defaults.of(task.space(spec)).times(values, spec) for task in tasks)
        return SizeTimes(values, list(found))

    @cached_property
    def _best(self) -> np.ndarray:
        """Of the best candidates for each size. float64 [sizes]"""
        return np.sum([times.min(axis=1) for times in self.tasks], axis=0)

    def beyond(self, regions: Iterable[Sequence[Condition]]) -> "SizeTimes":
        """The same without the sizes of these regions."""
        met = [any(all(c.at(v) for c in each) for each in regions) for v in self.values]
        left = [n for n, inside in enumerate(met) if not inside]
        return SizeTimes([self.values[n] for n in left], [times[left] for times in self.tasks])

    def ratios(self, region: Sequence[Condition]) -> np.ndarray:
        """The times of one program for the sizes of a region over those of the best ones.

        float64 [sizes of the region]
        """
        numbers = [n for n, v in enumerate(self.values) if all(c.at(v) for c in region)]
        if not numbers or not self.tasks:
            return np.ones(len(numbers))
        rows = (times[numbers] for times in self.tasks)
        own = np.sum([each[:, least_regret(each)] for each in rows], axis=0)
        return own / self._best[numbers]

    def regret(self, region: Sequence[Condition]) -> Regret:
        """That of one program for the sizes of a region."""
        ratios = self.ratios(region)
        if not len(ratios):
            return Regret(sizes=0)
        return Regret(float(np.exp(np.log(ratios).mean())), float(ratios.max()), len(ratios))

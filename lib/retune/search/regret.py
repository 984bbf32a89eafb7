"""Regret: how many times longer one choice of schedules takes than the best for each size.

A bundle for ranges has few programs, and each one serves many sizes with the same tiles. What that
costs is known before anything is measured, by the estimate. Read `SizeTimes`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from retune.core.dims import Condition, Size, SizeValues, samples_at_hand
from retune.core.results import Regret
from retune.core.target import DeviceSpec
from retune.schedule.space import Candidate
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
    candidates: Sequence[tuple[str, Defaults]] = ()
    """Of each task, and its key at the sizes at hand; none where times alone are known."""

    @staticmethod
    def of(tasks: Iterable[Task], sizes: Iterable[Size], spec: DeviceSpec) -> "SizeTimes":
        """Those of these tasks. To be called where sizes are assumed, for which they were made."""
        values, every = samples_at_hand(sizes, _SAMPLES), list(tasks)
        found = [Defaults.of(task.space(spec)) for task in every]
        times = [t.weight * own.times(values, spec) for t, own in zip(every, found, strict=True)]
        keys = (task.at(values[0]).key for task in every)
        return SizeTimes(values, times, list(zip(keys, found, strict=True)))

    @cached_property
    def _best(self) -> np.ndarray:
        """Of the best candidates for each size. float64 [sizes]"""
        return np.sum([times.min(axis=1) for times in self.tasks], axis=0)

    def beyond(self, regions: Iterable[Sequence[Condition]]) -> "SizeTimes":
        """The same without the sizes of these regions."""
        met = [any(all(c.at(v) for c in each) for each in regions) for v in self.values]
        left = [n for n, inside in enumerate(met) if not inside]
        tasks = [times[left] for times in self.tasks]
        return replace(self, values=[self.values[n] for n in left], tasks=tasks)

    def ratios(self, region: Sequence[Condition]) -> np.ndarray:
        """The times of one program for the sizes of a region over those of the best ones.

        float64 [sizes of the region]
        """
        numbers = self._inside(region)
        if not numbers or not self.tasks:
            return np.ones(len(numbers))
        rows = (times[numbers] for times in self.tasks)
        own = np.sum([each[:, least_regret(each)] for each in rows], axis=0)
        return own / self._best[numbers]

    def defaults(self, region: Sequence[Condition]) -> dict[str, Candidate]:
        """The default schedules of one program for the sizes of a region, by keys of tasks.

        Not of those behind counts: each of their alternatives has its own.
        """
        numbers = self._inside(region)
        rows = zip(self.candidates, self.tasks, strict=False) if numbers else ()
        known = (row for row in rows if not any(size.counted for size in row[0][1].sizes))
        return {k: own.candidate(least_regret(times[numbers])) for (k, own), times in known}

    def _inside(self, region: Sequence[Condition]) -> list[int]:
        """The numbers of the sizes of a region."""
        return [n for n, v in enumerate(self.values) if all(c.at(v) for c in region)]

    def regret(self, region: Sequence[Condition]) -> Regret:
        """That of one program for the sizes of a region."""
        return Regret.of(self.ratios(region).tolist())

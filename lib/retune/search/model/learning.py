"""Learner: one cost model for all tasks of a run, fed by every measurement.

The model follows from the measurements in their order, not from when they came: it is fitted to
fixed numbers of them, so a continued run has the model that it would have had.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from retune.core.target import DeviceSpec
from retune.schedule.space import Candidates, Space
from retune.search.model.cost_model import CostModel, OfflineModel
from retune.search.model.features import FEATURES, featurise

_LEAST_STEP = 8
_OWN_SHARE = 8
_STEP_SHARE = 64
"""The model is fitted again after 8 measurements, or where that is more, an eighth of those of the
run or a 64th of all: fitting costs time in proportion to all."""
_REMEMBERED = 1024
"""Candidates of a space whose features are kept: about those of one proposal, so that they are not
worked out again for those that live on in a population, or are measured."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class TrainingSet:
    """Measurements that a model learns from, in order."""

    features: np.ndarray
    """float32 [n, len(FEATURES)]"""
    costs: np.ndarray
    """float64 [n]; NaN for a failure."""
    tasks: np.ndarray
    """Task and conditions (`conditions.group`): costs are compared within both. object [n]"""

    @classmethod
    def nothing(cls) -> "TrainingSet":
        """No measurement."""
        return cls(
            features=np.zeros((0, len(FEATURES)), np.float32),
            costs=np.zeros(0),
            tasks=np.zeros(0, object),
        )

    @classmethod
    def joined(cls, parts: Sequence["TrainingSet"]) -> "TrainingSet":
        """All of some lessons (at least one), one after the other."""
        return cls(
            features=np.concatenate([part.features for part in parts]),
            costs=np.concatenate([part.costs for part in parts]),
            tasks=np.concatenate([part.tasks for part in parts]),
        )

    def first(self, count: int) -> "TrainingSet":
        """The first `count` measurements."""
        return TrainingSet(
            features=self.features[:count], costs=self.costs[:count], tasks=self.tasks[:count]
        )


class Learner:
    """Predicts scores of candidates of any task, from what the run and earlier ones measured."""

    def __init__(
        self,
        spec: DeviceSpec,
        seed: int,
        earlier: TrainingSet,
        offline: OfflineModel | None = None,
    ) -> None:
        """`earlier` is what was measured before the run, of whatever network."""
        self.spec = spec
        self._seed = seed
        self._offline = offline
        self._lessons = [earlier]
        self._before = len(earlier.costs)
        self._count = self._before
        self._fitted = -1
        self._model = CostModel(seed, offline)

    def observe(self, training_set: TrainingSet) -> None:
        """Takes in measurements of the run."""
        self._lessons.append(training_set)
        self._count += len(training_set.costs)

    def scorer(self, space: Space) -> "ModelScorer":
        """What a tuner of that space asks."""
        return ModelScorer(self, space)

    def predict(self, features: np.ndarray) -> np.ndarray:
        """Expected throughput in units of the task's best. float64 [n]"""
        self._fit()
        return self._model.predict(features).mean

    def _fit(self) -> None:
        """Brings the model to the last of the fixed numbers of measurements."""
        wanted = fit_at(self._before, self._count)
        if wanted == self._fitted or not wanted:
            return
        whole = TrainingSet.joined(self._lessons).first(wanted)
        score, task = scores(whole)
        self._model = CostModel(self._seed, self._offline)
        self._model.update(whole.features, score, task)
        self._fitted = wanted


class ModelScorer:
    """Scores candidates of one space by the learner's predictions."""

    def __init__(self, learner: Learner, space: Space) -> None:
        self._learner = learner
        self._space = space
        self._numbers = np.zeros(0, np.int64)
        """Of the candidates whose features are known, rising."""
        self._known = np.zeros((0, len(FEATURES)), np.float32)

    def score(self, candidates: Candidates) -> np.ndarray:
        """Expected throughput in units of the task's best. float64 [n]"""
        numbers, indices, copies = self._distinct(candidates)
        return self._learner.predict(self._featurised(candidates.take(indices), numbers))[copies]

    def features(self, candidates: Candidates) -> np.ndarray:
        """What `featurise` gives, without doing it again for those asked for lately."""
        numbers, indices, copies = self._distinct(candidates)
        return self._featurised(candidates.take(indices), numbers)[copies]

    def _distinct(self, candidates: Candidates) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rising numbers, an index of each, and where each candidate's number is among them."""
        numbers = self._space.numbers(candidates)
        return np.unique(numbers, return_index=True, return_inverse=True)

    def _featurised(self, distinct: Candidates, numbers: np.ndarray) -> np.ndarray:
        """The features of candidates in the order of their numbers; they are known afterwards."""
        indices = np.searchsorted(self._numbers, numbers)
        old = np.isin(numbers, self._numbers, assume_unique=True)
        found = np.empty((len(numbers), len(FEATURES)), np.float32)
        found[old] = self._known[indices[old]]
        if old.all():
            return found
        found[~old] = featurise(self._space, distinct.take(~old), self._learner.spec)
        if len(self._numbers) > _REMEMBERED:
            self._numbers, self._known = numbers, found
        else:
            self._numbers = np.insert(self._numbers, indices[~old], numbers[~old])
            self._known = np.insert(self._known, indices[~old], found[~old], axis=0)
        return found


def fit_at(before: int, count: int) -> int:
    """The number of measurements, at most `count`, to which the model is fitted.

    The numbers start with what was known before the run, and grow by steps that follow from them.
    """
    fitted = before
    while True:
        step = max(_LEAST_STEP, (fitted - before) // _OWN_SHARE, fitted // _STEP_SHARE)
        if fitted + step > count:
            return fitted
        fitted += step


def scores(training_set: TrainingSet) -> tuple[np.ndarray, np.ndarray]:
    """Throughput in units of the task's best, 0 for failures, float64 [n]; task numbers int64."""
    _, tasks = np.unique(training_set.tasks.astype(str), return_inverse=True)
    costs = np.where(np.isnan(training_set.costs), np.inf, training_set.costs)
    best = np.full(int(tasks.max(initial=-1)) + 1, np.inf)
    np.minimum.at(best, tasks, costs)
    with np.errstate(invalid="ignore"):
        found = best[tasks] / costs
    return np.where(np.isfinite(costs), found, 0.0), tasks.astype(np.int64)

"""The cost model: predicts a candidate's speed from those that were measured.

Gradient-boosted trees predict a candidate's score: its throughput over that of the task's best
candidate, 0 for one that failed. In a run they correct a prior: the share of the device's peak that
the static estimate promises, or where there is an offline model, the geometric mean of that share
and the model's prediction. So there is always an answer, and a few measurements improve it.

Estimate and offline model are two experts (Hinton 2002, products of experts): the one knows the
machine but not its details, the other only layers like those that it has seen. A candidate is
expected to be fast where both say so; one that only the trees like is more often their error.

The loss is the squared error. A run's own trees weigh it by the score, as Ansor does (Zheng et al.
2020, section 5.2); in an offline model that ranks other networks worse. `benchmarks.losses`
compares losses, and the trees alone with what tuning asks, each layer or network held out (peak@1,
peak@5, recall of the fastest tenth, rank correlation):

    tests/data/replay.parquet, six layers      squared trees alone    0.897 0.923 0.579 0.791
                                               weighted               0.833 0.932 0.583 0.795
                                               ranking                0.840 0.936 0.459 0.537
                                               static estimate        0.818 0.912 0.547 0.766
                                               squared and estimate   0.851 0.940 0.590 0.814
    what tuning four networks measured         squared trees alone    0.906 0.989 0.186 0.454
                                               weighted               0.827 0.979 0.209 0.381
                                               ranking                0.927 0.985 0.298 0.446
                                               static estimate        0.879 0.973 0.201 0.502
                                               squared and estimate   0.908 0.990 0.207 0.505

Also tried, each layer held out: the estimate as base margin of the trees (0.901 0.914, and 0.70
when trained on networks), trees of the logarithm's residual (0.621 0.845), corrections shrunk by
the members' disagreement, members of half the tasks each, flatter trees. None was better in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from retune.core.errors import RecordError
from retune.search.model.features import COLUMN, FEATURES, VERSION

if TYPE_CHECKING:
    import xgboost as xgb

Loss = Literal["weighted", "squared", "ranking"]
"""Squared error weighted by the score, not weighted, or the pairwise logistic loss in a task."""
LOSS: Loss = "squared"
"""Of an offline model. A run's own trees weigh: they are after the best of one task."""
_MEMBERS = 3
"""Ensembles of this many models, each on its own half of the rows' weight and of the features."""
_ROUNDS = 40
_PARAMETERS: dict[str, object] = {
    "objective": "reg:squarederror",
    "tree_method": "hist",
    "max_bin": 64,
    "eta": 0.15,
    "min_child_weight": 0.5,
    "subsample": 0.8,
    "colsample_bytree": 0.5,
    "base_score": 0.0,
    "nthread": 1,
}
"""One thread a model and fixed seeds: the same rows give the same trees, bit for bit. The data says
one thread too: otherwise threads wait for each other in each of many small steps."""
_DEPTH = 4
"""Of the trees that learn from a run: half the time of depth 6, and on its few rows no worse (best
of 16 and 64 of `benchmarks.search_quality`, four seeds: 0.953 0.979, and 0.953 0.976)."""
_OFFLINE_DEPTH = 6
"""Of the trees of an offline model, which has rows by the thousand."""
_LEAST_ROWS = 8
_GROWTH = 1.05
"""A refit waits until there are this many times the rows of the last one."""
_LEAST_WEIGHT = 0.1
"""Weight of a failed candidate beside 1 for the best: fast ones are what search is after."""
_LEARNED = 0.8
"""Weight of an offline model beside the static estimate, in their geometric mean. At a half and a
third, first choices in networks held out reach 0.876 and 0.871 of the best; alone, the trees reach
0.904, but rank worse than the estimate."""
_LEAST_SCORE = 0.02
"""Scores below this much are alike: the mean is one of logarithms."""
_PEAK_OPS = 4.0
"""Operations of a vector lane in a cycle: two multiply-adds."""


@dataclass(frozen=True, eq=False, slots=True)
class Prediction:
    """What is expected of some candidates. float64 [n] each."""

    mean: np.ndarray
    """Expected score; larger is faster."""
    spread: np.ndarray
    """Standard deviation between the models of the ensemble: how much is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineModel:
    """A trained ensemble as text, and what it was trained for."""

    members: tuple[str, ...]
    """Each model in xgboost's JSON."""
    features: str = VERSION
    """Version of the features that it reads."""
    name: str = ""
    trust: float = 0.0
    """Rank correlation on networks that it had not seen; 0: it was not judged."""

    def check(self) -> None:
        """Raises: RecordError if the model was trained on other features than today's."""
        if self.features != VERSION:
            raise RecordError(
                f"cost model {self.name or 'without a name'}: reads features of version "
                f"{self.features}, this program has {VERSION}; train it again "
                "(`retune model train`)"
            )


class CostModel:
    """Learns scores from features. Same seed, same data in the same calls: the same predictions."""

    def __init__(self, seed: int, offline: OfflineModel | None = None) -> None:
        """Knows nothing yet but its prior. Raises: RecordError for a model of other features."""
        self._seed = seed
        self._prior = None if offline is None else _load(offline)
        self._members: Sequence[xgb.Booster] = ()
        self._rows = 0

    def update(self, features: np.ndarray, score: np.ndarray, task: np.ndarray) -> None:
        """Learns from all rows measured so far; waits if few are new since the last time.

        Shapes: features float32 [n, len(FEATURES)]; score [n], of each task's best = 1, failures
        0; task int64 [n], equal where scores may be compared.
        """
        if len(features) < max(_LEAST_ROWS, _GROWTH * self._rows):
            return
        self._rows = len(features)
        before = self._before(features)
        self._members = _fit(features, score, task, before, self._seed, _DEPTH, "weighted")

    def predict(self, features: np.ndarray) -> Prediction:
        """What to expect of candidates with these features. float32 [n, len(FEATURES)]"""
        prior = self._before(features)
        if not self._members:
            return Prediction(prior, np.zeros(len(features)))
        return _ensemble(self._members, features, prior)

    def _before(self, features: np.ndarray) -> np.ndarray:
        promised = static_score(features)
        if self._prior is None:
            return promised
        learned = _ensemble(self._prior, features, np.zeros(len(features))).mean
        return promised ** (1.0 - _LEARNED) * np.clip(learned, _LEAST_SCORE, 1.0) ** _LEARNED


def static_score(features: np.ndarray) -> np.ndarray:
    """Share of the device's peak that the static estimate promises. float64 [n], 0 to 1"""

    def count(name: str) -> np.ndarray:
        return np.exp2(features[:, COLUMN[name]].astype(np.float64)) - 1.0

    peak = _PEAK_OPS * count("device.compute_units") * count("device.lanes_f32")
    return np.clip(count("program.estimate_rate") / peak, 0.0, 1.0)


def learned_score(offline: OfflineModel, features: np.ndarray) -> np.ndarray:
    """What the trees of an offline model say by themselves, without the estimate. float64 [n]

    Raises: RecordError for a model of other features.
    """
    return _ensemble(_load(offline), features, np.zeros(len(features))).mean


def train_offline(
    features: np.ndarray,
    score: np.ndarray,
    task: np.ndarray,
    seed: int,
    name: str = "",
    loss: Loss = LOSS,
) -> OfflineModel:
    """A model of these rows that others can start from; the same arguments give the same model.

    Shapes as for `CostModel.update`: features float32 [n, len(FEATURES)], score [n] from 0 (a
    failure) to 1 (its task's best), task int64 [n].
    """
    members = _fit(features, score, task, np.zeros(len(features)), seed, _OFFLINE_DEPTH, loss)
    texts = tuple(m.save_raw("json").decode() for m in members)
    return OfflineModel(members=texts, name=name)


def _fit(
    features: np.ndarray,
    score: np.ndarray,
    task: np.ndarray,
    prior: np.ndarray,
    seed: int,
    depth: int,
    loss: Loss,
) -> tuple[xgb.Booster, ...]:
    """The ensemble of trees of that depth; `prior` is what they are added to."""
    import xgboost as xgb

    parameters = {**_PARAMETERS, "max_depth": depth}
    weight = _weights(score, task) if loss == "weighted" else None
    order = np.arange(len(score))
    if loss == "ranking":
        order = np.argsort(task, kind="stable")  # xgboost wants a task's rows together
        parameters |= {"objective": "rank:pairwise", "ndcg_exp_gain": False}
    first = seed % (1 << 31)

    def member(number: int) -> xgb.Booster:
        # A matrix of its own: one makes its histogram when it is first trained on, and threads
        # that do so at once corrupt memory.
        data = xgb.DMatrix(
            features[order],
            label=score[order],
            weight=weight,
            base_margin=prior[order],
            qid=task[order] if loss == "ranking" else None,
            nthread=1,
        )
        return _boosted({**parameters, "seed": first + number}, data)

    with ThreadPoolExecutor(_MEMBERS) as pool:
        return tuple(pool.map(member, range(_MEMBERS)))


def _boosted(parameters: dict[str, object], data: xgb.DMatrix) -> xgb.Booster:
    """What `xgb.train` gives, without what it does around each round of a few small trees."""
    import xgboost as xgb

    booster = xgb.Booster(parameters, [data])
    for number in range(_ROUNDS):
        booster.update(data, number)
    return booster


def _weights(score: np.ndarray, task: np.ndarray) -> np.ndarray:
    """More for fast candidates; the tasks weigh the same whatever their number of rows."""
    weight = _LEAST_WEIGHT + (1.0 - _LEAST_WEIGHT) * np.asarray(score, np.float64)
    _, number = np.unique(task, return_inverse=True)
    sums = np.bincount(number, weights=weight)
    return weight * (len(weight) / len(sums)) / sums[number]


def _ensemble(
    members: Sequence[xgb.Booster], features: np.ndarray, prior: np.ndarray
) -> Prediction:
    import xgboost as xgb

    data = xgb.DMatrix(features, base_margin=prior, nthread=1)
    each = np.stack([m.predict(data) for m in members])
    return Prediction(each.mean(axis=0, dtype=np.float64), each.std(axis=0, dtype=np.float64))


def _load(offline: OfflineModel) -> tuple[xgb.Booster, ...]:
    import xgboost as xgb

    offline.check()
    members: list[xgb.Booster] = []
    for text in offline.members:
        booster = xgb.Booster({"nthread": 1})
        try:
            booster.load_model(bytearray(text.encode()))
        except xgb.core.XGBoostError as error:
            reason = str(error).splitlines()[0]
            raise RecordError(
                f"cost model {offline.name}: not a model of xgboost ({reason})"
            ) from error
        if booster.num_features() != len(FEATURES):
            raise RecordError(f"cost model {offline.name}: reads {booster.num_features()} features")
        members.append(booster)
    return tuple(members)

"""The cost model learns, always answers, and gives the same answer twice."""

import dataclasses

import numpy as np
import pytest

from retune.core.errors import RecordError
from retune.core.target import GENERIC_CPU
from retune.ir.stmt import from_dag
from retune.search.model.cost_model import (
    CostModel,
    OfflineModel,
    learned_score,
    static_score,
    train_offline,
)
from retune.search.model.features import COLUMN, featurise
from retune.search.model.ranks import rank_correlation
from retune.targets.cpu.space import cpu_space
from tests.support.dags import conv2d


def _features(count: int = 400) -> np.ndarray:
    space = cpu_space(from_dag(conv2d(1, 17, 19, 24, 32)), GENERIC_CPU)
    return featurise(space, space.sample(count, np.random.default_rng(0)), GENERIC_CPU)


def _score(features: np.ndarray) -> np.ndarray:
    """A made-up truth that the static estimate knows nothing of."""
    depth, groups = features[:, COLUMN["main.near_depth"]], features[:, COLUMN["main.groups"]]
    value = np.exp(-np.abs(depth - 3.0) - 0.2 * groups)
    return value / value.max()


def test_without_data_it_ranks_by_the_static_estimate():
    features = _features()
    model = CostModel(seed=0)
    found = model.predict(features)
    assert np.array_equal(found.mean, static_score(features)) and not found.spread.any()
    time = features[:, COLUMN["program.estimate"]]
    assert rank_correlation(found.mean, -time) > 0.95
    assert ((found.mean >= 0) & (found.mean <= 1)).all()


def test_it_learns_what_the_estimate_does_not_know():
    features = _features()
    score = _score(features)
    model = CostModel(seed=0)
    model.update(features[:200], score[:200], np.zeros(200, np.int64))
    found = model.predict(features[200:])
    assert (found.spread >= 0).all() and found.spread.any()
    assert rank_correlation(found.mean, score[200:]) > 0.9
    assert rank_correlation(static_score(features[200:]), score[200:]) < 0.5


def test_the_same_seed_and_rows_give_the_same_predictions():
    features = _features()
    score = _score(features)
    found = []
    for seed in (1, 1, 2):
        model = CostModel(seed=seed)
        model.update(features[:150], score[:150], np.zeros(150, np.int64))
        found.append(model.predict(features).mean)
    assert np.array_equal(found[0], found[1]) and not np.array_equal(found[0], found[2])


def test_an_offline_model_answers_before_anything_is_measured():
    features = _features()
    score = _score(features)
    offline = train_offline(features[:200], score[:200], np.zeros(200, np.int64), seed=0)
    model = CostModel(seed=0, offline=offline)
    unseen, truth = features[200:], score[200:]
    assert rank_correlation(learned_score(offline, unseen), truth) > 0.9
    found = model.predict(unseen).mean  # half-way to the estimate, which is wrong here
    assert rank_correlation(found, truth) > 0.7 > rank_correlation(static_score(unseen), truth)


def test_an_offline_model_that_tells_nothing_apart_leaves_the_estimates_order():
    features = _features()
    alike = np.full(len(features), 0.5)
    offline = train_offline(features, alike, np.zeros(len(features), np.int64), seed=0)
    found = CostModel(seed=0, offline=offline).predict(features).mean
    assert rank_correlation(found, static_score(features)) > 0.99


def test_measurements_correct_an_offline_model():
    features = _features()
    score = _score(features)
    offline = train_offline(features, 1.0 - score, np.zeros(len(score), np.int64), seed=0)
    model = CostModel(seed=0, offline=offline)
    assert rank_correlation(model.predict(features[200:]).mean, score[200:]) < -0.5
    model.update(features[:200], score[:200], np.zeros(200, np.int64))
    assert rank_correlation(model.predict(features[200:]).mean, score[200:]) > 0.7


def test_a_model_of_other_features_is_refused():
    features = _features(50)
    offline = train_offline(features, _score(features), np.zeros(50, np.int64), seed=0)
    with pytest.raises(RecordError, match="train it again"):
        CostModel(seed=0, offline=dataclasses.replace(offline, features="0"))
    with pytest.raises(RecordError, match="not a model of xgboost"):
        CostModel(seed=0, offline=OfflineModel(members=("{}",)))

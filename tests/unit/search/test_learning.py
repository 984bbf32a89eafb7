"""One model for all tasks: it follows from the measurements in their order, whoever took them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retune.core.target import GENERIC_CPU
from retune.records.store import RecordStore
from retune.schedule.space import Space
from retune.search.conditions import network_conditions
from retune.search.model.features import FEATURES, featurise
from retune.search.model.learning import Learner, TrainingSet, fit_at, scores
from retune.search.model.transfer import nearest_rows, warm_start
from retune.search.session import Session, search_all
from tests.support.search_fakes import FakeRunner, settings, tasks

TASK = max(tasks(), key=lambda task: task.flops)


@pytest.fixture(scope="module")
def space() -> Space:
    return TASK.space(GENERIC_CPU)


def training_set(space: Space, count: int, seed: int) -> TrainingSet:
    """Random candidates whose cost is that of their first decision."""
    found = space.sample(count, np.random.default_rng(seed))
    costs = 1.0 + found.rows[:, 0] + found.sketch
    return TrainingSet(
        features=featurise(space, found, GENERIC_CPU),
        costs=costs,
        tasks=np.full(len(costs), "t", object),
    )


def test_scores_are_shares_of_the_task_s_best():
    given = TrainingSet(
        features=np.zeros((5, len(FEATURES)), np.float32),
        costs=np.array([2.0, 4.0, np.nan, 10.0, np.nan]),
        tasks=np.array(["a", "a", "a", "b", "c"], object),
    )
    score, task = scores(given)
    assert score.tolist() == [1.0, 0.5, 0.0, 1.0, 0.0]
    assert task.tolist() == [0, 0, 0, 1, 2]


def test_the_model_is_fitted_to_fixed_numbers_of_measurements():
    assert [fit_at(0, count) for count in (0, 7, 8, 15, 16, 17)] == [0, 0, 8, 8, 16, 16]
    for before in (0, 5, 700, 4000):
        points = sorted({fit_at(before, before + count) for count in range(3000)})
        assert points[0] == before
        assert all(fit_at(before, point) == point for point in points)


@pytest.mark.parametrize("cut", [1, 8, 21])
def test_how_measurements_arrive_does_not_matter(space: Space, cut: int):
    whole, asked = training_set(space, 40, 1), training_set(space, 60, 2).features
    at_once = Learner(GENERIC_CPU, 3, TrainingSet.nothing())
    at_once.observe(whole)
    piecewise = Learner(GENERIC_CPU, 3, TrainingSet.nothing())
    for part in (slice(0, cut), slice(cut, 40)):
        piecewise.observe(
            TrainingSet(
                features=whole.features[part], costs=whole.costs[part], tasks=whole.tasks[part]
            )
        )
        piecewise.predict(asked)
    assert np.array_equal(at_once.predict(asked), piecewise.predict(asked))


def test_what_is_remembered_of_candidates_is_what_they_are(space: Space, rng: np.random.Generator):
    learner = Learner(GENERIC_CPU, 0, TrainingSet.nothing())
    learner.observe(training_set(space, 16, 1))
    scorer = learner.scorer(space)
    everyone = space.sample(2500, rng)
    for _ in range(5):  # repeats, members of earlier populations, and more than are remembered
        some = everyone.take(rng.integers(0, len(everyone), 700))
        right = featurise(space, some, GENERIC_CPU)
        assert np.array_equal(scorer.score(some), learner.predict(right))
        assert np.array_equal(scorer.features(some.take(np.arange(40, 9, -1))), right[40:9:-1])
    assert scorer.features(space.locate([])).shape == (0, len(FEATURES))


def test_other_runs_teach_a_run_before_it_begins(store: Path, space: Space):
    records = RecordStore(store)
    search_all(Session(tasks(), FakeRunner(), records, settings(tuner="random", trials=40)))
    here = network_conditions(GENERIC_CPU, tasks())
    elsewhere = network_conditions(replace(GENERIC_CPU, compute_units=1), tasks())
    known = warm_start(records, here, "another run")
    assert len(known.training_set.costs) == 40
    assert known.training_set.features.any()
    seeds = known.seeds(space)
    assert len(seeds) and space.valid(seeds).all()
    assert not len(warm_start(records, here, "run").training_set.costs)
    assert not len(warm_start(records, elsewhere, "another run").training_set.costs)


def test_the_nearest_row_of_a_row_is_itself(space: Space, rng: np.random.Generator):
    for sketch in space.sketches:
        rows = sketch.sample(20, rng)
        flat = [tuple(v for values in sketch.decided(row).values() for v in values) for row in rows]
        assert np.array_equal(nearest_rows(sketch, flat), rows)
        assert not len(nearest_rows(sketch, [(1,) * 99]))

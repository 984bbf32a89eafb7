"""Tuners propose every candidate at most once, and what they propose follows from what they saw."""

import numpy as np
import pytest

from benchmarks.table import geometric_mean
from retune.core.errors import LookupFailed
from retune.core.target import GENERIC_CPU
from retune.schedule.space import Candidates, Space, join
from retune.search.tuners import TUNERS, Scorer, Setting, Tuner, make_tuner
from retune.search.tuners.archive import Archive, no_candidates
from retune.search.tuners.pool import Pool
from tests.support.search_fakes import tasks

TASK = max(tasks(), key=lambda task: task.flops)
SMALL = min(tasks(), key=lambda task: task.flops)
LED = ("evolutionary", "xgb")
"""Tuners that follow a scorer."""


@pytest.fixture(scope="module")
def space() -> Space:
    return TASK.space(GENERIC_CPU)


class Landscape:
    """A synthetic task: each option of each decision has a cost of its own, and they multiply."""

    def __init__(self, space: Space, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.space = space
        self.factors = [
            [1.0 + rng.random(count) for count in sketch.options] for sketch in space.sketches
        ]

    def costs(self, candidates: Candidates) -> np.ndarray:
        result = np.ones(len(candidates))
        for number, columns in enumerate(self.factors):
            mine = candidates.sketch == number
            for column, factors in enumerate(columns):
                result[mine] *= factors[candidates.rows[mine, column]]
        return result

    def score(self, candidates: Candidates) -> np.ndarray:
        """As a scorer: it knows the truth."""
        return -np.log(self.costs(candidates))


def make(
    name: str, space: Space, seed: int = 1, task: str = "task", scorer: Scorer | None = None
) -> Tuner:
    scorer = scorer or Landscape(space, seed=99)
    return make_tuner(
        name, Setting(space=space, seed=seed, scorer=scorer, seeds=no_candidates(space)), task
    )


def draw(tuner: Tuner, landscape: Landscape, count: int, batch: int = 8) -> Candidates:
    """Lets the tuner search: everything that it proposes is measured on the landscape."""
    found = no_candidates(landscape.space)
    while len(found) < count:
        proposed = tuner.propose(min(batch, count - len(found)))
        if not len(proposed):
            break
        tuner.observe(proposed, landscape.costs(proposed))
        found = join([found, proposed])
    return found


def numbers(space: Space, candidates: Candidates) -> list[int]:
    return space.numbers(candidates).tolist()


@pytest.mark.parametrize("name", TUNERS)
def test_proposals_are_valid_and_new(name: str, space: Space):
    found = draw(make(name, space), Landscape(space), 60)
    assert len(set(numbers(space, found))) == len(found) == 60
    assert space.valid(found).all()


@pytest.mark.parametrize("name", TUNERS)
def test_nothing_is_proposed_twice_even_before_it_is_observed(name: str, space: Space):
    tuner = make(name, space)
    found = join([tuner.propose(8) for _ in range(5)])
    assert len(set(numbers(space, found))) == len(found) == 40


@pytest.mark.parametrize("name", TUNERS)
def test_what_was_observed_is_not_proposed(name: str, space: Space):
    landscape = Landscape(space)
    known = draw(make("random", space, seed=7), landscape, 40)
    tuner = make(name, space)
    tuner.observe(known, landscape.costs(known))
    found = draw(tuner, landscape, 40)
    assert set(numbers(space, known)).isdisjoint(numbers(space, found))


@pytest.mark.parametrize("name", TUNERS)
def test_a_tuner_spends_its_space_to_the_last_candidate(name: str):
    space = SMALL.space(GENERIC_CPU)
    everyone = space.everyone()
    tuner = make(name, space)
    found = draw(tuner, Landscape(space), 10 * len(everyone), batch=50)
    assert sorted(numbers(space, found)) == sorted(numbers(space, everyone))
    assert not len(tuner.propose(8))


@pytest.mark.parametrize("name", TUNERS)
def test_proposals_depend_on_seed_and_task_alone(name: str, space: Space):
    landscape = Landscape(space)

    def found(seed: int, task: str) -> list[int]:
        return numbers(space, draw(make(name, space, seed, task), landscape, 40))

    assert found(1, "a") == found(1, "a")
    if name != "grid":
        assert found(1, "a") != found(2, "a")
        assert found(1, "a") != found(1, "b")


@pytest.mark.parametrize("name", TUNERS)
@pytest.mark.parametrize("cut", [8, 24, 48])
def test_a_tuner_that_observes_a_history_goes_on_with_it(name: str, cut: int, space: Space):
    landscape = Landscape(space)
    whole = draw(make(name, space), landscape, 64)
    done = whole.take(np.arange(cut))
    tuner = make(name, space)
    tuner.observe(done, landscape.costs(done))
    rest = draw(tuner, landscape, 64 - cut)
    assert numbers(space, join([done, rest])) == numbers(space, whole)


@pytest.mark.parametrize("name", TUNERS)
def test_failures_are_taken_in(name: str, space: Space):
    tuner = make(name, space)
    found = no_candidates(space)
    for _ in range(6):
        proposed = tuner.propose(8)
        tuner.observe(proposed, np.full(len(proposed), np.nan))
        found = join([found, proposed])
    assert len(set(numbers(space, found))) == 48


def best_after(name: str, space: Space, trials: int, scorer: bool) -> float:
    """Geometric mean over seeds of the best cost found, in units of the landscape's best."""
    ratios = []
    for seed in range(6):
        landscape = Landscape(space, seed)
        tuner = make(name, space, seed, scorer=landscape if scorer else None)
        found = draw(tuner, landscape, trials)
        best = landscape.costs(space.everyone()).min()
        ratios.append(landscape.costs(found).min() / best)
    return geometric_mean(ratios)


@pytest.mark.parametrize("name", LED)
def test_a_true_scorer_leads_to_the_best_at_once(name: str, space: Space):
    assert best_after(name, space, 16, scorer=True) < 1.02
    assert best_after("random", space, 16, scorer=True) > 1.1


def test_breeding_from_measurements_beats_random_draws(space: Space):
    assert best_after("ga", space, 96, scorer=False) < best_after("random", space, 96, scorer=False)


def test_the_grid_walks_the_whole_space_once(space: Space):
    everyone = space.everyone()
    found = draw(make("grid", space), Landscape(space), len(everyone) + 8)
    assert numbers(space, found) == numbers(space, everyone)


def test_an_unknown_tuner_names_those_there_are(space: Space):
    with pytest.raises(LookupFailed, match="'genetics' is not known; choose one of evolutionary, "):
        make("genetics", space)


def test_a_pool_keeps_the_best_new_candidates_once(space: Space, rng: np.random.Generator):
    archive = Archive(space)
    everyone = space.everyone()
    archive.take(everyone.take(np.arange(10)))
    scores = np.arange(len(everyone), dtype=float)[::-1]
    pool = Pool(archive, 5)
    order = rng.integers(0, len(everyone), 4 * len(everyone))
    order = np.concatenate([order, np.arange(len(everyone))])
    assert pool.offer(everyone.take(order), scores[order])
    assert numbers(space, pool.candidates) == numbers(space, everyone.take(np.arange(10, 15)))
    assert not pool.offer(everyone, scores)


def test_variety_spreads_a_batch_over_options(space: Space):
    pool = Pool(Archive(space), 200)
    everyone = space.everyone()
    pool.offer(everyone, Landscape(space).score(everyone))

    def options(variety: float) -> int:
        chosen = pool.pick(8, variety)
        return sum(len(set(column)) for column in chosen.rows.T.tolist())

    assert options(1.0) > options(0.0)
    assert numbers(space, pool.pick(3, 0.0)) == numbers(space, pool.candidates.take(np.arange(3)))

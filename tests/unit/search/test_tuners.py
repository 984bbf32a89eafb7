"""Tuners propose every candidate at most once, and the same ones for the same seed."""

import pytest

from retune.core.errors import LookupFailed
from retune.core.target import GENERIC_CPU
from retune.schedule.estimate import default_candidate
from retune.schedule.space import Candidate, Space
from retune.search.tuners import TUNERS, Tuner, make_tuner
from tests.unit.search.fakes import tasks

TASK = max(tasks(), key=lambda task: task.flops)


@pytest.fixture(scope="module")
def space() -> Space:
    return TASK.space(GENERIC_CPU)


def draw(tuner: Tuner, count: int, batch: int = 8) -> list[Candidate]:
    found: list[Candidate] = []
    while len(found) < count and (batch_found := tuner.propose(min(batch, count - len(found)))):
        found += batch_found
    return found


@pytest.mark.parametrize("name", TUNERS)
def test_proposals_are_valid_and_new(name: str, space: Space):
    found = draw(make_tuner(name, space, 1, TASK.key), 40)
    assert len({candidate.key for candidate in found}) == len(found) == 40
    for candidate in found:
        sketch = space.sketch(candidate.sketch)
        assert sketch.valid(sketch.row(dict(candidate.decisions))[None]).all()


@pytest.mark.parametrize("name", TUNERS)
def test_what_is_known_is_not_proposed(name: str, space: Space):
    known = {c.key for c in draw(make_tuner(name, space, 1, TASK.key), 20)}
    found = draw(make_tuner(name, space, 1, TASK.key, known=known), 20)
    assert known.isdisjoint(c.key for c in found)


@pytest.mark.parametrize("name", TUNERS)
def test_a_spent_space_gives_nothing(name: str):
    small = min(tasks(), key=lambda task: task.flops)
    space = small.space(GENERIC_CPU)
    everyone = space.everyone()
    keys = {space.candidate(everyone, i).key for i in range(len(everyone))}
    tuner = make_tuner(name, space, 1, small.key, known=sorted(keys)[1:])
    assert [c.key for c in draw(tuner, 8)] in ([sorted(keys)[0]], [])
    assert make_tuner(name, space, 1, small.key, known=keys).propose(8) == []


def test_the_grid_walks_the_whole_space_once():
    small = min(tasks(), key=lambda task: task.flops)
    space = small.space(GENERIC_CPU)
    everyone = space.everyone()
    expected = [space.candidate(everyone, i) for i in range(len(everyone))]
    assert draw(make_tuner("grid", space, 0, small.key), len(expected) + 8) == expected


def test_random_draws_depend_on_seed_and_task(space: Space):
    def keys(seed: int, task: str) -> list[str]:
        return [c.key for c in draw(make_tuner("random", space, seed, task), 16)]

    assert keys(1, "a") == keys(1, "a")
    assert keys(1, "a") != keys(2, "a")
    assert keys(1, "a") != keys(1, "b")


def test_first_candidates_come_first(space: Space):
    best = default_candidate(space, GENERIC_CPU)
    assert make_tuner("random", space, 0, TASK.key, [best, best]).propose(3)[0] == best
    assert best not in make_tuner("random", space, 0, TASK.key, [best], {best.key}).propose(9)


def test_an_unknown_tuner_names_those_there_are(space: Space):
    with pytest.raises(LookupFailed, match="'genetics' is not known; choose one of random, grid"):
        make_tuner("genetics", space, 0, "task")

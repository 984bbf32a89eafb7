"""Thinned spaces are grids inside their space; recorded ones hold what was measured and no more."""

import numpy as np
import pytest

from retune.core.errors import RecordError
from retune.core.target import GENERIC_CPU
from retune.ir.stmt import from_dag
from retune.schedule.cpu import cpu_space
from retune.schedule.space import Space
from retune.search.recorded import recorded_space, thin
from tests.dags import conv2d

SPACE = cpu_space(from_dag(conv2d(1, 17, 19, 24, 32)), GENERIC_CPU)
GRID = thin(SPACE, 200, GENERIC_CPU, np.random.default_rng(0))


def _decided(space: Space) -> dict[str, list[dict[str, tuple[int, ...]]]]:
    return {s.name: [s.decided(row) for row in s.all_rows()] for s in space.sketches}


def test_a_grid_is_as_large_as_wanted_and_inside_its_space():
    assert 200 <= len(GRID.everyone()) < 1000
    for name, decided in _decided(GRID).items():
        sketch = SPACE.sketch(name)
        assert sketch.valid(np.stack([sketch.row(values) for values in decided])).all()


def test_a_grid_is_the_same_for_the_same_seed():
    again = thin(SPACE, 200, GENERIC_CPU, np.random.default_rng(0))
    other = thin(SPACE, 200, GENERIC_CPU, np.random.default_rng(1))
    assert _decided(again) == _decided(GRID) != _decided(other)


def test_a_grid_of_more_than_there_is_is_everything():
    small = cpu_space(from_dag(conv2d(1, 3, 3, 2, 8)), GENERIC_CPU)
    whole = thin(small, 10**6, GENERIC_CPU, np.random.default_rng(0))
    assert len(whole.everyone()) == len(small.everyone())


def test_a_recorded_space_has_exactly_the_recorded_candidates():
    rng = np.random.default_rng(5)
    recorded = {
        name: [decided[i] for i in rng.choice(len(decided), 20, replace=False)]
        for name, decided in _decided(GRID).items()
    }
    space = recorded_space(SPACE, recorded)
    found = {name: sorted(map(str, d)) for name, d in _decided(space).items()}
    assert found == {name: sorted(map(str, d)) for name, d in recorded.items()}
    drawn = space.sample(50, rng)
    changed = space.crossover(space.mutate(drawn, rng), drawn, rng)
    assert len(drawn) == 50 and space.valid(changed).all()
    traces = {str(space.trace(space.candidate(drawn, i)).decisions) for i in range(50)}
    assert len(traces) > 10


def test_records_of_another_space_are_refused():
    (name, decided), *_ = _decided(GRID).items()
    with pytest.raises(RecordError, match="record them again"):
        recorded_space(SPACE, {"no such sketch": decided})
    with pytest.raises(RecordError, match="record them again"):
        recorded_space(SPACE, {name: [{d: (999,) * len(v) for d, v in decided[0].items()}]})

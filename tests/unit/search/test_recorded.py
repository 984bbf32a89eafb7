"""Thinned spaces are grids inside their space; recorded ones hold what was measured and no more."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.recorded import recorded_grid, thin
from retune.core.errors import RecordError
from retune.core.target import GENERIC_CPU
from retune.ir.stmt import from_dag
from retune.schedule.space import Sketch, Space
from retune.schedule.trace import Trace, TraceStep
from retune.search.model.features import featurise
from retune.search.recorded import Recorded
from retune.search.tuners.breeding import crossover, mutate
from retune.targets.cpu.space import cpu_space
from tests.support.dags import conv2d

PROGRAM = from_dag(conv2d(1, 17, 19, 24, 32))
SPACE = cpu_space(PROGRAM, GENERIC_CPU)
GRID = thin(SPACE, 200, GENERIC_CPU, np.random.default_rng(0))


def _decided(space: Space) -> dict[str, list[dict[str, tuple[int, ...]]]]:
    return {s.name: [s.decided(row) for row in s.all_rows()] for s in space.sketches}


def _recorded(sketch: Sketch, rows: np.ndarray, time_us: np.ndarray) -> Recorded:
    flat = [[v for values in sketch.decided(row).values() for v in values] for row in rows]
    trace = Trace.from_json(sketch.trace.to_json())
    return Recorded("layer", sketch.name, trace, np.array(flat, np.int64), time_us)


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


def test_large_sketches_give_what_small_ones_lack():
    one = SPACE.sketches[0]
    (small,) = thin(Space((one,)), 10, GENERIC_CPU, np.random.default_rng(0)).sketches
    both = Space((small.renamed("small"), one))
    grid = thin(both, 300, GENERIC_CPU, np.random.default_rng(0))
    assert len(grid.sketches[0].all_rows()) < 150
    assert len(grid.everyone()) >= 300


def test_a_recorded_grid_has_exactly_the_recorded_candidates_and_their_times():
    rng = np.random.default_rng(5)
    parts: list[Recorded] = []
    for sketch in GRID.sketches:
        rows = sketch.all_rows()
        rows = rows[rng.choice(len(rows), 20, replace=False)]
        parts.append(_recorded(sketch, rows, rng.random(20)))
    grid = recorded_grid(PROGRAM, parts)
    space = grid.space
    for part in parts:
        found = _decided(space)[part.sketch]
        flat = [[v for values in decided.values() for v in values] for decided in found]
        assert sorted(flat) == sorted(part.decisions.tolist())
        times = dict(zip(map(tuple, part.decisions.tolist()), part.time_us, strict=True))
        (number,) = (i for i, s in enumerate(space.sketches) if s.name == part.sketch)
        mine = grid.candidates.take(grid.candidates.sketch == number)
        assert [times[tuple(row)] for row in flat] == grid.times(mine).tolist()
    drawn = space.sample(50, rng)
    changed = crossover(space, mutate(space, drawn, rng), drawn, rng)
    assert len(drawn) == 50 and space.valid(changed).all()


def test_a_recorded_sketch_is_the_one_that_the_rules_made():
    sketch = GRID.sketches[0]
    rows = sketch.all_rows()[:40]
    grid = recorded_grid(PROGRAM, [_recorded(sketch, rows, np.ones(len(rows)))])
    (rebuilt,) = grid.space.sketches
    assert rebuilt.program == sketch.program and rebuilt.trace == sketch.trace
    chosen = grid.space.candidate(grid.candidates, 3)
    assert grid.space.instantiate(chosen) == GRID.instantiate(chosen)
    theirs = GRID.locate([chosen])
    ours = featurise(grid.space, grid.candidates.take(np.array([3])), GENERIC_CPU)
    assert np.array_equal(ours, featurise(GRID, theirs, GENERIC_CPU))


def test_a_trace_that_does_not_replay_is_refused():
    sketch = GRID.sketches[0]
    part = _recorded(sketch, sketch.all_rows()[:1], np.ones(1))
    wrong = TraceStep("unroll", (("loop", "no such loop"), ("count", None)))
    with pytest.raises(RecordError, match="record it again"):
        recorded_grid(PROGRAM, [replace(part, trace=part.trace.with_step(wrong))])

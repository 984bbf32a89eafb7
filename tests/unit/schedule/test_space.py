"""Populations of candidates are arrays; each row is one valid program."""

import subprocess
import sys

import numpy as np
import pytest

from retune.core.errors import ScheduleError
from retune.core.target import GENERIC_CPU
from retune.ir.expr import variables
from retune.ir.stmt import For, from_dag
from retune.schedule.replay import replay
from retune.schedule.schedule import Schedule
from retune.schedule.space import Candidate, Family, Space, sketch_of, sketches_of
from retune.schedule.stages import loops_of
from retune.targets.cost.estimate import default_candidate, estimate
from retune.targets.cpu.space import cpu_space
from retune.targets.spaces import strategy
from tests.support.dags import conv2d, dense
from tests.support.oracle import assert_same_meaning
from tests.support.statements import walk


def _space() -> Space:
    return cpu_space(from_dag(conv2d(1, 9, 9, 6, 24)), GENERIC_CPU)


def _two_tiles(s: Schedule) -> None:
    outer = s.sample_perfect_tile("z.i", 2)
    inner = s.sample_tile("z.j", 2, 8)
    s.split("z.i", outer)
    s.split("z.j", inner, "shift")
    s.require(outer[0] * inner[0] <= 12, "too large")


SKETCH = sketch_of(from_dag(dense(12, 3, 10)), _two_tiles)


def test_a_family_is_made_when_someone_asks_for_its_sketches():
    asked: list[str] = []

    def make():
        asked.append("less exact")
        return (SKETCH.renamed("less exact"),)

    space = Space((SKETCH, Family(make, error=1e-5, roundings=9.0)))
    assert space.within(4.0).sketches == (SKETCH,) and space.sketch(SKETCH.name) is SKETCH
    assert not asked
    (_, made) = space.sketches
    assert (made.name, made.error, made.roundings) == ("less exact", 1e-5, 9.0)
    assert space.sketch("less exact") is made and len(asked) == 1


def test_rows_and_numbers_are_inverse():
    numbers = np.arange(SKETCH.size)
    assert np.array_equal(SKETCH.numbers_of(SKETCH.rows_of(numbers)), numbers)


def test_all_rows_are_the_valid_ones():
    rows = SKETCH.all_rows()
    assert SKETCH.valid(rows).all()
    assert 0 < len(rows) < SKETCH.size
    tiles = [SKETCH.decided(row) for row in rows]
    assert all(t["tile.z.i"][0] * t["tile.z.j"][0] <= 12 for t in tiles)


def test_samples_are_valid_and_repeatable():
    rows = SKETCH.sample(50, np.random.default_rng(3))
    assert len(rows) == 50 and SKETCH.valid(rows).all()
    assert np.array_equal(rows, SKETCH.sample(50, np.random.default_rng(3)))


def test_a_sample_finds_what_random_draws_miss():
    def rare(s: Schedule) -> None:
        first, second = (s.sample_tile(loop, 2, 100)[0] for loop in ("z.i", "z.j"))
        s.require(first + second >= 200, "too small")

    sketch = sketch_of(from_dag(dense(100, 3, 100)), rare)
    assert not sketch.empty
    (only,) = sketch.sample(5, np.random.default_rng(0))
    assert sketch.decided(only) == {"tile.z.i": (100,), "tile.z.j": (100,)}


def test_rows_from_decisions():
    for row in SKETCH.all_rows()[:7]:
        assert np.array_equal(SKETCH.row(SKETCH.decided(row)), row)


@pytest.mark.parametrize(
    ("decided", "message"),
    [
        ({"tile.z.i": (3,)}, "no value for decision 'tile.z.j'"),
        ({"tile.z.i": (5,), "tile.z.j": (1,)}, r"\(5,\) is not an option of 'tile.z.i'"),
        ({"tile.z.i": (3, 4), "tile.z.j": (1,)}, "tile.z.i takes 1"),
    ],
)
def test_rows_of_what_is_no_option(decided: dict[str, tuple[int, ...]], message: str):
    with pytest.raises(ScheduleError, match=message):
        SKETCH.row(decided)


def test_a_space_samples_every_sketch():
    space = _space()
    found = space.sample(80, np.random.default_rng(0))
    assert set(found.sketch.tolist()) == set(range(len(space.sketches)))
    assert space.valid(found).all()


def test_candidates_are_named_by_their_values():
    space = _space()
    population = space.sample(20, np.random.default_rng(4))
    for index in range(len(population)):
        candidate = space.candidate(population, index)
        sketch = space.sketch(candidate.sketch)
        row = population.rows[index, : len(sketch.decisions)]
        assert str(space.instantiate(candidate)) == str(sketch.instantiate(row))


@pytest.mark.process
def test_keys_of_candidates_do_not_depend_on_order_or_process():
    one = Candidate("s", (("a", (1, 2)), ("b", (3,))))
    other = Candidate("s", (("b", (3,)), ("a", (1, 2))))
    assert one.key == other.key != Candidate("s", (("a", (1, 2)), ("b", (4,)))).key
    code = (
        "from retune.schedule.space import Candidate;"
        "print(Candidate('s', (('a', (1, 2)), ('b', (3,)))).key)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "7", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == one.key


def test_the_trace_of_a_candidate_makes_its_program():
    dag = conv2d(1, 9, 9, 6, 24)
    space = _space()
    population = space.sample(6, np.random.default_rng(5))
    for index in range(len(population)):
        candidate = space.candidate(population, index)
        again = replay(from_dag(dag), space.trace(candidate))
        assert_same_meaning(dag, again.program)
        loops = [(n.var, n.kind) for n in walk(again.program.body) if isinstance(n, For)]
        program = space.instantiate(candidate)
        assert loops == [(n.var, n.kind) for n in walk(program.body) if isinstance(n, For)]


def test_instances_have_no_symbols_left():
    space = _space()
    candidate = space.candidate(space.sample(1, np.random.default_rng(6)), 0)
    for node in walk(space.instantiate(candidate).body):
        if isinstance(node, For):
            assert not variables(node.extent)


def test_unknown_sketches_are_refused():
    with pytest.raises(ScheduleError, match=r"no sketch 'gpu'; there are \['cpu.v"):
        _space().sketch("gpu")


def test_the_default_candidate_is_always_the_same_and_among_the_best():
    space = _space()
    chosen = default_candidate(space, GENERIC_CPU)
    assert chosen == default_candidate(_space(), GENERIC_CPU)
    sketch = space.sketch(chosen.sketch)
    own = estimate(sketch, sketch.row(dict(chosen.decisions)).reshape(1, -1), GENERIC_CPU)[0]
    everyone = estimate(sketch, sketch.sample(200, np.random.default_rng(7)), GENERIC_CPU)
    assert own <= np.quantile(everyone, 0.05)


def somewhere(s: Schedule) -> None:
    s.split("z.j", s.sample_perfect_tile("z.j", 2))
    s.sample_compute_location("y")
    s.unroll(s.loops("z")[-1])


def test_a_sketch_for_each_location():
    dag = dense(4, 3, 8)
    sketches = sketches_of(from_dag(dag), somewhere)
    assert [s.name for s in sketches] == [f"user.at.y={i}" for i in range(4)]
    space = Space(tuple(sketches))
    for number, sketch in enumerate(sketches):
        assert [d.name for d in sketch.decisions] == ["tile.z.j"]
        candidate = space.candidate(space.population(number, sketch.all_rows()[:1]), 0)
        program = space.instantiate(candidate)
        assert_same_meaning(dag, program)
        again = replay(from_dag(dag), space.trace(candidate))
        assert again.loops("y") == [n.var.name for n in loops_of(program, "y")]


def test_no_legal_location_is_an_error():
    def never(s: Schedule) -> None:
        s.sample_compute_location("y")
        s.split("z.i", [3])

    with pytest.raises(ScheduleError, match="3 does not divide 4"):
        sketches_of(from_dag(dense(4, 3, 8)), never)


@pytest.mark.parametrize(
    ("sketch", "found"),
    [
        ("cpu.v16.loops.pixels_slow.masked", "cpu.loops.pixels_slow.masked"),
        ("cpu.winograd4", "cpu.winograd4"),
        ("gpu.v4.local4.halo.1a2b3c4d", "gpu.local4.halo"),
        ("conv2d_nchwc.774b80c8", "template conv2d_nchwc"),
        ("tiled.order=1.774b80c8", "template tiled.order=1"),
    ],
)
def test_a_strategy_is_a_sketch_without_what_differs_between_tasks(sketch: str, found: str):
    assert strategy(sketch) == found

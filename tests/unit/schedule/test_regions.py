"""Copies of what a loop touches are whole, whichever way its indices run."""

import pytest

from retune.core.errors import ScheduleError
from retune.ir.evaluate import evaluate_int
from retune.ir.stmt import from_dag
from retune.ir.te import Dag, compute, placeholder
from retune.schedule.schedule import Schedule
from retune.schedule.space import sketch_of
from tests.support.oracle import assert_same_meaning


def mirrored(size: int, step: int) -> Dag:
    """`y[i] = x[(size - 1 - i)*step]`"""
    x = placeholder("x", ((size - 1) * step + 1,))
    return Dag((compute("y", (size,), lambda i: x[(size - 1 - i) * step], [x]),))


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1)])
@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("tail", ["exact", "shift"])
def test_a_copy_of_what_runs_backwards(order: tuple[int, ...], at: int, step: int, tail: str):
    def rule(s: Schedule) -> None:
        tiles = s.sample_perfect_tile("y.i", 3)
        loops = s.split("y.i", tiles) if tail == "exact" else s.split("y.i", tiles, "shift")
        loops = [loops[n] for n in order]
        s.reorder(*loops)
        s.cache_read("x", loops[at], "private")

    dag = mirrored(12, step)
    sketch = sketch_of(from_dag(dag), rule)
    for row in sketch.all_rows():
        assert_same_meaning(dag, sketch.instantiate(row))


def test_a_stage_that_is_read_backwards_is_computed_where_it_is_read():
    x = placeholder("x", (4, 12))
    a = compute("a", (4, 12), lambda i, j: x[i, j] * 2.0, [x])
    dag = Dag((compute("y", (4, 12), lambda i, j: a[i, 11 - j], [a]),))

    def rule(s: Schedule) -> None:
        outer, _ = s.split("y.j", s.sample_perfect_tile("y.j", 2))
        s.compute_at("a", outer)

    sketch = sketch_of(from_dag(dag), rule)
    for row in sketch.all_rows():
        program = sketch.instantiate(row)
        assert_same_meaning(dag, program)
        (tile,) = program.scratch
        assert [evaluate_int(e) for e in tile.shape] == [1, *sketch.decided(row)["tile.y.j"]]


def test_a_step_of_unknown_direction_is_refused():
    x = placeholder("x", (25,))
    dag = Dag((compute("y", (5, 5), lambda i, j: x[i * j - 2 * j + 8], [x]),))
    with pytest.raises(ScheduleError, match=r"index .* may run either way in y\.j"):
        Schedule(from_dag(dag)).cache_read("x", "y.i", "private")

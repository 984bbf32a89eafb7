"""Tilings: what a nest by levels says, and what cannot be said."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune.core.errors import ScheduleError
from retune.ir.stmt import from_dag
from retune.schedule.schedule import Schedule
from retune.schedule.space import sketch_of
from retune.targets.tiling import BLOCK, CPU, GROUP, LANE, REGISTER, Level, TiledAxis, Tiling
from tests.support.dags import elementwise
from tests.support.oracle import assert_same_meaning
from tests.support.properties import quick

LEVELS = (GROUP, REGISTER)
ROW, CHANNEL = TiledAxis("y.i0", 4), TiledAxis("y.i1", 2)


def test_a_tiling_uses_the_levels_of_its_class_in_their_order():
    axis = TiledAxis("x", 4, 4)
    for nest in ({GROUP: [axis], LANE: [axis]}, {REGISTER: [axis], GROUP: [axis]}):
        with pytest.raises(ScheduleError, match="levels are group, register"):
            Tiling(LEVELS, nest, [axis])


def test_lanes_are_of_one_axis():
    with pytest.raises(ScheduleError, match="lanes of one axis, got 2"):
        Tiling(CPU, {LANE: [ROW, CHANNEL]}, [ROW, CHANNEL])


def test_an_axis_with_a_unit_has_a_level_for_it():
    with pytest.raises(ScheduleError, match=r"y\.i0: a unit of 1 on lane"):
        Tiling(CPU, {GROUP: [ROW], LANE: [ROW]}, [ROW])
    with pytest.raises(ScheduleError, match=r"y\.i0: a unit of 4 on no level"):
        Tiling(CPU, {GROUP: [TiledAxis("y.i0", 4, 4)]}, [TiledAxis("y.i0", 4, 4)])


def test_an_axis_has_a_level():
    with pytest.raises(ScheduleError, match=r"without a level for y\.i1"):
        Tiling(CPU, {GROUP: [ROW]}, [ROW, CHANNEL])


@quick(40)
@given(st.permutations(["row", "column"]), st.booleans(), st.integers(0, 99))
def test_a_nest_stands_as_it_is_written(first: list[str], wide: bool, seed: int):
    dag = elementwise(13, 22)

    def rule(s: Schedule) -> None:
        name = s.blocks()[-1]
        units = (1, 4 if wide else 1)
        row, column = (TiledAxis(n, 5, unit) for n, unit in zip(s.loops(name), units, strict=True))
        axes = {"row": row, "column": column}
        nest: dict[Level, list[TiledAxis]] = {
            GROUP: [row, column], BLOCK: [axes[role] for role in first], REGISTER: [column],
        }  # fmt: skip
        if wide:
            nest[LANE] = [column]
        tile = Tiling(CPU, nest, [row, column]).apply(s)
        assert s.loops(name) == [loop for level in nest for loop in tile[level]]
        tile.run(REGISTER, LANE)
        kinds = [s.loop(n).kind for n in (*tile[REGISTER], *tile[LANE])]
        assert kinds == ["unroll", "vectorize"][: 1 + wide]

    sketch = sketch_of(from_dag(dag), rule)
    for chosen in sketch.sample(2, np.random.default_rng(seed)):
        assert_same_meaning(dag, sketch.instantiate(chosen))

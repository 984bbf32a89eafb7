"""Curves are read from the store as they are in it; hopes for more search follow from them."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune.core.results import TaskEntry
from retune.nightly.curves import (
    DECAY,
    REACH,
    Curve,
    TaskRates,
    estimated_us,
    gain,
    outlook_of,
    rates_of,
    read_curves,
)
from retune.records.schema import TuningRecord
from retune.records.store import RecordStore
from tests.support.curves import CONDITIONS, entry, trial
from tests.support.properties import quick

ELSEWHERE = replace(CONDITIONS, constants="memory")


def curve_of(root: Path, records: list[TuningRecord], *tasks: TaskEntry) -> Curve:
    store = RecordStore(root)
    if records:
        store.append(records)
    return read_curves(store, [(tasks, CONDITIONS)])[0]


def test_a_curve_has_the_best_of_all_trials_and_of_their_first_half(tmp_path: Path):
    times = [8.0, None, 6.0, 9.0, 3.0, 4.0]
    records = [trial("a", number, time) for number, time in enumerate(times)]
    curve = curve_of(tmp_path, records, entry("a", weight=3, flops=500))
    assert (curve.weight.tolist(), curve.flops.tolist()) == ([3], [500])
    assert (curve.trials.tolist(), curve.best_us.tolist()) == ([6], [3.0])
    assert curve.half_us.tolist() == [6.0]
    assert curve.seconds == pytest.approx(3.0)


def test_tasks_without_a_right_trial_have_no_best(tmp_path: Path):
    records = [trial("a", 0, None), trial("b", 1, 5.0)]
    curve = curve_of(tmp_path, records, entry("c"), entry("b"), entry("a"))
    assert curve.trials.tolist() == [1, 1, 0]  # in the order of their keys
    assert np.isnan(curve.best_us).tolist() == [True, False, True]


def test_what_does_not_compare_does_not_count(tmp_path: Path):
    records = [
        trial("a", 0, 9.0),
        trial("a", 1, 1.0, conditions=ELSEWHERE),
        trial("a", 2, 2.0, phase="final"),
        trial("other", 3, 3.0),
        trial("rows", 4, 4.0),
    ]
    RecordStore(tmp_path).append([trial("a", 5, 0.5, device="gpu", conditions=None)])
    curve = curve_of(tmp_path, records, entry("a"), entry("rows", tunable=False))
    assert (curve.trials.tolist(), curve.best_us.tolist()) == ([1], [9.0])


def test_records_of_before_conditions_were_kept_count(tmp_path: Path):
    curve = curve_of(tmp_path, [trial("a", 0, 9.0, conditions=None)], entry("a"))
    assert curve.best_us.tolist() == [9.0]


def test_networks_share_what_was_measured_of_a_task(tmp_path: Path):
    RecordStore(tmp_path).append([trial("shared", n, 9.0 - n) for n in range(4)])
    wanted = [((entry("shared"),), CONDITIONS), ((entry("shared"), entry("own")), CONDITIONS)]
    one, two = read_curves(RecordStore(tmp_path), wanted)
    assert one.best_us.tolist() == [6.0]
    assert two.trials.tolist() == [0, 4]


def test_costs_are_free_of_the_machine_s_drift(tmp_path: Path):
    slow = trial("a", 1, 1100.0)
    drifted = replace(slow.measurement, reference_us=1100.0, calm_us=1000.0)
    curve = curve_of(tmp_path, [replace(slow, measurement=drifted)], entry("a"))
    assert curve.best_us.tolist() == pytest.approx([1000.0])


def test_an_empty_store_and_an_empty_network_have_empty_curves(tmp_path: Path):
    curve = curve_of(tmp_path, [], entry("a"))
    assert (curve.trials.tolist(), curve.seconds) == ([0], 0.0)
    nothing = curve_of(tmp_path, [trial("a", 0, 1.0)], entry("b", tunable=False))
    assert outlook_of(nothing, TaskRates()).left == 0.0
    assert gain(outlook_of(nothing, TaskRates()), 60) == 0.0


@quick(25)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.one_of(st.none(), st.integers(1, 99))), max_size=40
    )
)
def test_it_says_what_a_plain_loop_says(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, int | None]]
):
    records = [trial(key, n, time and float(time)) for n, (key, time) in enumerate(rows)]
    curve = curve_of(tmp_path_factory.mktemp("store"), records, *map(entry, "abc"))
    for place, key in enumerate("abc"):
        times = [time for name, time in rows if name == key]
        assert curve.trials[place] == len(times)
        for found, part in ((curve.best_us, times), (curve.half_us, _first_half(times))):
            right = [time for time in part if time is not None]
            assert found[place] == min(right) if right else math.isnan(found[place])


def _first_half(times: list[int | None]) -> list[int | None]:
    return times[: max(1, len(times) // 2)]


def curve(trials: int, best: float = 100.0, half: float = 100.0, tasks: int = 1) -> Curve:
    return Curve(
        weight=np.ones(tasks),
        flops=np.full(tasks, 1e6),
        trials=np.full(tasks, trials),
        best_us=np.full(tasks, best if trials else np.nan),
        half_us=np.full(tasks, half if trials else np.nan),
        seconds=0.5 * trials * tasks,
    )


def test_a_network_that_was_never_tuned_hopes_for_the_most():
    fresh = outlook_of(curve(0), TaskRates())
    assert (fresh.left, fresh.trials) == (REACH, 1.0)
    for trials in (1, 4, 30):
        assert gain(outlook_of(curve(trials), TaskRates()), 5) <= gain(fresh, 5)


def test_a_network_that_keeps_gaining_hopes_for_more_than_one_that_does_not():
    gaining, resting = curve(64, best=100, half=120), curve(64)
    assert gain(outlook_of(gaining, TaskRates()), 5) > 2 * gain(outlook_of(resting, TaskRates()), 5)


def test_a_network_that_has_not_gained_for_long_hopes_for_little_and_never_for_nothing():
    rested = gain(outlook_of(curve(1000), TaskRates()), 5)
    assert 0 < rested < 0.001


def test_gains_as_the_law_has_them_are_continued_by_it():
    """A curve that follows the law exactly: expectation and last doubling say the same."""
    costs = [100 * math.exp(REACH * n**-DECAY) for n in (8, 16, 32)]
    outlook = outlook_of(curve(16, best=costs[1], half=costs[0]), TaskRates())
    assert outlook.trials == pytest.approx(16)
    minutes = 16 / outlook.trials_per_minute
    assert gain(outlook, minutes) == pytest.approx(1 - costs[2] / costs[1])


def test_a_minute_brings_fewer_trials_to_each_of_many_tasks():
    few, many = (outlook_of(curve(10, tasks=n), TaskRates()) for n in (2, 20))
    assert few.trials_per_minute == pytest.approx(60 / 0.5 / 2)
    assert many.trials_per_minute == pytest.approx(60 / 0.5 / 20)


def test_what_is_not_known_of_a_device_is_taken_from_its_other_networks():
    known = replace(curve(10), flops=np.array([3e6]))
    rates = rates_of([known, curve(0)])
    assert (rates.flops_per_us, rates.trial_s) == (3e4, 0.5)
    assert estimated_us(curve(0, tasks=2), rates) == pytest.approx(2 * 1e6 / 3e4)
    assert rates_of([curve(0)]) == TaskRates()

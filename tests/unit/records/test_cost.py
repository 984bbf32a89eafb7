"""A cost follows from a row alone, and slow moments are not made up for beyond reason."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retune.records.cost import (
    NOMINAL_US,
    drift,
    measured_costs,
    quiet_level,
    recorded_costs,
    standard_errors,
)
from retune.records.schema import Measurement, failed, succeeded
from retune.records.store import RecordStore
from tests.support.store import record


def taken(time_us: float, reference_us: float | None, calm_us: float | None = None) -> Measurement:
    return succeeded(
        [time_us],
        max_abs_err=0.0,
        reference_us=reference_us,
        calm_us=calm_us,
        build_s=0.0,
        run_s=0.0,
    )


def test_the_calm_level_is_that_of_most_moments_and_not_of_the_luckiest_or_slowest():
    usual = np.full(90, 100.0)
    level = quiet_level(np.concatenate([[50.0] * 5, usual, [300.0] * 5]))
    assert level == 100.0


def test_the_calm_level_needs_a_time():
    assert np.isnan(quiet_level(np.array([]))) and np.isnan(quiet_level(np.array([np.nan])))
    assert quiet_level(np.array([np.nan, 100.0])) == 100.0


def test_a_cost_is_the_time_at_the_nominal_pace():
    times, costs = measured_costs([taken(30.0, 2 * NOMINAL_US), taken(30.0, None)])
    assert times.tolist() == [30.0, 30.0]
    assert costs.tolist() == [15.0, 30.0]


def test_machines_and_days_of_different_pace_compare():
    slow_day, fast_day = taken(20.0, 200.0, 200.0), taken(10.0, 100.0, 100.0)
    costs = measured_costs([slow_day, fast_day])[1]
    assert costs[0] == pytest.approx(costs[1])


def test_a_slow_moment_is_made_up_for_by_little_more_than_the_calm_level():
    quiet, slow = taken(100.0, 100.0, 100.0), taken(126.0, 166.0, 100.0)
    costs = measured_costs([quiet, slow])[1]
    assert costs[1] / costs[0] == pytest.approx(1.26 / 1.15)


def test_a_failure_has_no_cost():
    assert np.isnan(measured_costs([failed("crash", "died")])[1]).all()


def test_pace_is_time_over_cost():
    reference, quiet = np.array([100.0, 166.0, np.nan]), np.array([np.nan, 100.0, 100.0])
    assert drift(reference, quiet) == pytest.approx([0.1, 0.115, 1.0])


def test_the_error_of_a_median_follows_from_its_repeats():
    """By a simulation: medians of five repeats that vary by a tenth."""
    repeats = np.random.default_rng(0).normal(100.0, 10.0, (4000, 5))
    spread = np.median(repeats, axis=1).std() / 100.0
    assert standard_errors(repeats.tolist()).mean() == pytest.approx(spread, rel=0.1)
    assert np.isnan(standard_errors([(), None, (3.0,)])).all()
    assert standard_errors([(2.0, 2.0)]).tolist() == [0.0]


def test_the_store_gives_back_the_costs_that_a_run_saw(tmp_path: Path):
    """Columns are of less precision than what a runner measures."""
    some = [
        replace(taken(1 / 3 + n, 701.1 / (1 + n / 7), 690.7 / 3), run_times_us=(1 / 3, 1 / 7 + n))
        for n in range(5)
    ]
    store = RecordStore(tmp_path)
    store.append([record(n, measurement=m, trial=n) for n, m in enumerate(some)])
    rows = store.scan().sort_values("trial")
    assert recorded_costs(rows)[1].tolist() == measured_costs(some)[1].tolist()
    seen = standard_errors(each.run_times_us for each in some)
    assert standard_errors(rows["run_times_us"]).tolist() == seen.tolist()


def test_records_without_a_calm_level_have_that_of_their_run(tmp_path: Path):
    def old(number: int, run: str, reference_us: float):
        measured = replace(taken(100.0, reference_us), calm_us=None)
        return record(number, run_id=run, trial=number, measurement=measured)

    store = RecordStore(tmp_path)
    store.append([*(old(n, "one", 100.0) for n in range(8)), old(8, "one", 166.0)])
    store.append([old(9, "slow hour", 200.0)])
    costs = recorded_costs(store.scan().sort_values("trial"))[1]
    assert costs / costs[0] == pytest.approx([*[1.0] * 8, 1 / 1.15, 0.5])

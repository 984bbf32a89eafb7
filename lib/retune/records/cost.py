"""The cost of a candidate: its drift-corrected time, which search, model and ranking share.

A machine's speed drifts, and the calibration kernel, timed beside each candidate, shows it. A
candidate's cost is its drift-corrected time: what it takes while that kernel takes NOMINAL_US, in
microseconds that compare over runs and days. Of 3,800 candidates measured twice, with twenty
minutes in between, the spread of a time was 0.11 of it before the correction and 0.07 after.

In slow moments it corrects too much: the calibration kernel only computes, and what waits for
memory slows down less than it does (seen: 1.66 against 1.26 times). The few slow moments of a long
run would then hold its seeming best, so a moment counts as slower than the quiet machine
(`calm_us` of the record, as it was known then) by a factor of MOST_DRIFT at most. The cost follows
from the row alone: a continued or a replayed run sees the costs that the run saw.

What people are shown is `median_us`, the time as it was.
"""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from retune.records.schema import Measurement

if TYPE_CHECKING:
    from retune.records import Table

NOMINAL_US = 1000.0
"""Time of the calibration kernel that costs are stated for; on most devices it is near, so that a
cost is near the time."""
_QUIET = 0.25
"""Quantile of the calibration kernel's times that stands for a quiet machine. Not a lower one: they
vary without disturbance too (one machine: 638 us for the fastest fiftieth, 722 in the middle, 830
for all but 3 %)."""
MOST_DRIFT = 1.15
"""Times that on the quiet machine which the calibration kernel takes: more is not corrected for."""
_MEDIAN = math.sqrt(math.pi / 2)
"""Standard error of a median over that of the mean, where repeats vary as a normal distribution."""

COST_COLUMNS = ("run_id", "status", "median_us", "reference_us", "calm_us")
"""What `recorded_costs` reads of each record."""


def quiet_level(reference_us: np.ndarray) -> float:
    """The calibration kernel's time on the quiet machine, by these of its times; NaN is left out.

    NaN where no time is known.
    """
    known = reference_us[np.isfinite(reference_us)]
    return float(np.quantile(known, _QUIET)) if len(known) else np.nan


def drift(reference_us: np.ndarray, calm_us: np.ndarray) -> np.ndarray:
    """Time over cost at moments with these times of the calibration kernel. float64 [n]

    1 where that kernel was not timed; all drift is corrected for where its time on the quiet
    machine is unknown. Both are taken in the precision of the store.
    """
    reference = np.asarray(reference_us, np.float32).astype(np.float64)
    quiet = np.asarray(calm_us, np.float32).astype(np.float64)
    counted = np.fmin(reference, MOST_DRIFT * np.where(quiet > 0, quiet, np.nan))
    return np.where(reference > 0, counted / NOMINAL_US, 1.0)


def standard_errors(repeats: Iterable[Sequence[float] | None]) -> np.ndarray:
    """Standard error of the median of each measurement's repeats, relative to it. float64 [n]

    NaN where fewer than two repeats say nothing of it. Repeats are taken in the precision of the
    store.
    """
    several = (np.asarray(() if each is None else each, np.float32) for each in repeats)
    return np.array([_standard_error(each) if len(each) > 1 else np.nan for each in several], float)


def _standard_error(repeats: np.ndarray) -> float:
    repeats = repeats.astype(np.float64)
    return float(_MEDIAN * repeats.std(ddof=1) / np.sqrt(len(repeats)) / np.median(repeats))


def measured_costs(measurements: Sequence[Measurement]) -> tuple[np.ndarray, np.ndarray]:
    """Times in microseconds and costs, NaN for a failure. float64 [n] each"""
    times = np.array([m.median_us if m.ok else None for m in measurements], float)
    reference = np.array([m.reference_us for m in measurements], np.float32)
    quiet = np.array([m.calm_us for m in measurements], np.float32)
    return times, times / drift(reference, quiet)


def recorded_costs(rows: "Table") -> tuple[np.ndarray, np.ndarray]:
    """Times and costs of records, by COST_COLUMNS. float64 [n] each

    Records of early versions have no quiet time: that of their run's rows among `rows` serves.
    """
    right = (rows["status"] == "ok").to_numpy(bool)
    times = np.where(right, rows["median_us"].to_numpy(float, na_value=np.nan), np.nan)
    reference = rows["reference_us"].to_numpy(np.float32, na_value=np.nan)
    quiet = np.array(rows["calm_us"].to_numpy(np.float32, na_value=np.nan))
    lacking = np.isnan(quiet) & (reference > 0)
    if lacking.any():
        runs = np.unique(rows["run_id"].to_numpy(str), return_inverse=True)[1]
        for run in np.unique(runs[lacking]):
            mine = runs == run
            quiet[lacking & mine] = quiet_level(reference[mine])
    return times, times / drift(reference, quiet)

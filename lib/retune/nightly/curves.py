"""Tuning curves of a network from the record store, and the gain that more nights may bring.

Read `read_curves`, `outlook_of` and `gain`.

The model: the best cost of a task after n trials lies above what endless search would find by a
factor whose logarithm falls as a power of n, REACH * n ** -DECAY. So every doubling of the trials
brings less than the one before, and the first ones bring most. Of 13 runs of ten networks (1 to 5
minutes each, on two cores) doublings at 1, 2, 4, 8, 16 and 32 trials of a task brought 12, 13, 5,
3, 1.5 and 1.6 % of the network's time, which these two numbers follow.

Networks differ, so the law only holds on average: half of the expectation is the network's own last
doubling (what the second half of each task's trials brought), extrapolated by the same law. In 39
predictions of a doubling's gain on those runs, 0.049 on average (logarithms all), that was
off by 0.073 (root mean square) and too high by 0.004. The law alone was off by 0.082 and too high
by 0.021, the last doubling alone by 0.071 and too low by 0.014, and the average by 0.094. The
last doubling alone would also never look again at a network that had no luck once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from retune.core.results import TaskEntry
from retune.records.conditions import Conditions
from retune.records.cost import COST_COLUMNS, recorded_costs
from retune.records.schema import BESIDE_SEARCH
from retune.records.store import RecordStore

REACH = 0.5
"""Logarithm of the time of default schedules over that of endless search, of the average task."""
DECAY = 0.7
_OWN = 0.5
"""Weight of a network's own last doubling beside the law."""

_USUAL_FLOPS_PER_US = 1e5
"""Of default schedules, where a device has no record yet: two cores with wide vectors."""
_USUAL_TRIAL_S = 0.25
"""What a trial takes, where a device has no record yet."""

Conditioned = tuple[Sequence[TaskEntry], Conditions]
"""A network's tasks, and the conditions under which they are timed on a device."""

_COLUMNS = (
    *COST_COLUMNS, "task_key", "device", "conditions", "phase", "timestamp", "build_s", "run_s",
)  # fmt: skip
_UNKNOWN = ""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Curve:
    """What was found for a network on a device so far, over all nights. Arrays: [tunable tasks]."""

    weight: np.ndarray
    """float64: how often the network runs the task."""
    flops: np.ndarray
    """float64"""
    trials: np.ndarray
    """int64: measurements, whichever network they were made for."""
    best_us: np.ndarray
    """float64: the least cost (`records.cost`); NaN where nothing was right."""
    half_us: np.ndarray
    """float64: the same after the first half of the trials."""
    seconds: float
    """Time that these measurements took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRates:
    """What is assumed of tasks without records on a device."""

    flops_per_us: float = _USUAL_FLOPS_PER_US
    trial_s: float = _USUAL_TRIAL_S


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOutlook:
    """What more measuring of a network may bring."""

    left: float
    """Logarithm of its time over what endless search would reach."""
    trials: float
    """Of each task so far, as the law counts them: 1 or more."""
    trials_per_minute: float
    """What a minute of measuring adds to them."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class _Measured:
    """Trials in the order in which they were taken; every array has a row for each."""

    tasks: np.ndarray
    devices: np.ndarray
    conditions: np.ndarray
    """_UNKNOWN of records of before they were kept."""
    costs: np.ndarray
    """Infinite for a failure."""
    seconds: np.ndarray


def read_curves(store: RecordStore, networks: Sequence[Conditioned]) -> list[Curve]:
    """The curve of each network by the records that compare with its conditions; one reading."""
    wanted = {task.key for tasks, _ in networks for task in tasks if task.tunable}
    devices = {conditions.device for _, conditions in networks}
    rows = store.scan({"task_key": sorted(wanted), "device": sorted(devices)}, list(_COLUMNS))
    searched = ~rows["phase"].isin(BESIDE_SEARCH).to_numpy(bool, na_value=False)
    searched &= (rows["status"] != "skipped").to_numpy(bool)
    rows = rows.loc[searched].sort_values(by="timestamp", kind="stable")
    costs = recorded_costs(rows)[1]
    measured = _Measured(
        tasks=np.array(rows["task_key"].tolist(), str),
        devices=np.array(rows["device"].tolist(), str),
        conditions=rows["conditions"].to_numpy(str, na_value=_UNKNOWN),
        costs=np.where(np.isfinite(costs), costs, np.inf),
        seconds=rows[["build_s", "run_s"]].to_numpy(np.float64, na_value=0.0).sum(axis=1),
    )
    return [_curve(measured, tasks, conditions) for tasks, conditions in networks]


def rates_of(curves: Sequence[Curve]) -> TaskRates:
    """What the curves of a device's networks say of a network that has none there yet.

    Speeds are those of the tasks' best candidates: what is estimated by them is rather too short.
    """
    speeds = [float(speed) for c in curves for speed in (c.flops / c.best_us) if speed > 0]
    trials = [c.seconds / int(c.trials.sum()) for c in curves if c.trials.any() and c.seconds > 0]
    return TaskRates(
        flops_per_us=median(speeds) if speeds else _USUAL_FLOPS_PER_US,
        trial_s=median(trials) if trials else _USUAL_TRIAL_S,
    )


def estimated_us(curve: Curve, rates: TaskRates) -> float:
    """Time of the network's tunable tasks as they stand, in microseconds.

    What no record tells follows from its operations.
    """
    return float(_shares(curve, rates).sum())


def outlook_of(curve: Curve, rates: TaskRates) -> NetworkOutlook:
    """What more measuring may bring, by the curve and the law. Nothing for no tunable task."""
    shares = _shares(curve, rates)
    if not shares.sum() > 0:
        return NetworkOutlook(left=0.0, trials=1.0, trials_per_minute=0.0)
    shares /= shares.sum()
    expected = float(shares @ (REACH * np.maximum(curve.trials, 1) ** -DECAY))
    count = int(curve.trials.sum())
    trial_s = curve.seconds / count if count and curve.seconds > 0 else rates.trial_s
    halved = (curve.trials >= 2) & np.isfinite(curve.half_us) & np.isfinite(curve.best_us)
    own = _OWN * float(shares[halved].sum())
    return NetworkOutlook(
        left=(1 - own) * expected + own * _seen(curve, halved),
        trials=(expected / REACH) ** (-1 / DECAY),
        trials_per_minute=60 / (trial_s * len(shares)),
    )


def gain(outlook: NetworkOutlook, minutes: float) -> float:
    """The part of its time that a network is expected to lose in so many minutes of measuring.

    0 at none, ever slower growing, less than 1.
    """
    grown = 1 + outlook.trials_per_minute * minutes / outlook.trials
    return -math.expm1(-outlook.left * (1 - grown**-DECAY))


def _curve(rows: "_Measured", tasks: Sequence[TaskEntry], conditions: Conditions) -> Curve:
    tunable = sorted((task for task in tasks if task.tunable), key=lambda task: task.key)
    keys = np.array([task.key for task in tunable], str)
    mine = np.isin(rows.tasks, keys) & (rows.devices == conditions.device)
    mine &= np.isin(rows.conditions, [conditions.key, _UNKNOWN])
    task, costs = np.searchsorted(keys, rows.tasks[mine]), rows.costs[mine]
    trials = np.bincount(task, minlength=len(keys))
    early = _number_in_task(task) < np.maximum(1, trials // 2)[task]
    return Curve(
        weight=np.array([task.weight for task in tunable], np.float64),
        flops=np.array([task.flops for task in tunable], np.float64),
        trials=trials,
        best_us=_least(task, costs, len(keys)),
        half_us=_least(task[early], costs[early], len(keys)),
        seconds=float(rows.seconds[mine].sum()),
    )


def _seen(curve: Curve, halved: np.ndarray) -> float:
    """What is left by the last doubling of the trials: it brought a fixed part of what was left."""
    weight = curve.weight[halved]
    now, before = weight @ curve.best_us[halved], weight @ curve.half_us[halved]
    doubled = 2**-DECAY
    return math.log(before / now) * doubled / (1 - doubled) if now > 0 else 0.0


def _shares(curve: Curve, rates: TaskRates) -> np.ndarray:
    """Microseconds of each task in one run of the network. float64 [tasks]"""
    guessed = curve.flops / rates.flops_per_us
    return curve.weight * np.where(np.isfinite(curve.best_us), curve.best_us, guessed)


def _number_in_task(task: np.ndarray) -> np.ndarray:
    """How many rows of the same task lie before each row. int64 [rows]"""
    order = np.argsort(task, kind="stable")
    ordered = task[order]
    first = np.searchsorted(ordered, ordered)
    numbers = np.empty(len(task), np.int64)
    numbers[order] = np.arange(len(task)) - first
    return numbers


def _least(task: np.ndarray, costs: np.ndarray, count: int) -> np.ndarray:
    """The least cost of each task; NaN where there is none. float64 [count]"""
    least = np.full(count, np.inf)
    np.minimum.at(least, task, costs)
    return np.where(np.isfinite(least), least, np.nan)

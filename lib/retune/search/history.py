"""Recorded candidates in terms of today's space."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np

from retune.core.errors import RecordError, ScheduleError
from retune.records.cost import COST_COLUMNS, recorded_costs, standard_errors
from retune.records.ranking import Where, top
from retune.records.schema import BESIDE_SEARCH, TuningRecord
from retune.records.store import RecordStore
from retune.schedule.space import Candidate, Candidates, Sketch, Space, join
from retune.schedule.trace import Trace

if TYPE_CHECKING:
    from retune.records import Table

_ALTERNATIVES = 5
"""Records that are tried in turn when the best one is not of today's space."""

HISTORY_COLUMNS = (
    *COST_COLUMNS, "run_times_us", "task_key", "sketch", "decisions", "config_hash", "trial",
    "phase", "timestamp",
)  # fmt: skip
"""What `history_of` and its callers need of each record."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class History:
    """Measurements of one task, in order, as far as today's space has the candidates."""

    candidates: Candidates
    times_us: np.ndarray
    """float64 [n]; NaN for a failure."""
    costs: np.ndarray
    """See `records.cost`. float64 [n]; NaN for a failure."""
    errors: np.ndarray
    """Relative standard errors of the times. float64 [n]; NaN where repeats do not say."""


def split_run(rows: "Table", run_id: str) -> "tuple[Table, Table]":
    """What the run knew when it began, and what it measured itself, both in order.

    What others measured meanwhile is in neither: a continued run proposes as if it had not been
    interrupted. A skipped candidate counts for the run that skipped it alone.
    """
    mine = (rows["run_id"] == run_id).to_numpy(bool)
    beside = rows["phase"].isin(BESIDE_SEARCH).to_numpy(bool, na_value=False)
    own = rows.loc[mine & ~beside].sort_values(by="trial")
    tried = ~mine & (rows["status"] != "skipped").to_numpy(bool)
    if (moment := began(own)) is not None:
        tried &= (rows["timestamp"] < moment).to_numpy(bool)
    return rows.loc[tried].sort_values(by="timestamp"), own


def began(own: "Table") -> datetime | None:
    """When a run began, by its rows: at its first trial. None if it has none.

    Not at its earliest row: the machine's clock may have been set back since.
    """
    if own.empty:
        return None
    beside = own["phase"].isin(BESIDE_SEARCH).to_numpy(bool, na_value=False)
    first = own.assign(beside=beside).sort_values(["beside", "trial"], kind="stable")
    return first["timestamp"].iloc[0]


def fastest_elsewhere(
    store: RecordStore, task_keys: Sequence[str], run_id: str, moment: datetime | None
) -> dict[str, list[TuningRecord]]:
    """The fastest right records of each task under any conditions, fastest first.

    Those that others had taken before the `moment`; None: until now. A continued run finds the
    same.
    """
    if not task_keys:
        return {}
    columns = [*COST_COLUMNS, "task_key", "config_hash", "record_id", "timestamp"]
    rows = store.scan({"task_key": list(task_keys), "status": "ok"}, columns)
    kept = (rows["run_id"] != run_id).to_numpy(bool)
    if moment is not None:
        kept &= (rows["timestamp"] < moment).to_numpy(bool)
    rows = rows.assign(cost=recorded_costs(rows)[1]).loc[kept].sort_values(by="cost")
    rows = rows.drop_duplicates(["task_key", "config_hash"]).groupby("task_key").head(_ALTERNATIVES)
    ids = dict(zip(rows["record_id"].tolist(), rows["task_key"].tolist(), strict=True))
    records = store.named(ids)
    found: dict[str, list[TuningRecord]] = {}
    for record_id, key in ids.items():
        found.setdefault(key, []).append(records[record_id])
    return found


def history_of(rows: "Table", space: Space) -> History:
    """The rows of one task (HISTORY_COLUMNS), in their order, as candidates of the space."""
    candidates, positions = located(
        space, rows["sketch"].tolist(), rows["decisions"].tolist(), rows["config_hash"].tolist()
    )
    times, costs = recorded_costs(rows)
    errors = standard_errors(rows["run_times_us"])
    return History(
        candidates=candidates,
        times_us=times[positions],
        costs=costs[positions],
        errors=errors[positions],
    )


def located(
    space: Space,
    sketches: Sequence[str],
    decisions: Sequence[Sequence[int]],
    keys: Sequence[str],
) -> tuple[Candidates, np.ndarray]:
    """Recorded candidates that the space still has, and their positions in the input. int64 [m]

    `decisions` are each candidate's values one after the other. A candidate counts only if its
    key is the recorded one: then decisions have the names and the meaning that they had.
    """
    parts = [space.population(0, np.zeros((0, 0), np.int64))]
    positions: list[int] = []
    for number, sketch in enumerate(space.sketches):
        mine = [i for i, name in enumerate(sketches) if name == sketch.name]
        if not mine:
            continue
        rows = _rows(sketch, [tuple(decisions[i]) for i in mine])
        found = [(i, row) for i, row in zip(mine, rows, strict=True) if row is not None]
        if not found:
            continue
        population = space.population(number, np.asarray([row for _, row in found], np.int64))
        same = [
            space.candidate(population, k).key == keys[i] for k, (i, _) in enumerate(found)
        ] & sketch.valid(population.rows[:, : len(sketch.decisions)])
        parts.append(population.take(same))
        positions += [i for (i, _), kept in zip(found, same, strict=True) if kept]
    order = np.argsort(np.asarray(positions, np.int64), kind="stable")
    return join(parts).take(order), np.asarray(positions, np.int64)[order]


def _rows(sketch: Sketch, decisions: Sequence[tuple[int, ...]]) -> list[list[int] | None]:
    """The option row of each flat list of values; None where some value is not an option."""
    options = [
        {tuple(int(v) for v in values): i for i, values in enumerate(decision.table)}
        for decision in sketch.decisions
    ]
    ends = np.cumsum([d.table.shape[1] for d in sketch.decisions]).tolist()
    starts = [0, *ends[:-1]]
    rows: list[list[int] | None] = []
    for values in decisions:
        row = [
            table.get(values[start:end])
            for table, start, end in zip(options, starts, ends, strict=False)
        ]
        fits = len(values) == (ends[-1] if ends else 0)
        rows.append([i for i in row if i is not None] if fits and None not in row else None)
    return rows


def candidate_of(record: TuningRecord, space: Space) -> Candidate | None:
    """The record's candidate, or None if today's space does not have it any more."""
    try:
        decided = Trace.from_json(record.trace).decisions
        sketch = space.sketch(record.sketch)
        row = sketch.row(dict(decided))
    except (ScheduleError, RecordError):
        return None
    ordered = tuple(sketch.decided(row).items())
    return Candidate(record.sketch, ordered)


def best_candidates(
    store: RecordStore, task_key: str, where: Where, space: Space, count: int = _ALTERNATIVES
) -> list[tuple[Candidate, TuningRecord]]:
    """Of the `count` fastest recorded candidates those that today's space still has.

    Each with its record, best first as in `ranking.top`: right ones of all runs.
    """
    sketches = [sketch.name for sketch in space.sketches]
    records = top(store, task_key, where, count, sketches)
    pairs = [(candidate_of(record, space), record) for record in records]
    return [(candidate, record) for candidate, record in pairs if candidate is not None]


def best_candidate(
    store: RecordStore, task_key: str, where: Where, space: Space
) -> tuple[Candidate, TuningRecord] | None:
    """The first of `best_candidates`; None where nothing fits that is recorded."""
    found = best_candidates(store, task_key, where, space)
    return found[0] if found else None

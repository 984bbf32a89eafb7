"""The race of a task's finalists, on a session's device and store."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from retune.core.errors import LookupFailed
from retune.records.cost import COST_COLUMNS, measured_costs, recorded_costs
from retune.records.ranking import top
from retune.records.schema import TuningRecord
from retune.schedule.estimate import default_candidate
from retune.schedule.space import Candidate
from retune.search.finalists import MOST, race
from retune.search.history import best_candidates, located
from retune.search.session import Session

if TYPE_CHECKING:
    from retune.records import Table


def play_off(session: Session, task_key: str, time_left: Callable[[], bool]) -> TuningRecord | None:
    """The winner's record: of its typical measurement among those that the race took.

    The finalists are the fastest known candidates of the task and its default schedule, so tuning
    is never slower by luck. What this run measured of finalists before counts. None if nothing
    was ever right, or no time is left for a first pass.
    """
    finalists = _finalists(session, task_key)
    if not finalists:
        return None
    costs = _known_costs(session, task_key, finalists)

    def measure(names: Sequence[str]) -> Sequence[float]:
        attempt = max(len(costs[name]) for name in names)
        found = session.measure_again(task_key, [finalists[name] for name in names], attempt)
        values = measured_costs(found)[1].tolist()
        for name, value in zip(names, values, strict=True):
            costs[name].append(value)
        return values

    winner = race({name: tuple(values) for name, values in costs.items()}, measure, time_left)
    return _record(session, task_key, winner) if winner else None


def _finalists(session: Session, task_key: str) -> dict[str, Candidate]:
    """Config hash -> candidate: the fastest known ones, and the default schedule.

    A race that was interrupted goes on with those that it had.
    """
    spec = session.runner.spec
    (space,) = (run.space for run in session.runs if run.task.key == task_key)
    begun = _final_rows(session, task_key)
    if len(begun):
        columns = [begun[name].tolist() for name in ("sketch", "decisions", "config_hash")]
        found, _ = located(space, *columns)
        everyone = (space.candidate(found, i) for i in range(len(found)))
        return {candidate.key: candidate for candidate in everyone}
    known = best_candidates(session.store, task_key, session.conditions.comparable, space, MOST)
    if not known:
        return {}
    chosen = [candidate for candidate, _ in known]
    return {c.key: c for c in [*chosen, default_candidate(space, spec)]}


def _known_costs(
    session: Session, task_key: str, names: dict[str, Candidate]
) -> dict[str, list[float]]:
    """What this run measured of these finalists before it was interrupted."""
    rows = _final_rows(session, task_key)
    values = recorded_costs(rows)[1]
    costs: dict[str, list[float]] = {name: [] for name in names}
    for name, value in zip(rows["config_hash"].tolist(), values.tolist(), strict=True):
        if name in costs:
            costs[name].append(value)
    return costs


def _final_rows(session: Session, task_key: str) -> "Table":
    """What this run measured of the task's finalists, in order."""
    wanted = {"task_key": task_key, "run_id": session.settings.run_id, "phase": "final"}
    columns = ["sketch", "decisions", "config_hash", "attempt", *COST_COLUMNS]
    rows = session.store.scan(wanted, columns)
    return rows.sort_values(by="attempt", kind="stable")


def _record(session: Session, task_key: str, config_hash: str) -> TuningRecord:
    """The record by which the store ranks this configuration."""
    where = session.conditions.comparable
    for record in top(session.store, task_key, where, 1 << 20):
        if record.config_hash == config_hash:
            return record
    raise LookupFailed(f"{session.store.root}: the records of the finalists of {task_key} are gone")

"""From records back to candidates: what was found before, in terms of today's space."""

from retune.core.errors import RecordError, ScheduleError
from retune.records.schema import TuningRecord
from retune.records.store import RecordStore
from retune.schedule.space import Candidate, Space
from retune.schedule.trace import Trace

_ALTERNATIVES = 5
"""Records that are tried in turn when the best one is not of today's space."""


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
    store: RecordStore, task_key: str, device: str, space: Space
) -> list[tuple[Candidate, TuningRecord]]:
    """The fastest recorded candidates that today's space still has, each with its record."""
    sketches = [sketch.name for sketch in space.sketches]
    records = store.top(task_key, device, _ALTERNATIVES, sketches)
    pairs = [(candidate_of(record, space), record) for record in records]
    return [(candidate, record) for candidate, record in pairs if candidate is not None]


def best_candidate(
    store: RecordStore, task_key: str, device: str, space: Space
) -> tuple[Candidate, TuningRecord] | None:
    """The fastest recorded candidate that today's space still has, with its record."""
    found = best_candidates(store, task_key, device, space)
    return found[0] if found else None

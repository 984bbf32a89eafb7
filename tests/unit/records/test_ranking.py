"""The fastest records of a task, over runs and days, each configuration once."""

from dataclasses import replace
from pathlib import Path

from retune.records.ranking import best, known, top
from retune.records.schema import TuningRecord, failed
from retune.records.store import RecordStore
from tests.support.store import DAY, DEVICE, record

HERE = {"device": DEVICE}


def with_reference(
    item: TuningRecord, time_us: float, reference_us: float, calm_us: float = 100.0
) -> TuningRecord:
    """The record with these times, taken at a moment with this quiet level."""
    measurement = replace(
        item.measurement, median_us=time_us, reference_us=reference_us, calm_us=calm_us
    )
    return replace(item, measurement=measurement)


def test_an_empty_store_has_no_best(store: Path):
    assert best(RecordStore(store), "task-a", HERE) is None


def test_known_holds_every_tried_configuration_of_the_device(store: Path):
    skipped = replace(failed("skipped", "over budget"), timestamp=DAY)
    broken = replace(failed("timeout", "hang"), timestamp=DAY)
    rows = [
        record(1),
        record(2, measurement=broken),
        record(3, measurement=skipped),
        record(4, device="another"),
        record(5, task_key="task-b"),
    ]
    RecordStore(store).append(rows)
    assert known(RecordStore(store), "task-a", HERE) == {f"{1:016x}", f"{2:016x}"}


def test_best_removes_the_drift_of_the_machine(store: Path):
    slow_hour = with_reference(record(1, run_id="one"), 150.0, 200.0, 190.0)
    fast_hour = with_reference(record(2, run_id="other"), 100.0, 100.0)
    RecordStore(store).append([slow_hour, fast_hour])
    found = best(RecordStore(store), "task-a", HERE)
    assert found is not None
    assert found.decisions == (1, 2, 3)


def test_a_slow_moment_of_a_run_makes_nobody_the_best(store: Path):
    quiet = [with_reference(record(n), 100.0 + n, 100.0) for n in range(8)]
    slow_moment = with_reference(record(9), 126.0, 166.0)  # waits for memory: slower by less
    RecordStore(store).append([*quiet, slow_moment])
    found = top(RecordStore(store), "task-a", HERE, 9)
    assert [item.decisions[0] for item in found] == [*range(8), 9]


def test_best_without_references_is_the_least_time(store: Path):
    rows = [with_reference(record(n), 100.0 - n, float("nan")) for n in range(3)]
    plain = [replace(r, measurement=replace(r.measurement, reference_us=None)) for r in rows]
    RecordStore(store).append(plain)
    found = best(RecordStore(store), "task-a", HERE)
    assert found is not None
    assert found.measurement.median_us == 98.0


def test_top_lists_each_configuration_once(store: Path):
    again = replace(record(0), record_id="other", attempt=1)
    RecordStore(store).append([record(2), record(1), record(0), again])
    found = top(RecordStore(store), "task-a", HERE, 2)
    assert [item.decisions[0] for item in found] == [0, 1]

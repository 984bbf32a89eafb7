"""What existing records say of a task before its search, and what they make it measure first."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retune.core.target import GENERIC_CPU, DeviceSpec
from retune.device.measure.workload import MeasureOptions, measuring_conditions
from retune.records.distilled import TravellingRecords, distill, write_records
from retune.records.origins import spec_key
from retune.records.schema import TuningRecord
from retune.records.shared import Level
from retune.records.store import RecordStore
from retune.schedule.space import Space
from retune.search.history import candidate_of
from retune.search.matching import Here, Suggested, fitting_record, match_records
from retune.search.session import Session, search_all
from retune.search.task import Task
from tests.support.search_fakes import FakeRunner, settings, tasks

NARROW = replace(GENERIC_CPU, model="narrow", vector_bits=256, vector_registers=16)
NEAR = replace(GENERIC_CPU, model="near", l2_bytes=GENERIC_CPU.l2_bytes // 2)
DEVICES = {spec_key(spec): spec for spec in (GENERIC_CPU, NARROW, NEAR)}
CONDITIONS = measuring_conditions(GENERIC_CPU, MeasureOptions())


@pytest.fixture(scope="module")
def task() -> Task:
    return next(task for task in tasks() if task.tunable)


@pytest.fixture(scope="module")
def space(task: Task) -> Space:
    return task.space(GENERIC_CPU)


@pytest.fixture(scope="module")
def records(task: Task, tmp_path_factory: pytest.TempPathFactory) -> tuple[TuningRecord, ...]:
    """What was found of the task here."""
    store = RecordStore(tmp_path_factory.mktemp("store"))
    search_all(Session([task], FakeRunner(), store, settings(trials=16)))
    found = distill(store, 3)
    assert len(found) == 3
    return tuple(replace(record, conditions=CONDITIONS) for record in found)


def matched(task: Task, space: Space, **levels: tuple[TuningRecord, ...]) -> Suggested:
    def sources(level: Level) -> TravellingRecords:
        return TravellingRecords(records=levels.get(level, ()), devices=DEVICES)

    here = Here(spec=GENERIC_CPU, conditions=CONDITIONS)
    return match_records(task, space, here, False, sources)


def test_the_same_task_under_the_same_conditions_is_a_hit_and_measured_first(
    task: Task, space: Space, records: tuple[TuningRecord, ...]
):
    found = matched(task, space, package=records)
    assert found.match.text == "hit (package)"
    assert list(found.candidates) == [candidate_of(record, space) for record in records]
    assert matched(task, space, team=records[:1], package=records).match.text == "hit (team)"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"device": "Other|1|2"}, "measured on Other"),
        ({"device": f"{GENERIC_CPU.fingerprint.partition('|')[0]}|9"}, "another driver"),
        ({"conditions": replace(CONDITIONS, compute_units=99)}, "another number of cores"),
        ({"conditions": None}, "conditions are not known"),
    ],
)
def test_other_conditions_make_it_a_near_hit_that_says_what_differs(
    task: Task, space: Space, records: tuple[TuningRecord, ...], changes: dict[str, Any], why: str
):
    elsewhere = tuple(replace(record, **changes) for record in records)
    found = matched(task, space, user=elsewhere)
    assert found.match.text == f"near hit (user): {why}"
    assert len(found.candidates) == 3
    assert matched(task, space, user=(*elsewhere, records[0])).match.kind == "hit"


def test_the_nearest_workload_of_the_operator_and_types_is_a_near_hit(
    task: Task, space: Space, records: tuple[TuningRecord, ...]
):
    shapes = tuple(tuple(2 * extent for extent in shape) for shape in records[0].input_shapes)
    other = replace(records[0], task_key="other", task_name="larger", input_shapes=shapes)
    farther = tuple(tuple(9 * extent for extent in shape) for shape in records[0].input_shapes)
    far = replace(records[1], task_key="far", task_name="far", input_shapes=farther)
    found = matched(task, space, team=(far, other))
    assert found.match.kind == "near hit" and "by larger, measured on" in found.match.why
    assert found.candidates[0] == candidate_of(records[0], space)


def test_nothing_that_fits_is_a_miss(task: Task, space: Space, records: tuple[TuningRecord, ...]):
    foreign = tuple(replace(r, task_key="x", dtypes=("int8",)) for r in records)
    found = matched(task, space, user=foreign)
    assert (found.match.kind, found.candidates) == ("miss", ())
    assert found.match.why.startswith(f"no record of {task.op} of ")
    gone = tuple(replace(r, sketch="a sketch of before", trace="{}") for r in records)
    assert matched(task, space, team=gone).match.kind == "miss"


def test_a_teams_records_are_measured_here_before_they_count(
    task: Task,
    records: tuple[TuningRecord, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    write_records(records, tmp_path / "team.jsonl")
    monkeypatch.setenv("RETUNE_TEAM_RECORDS", str(tmp_path / "team.jsonl"))
    store = RecordStore(tmp_path / "store")
    session = Session([task], FakeRunner(), store, settings(trials=8))
    assert session.runs[0].best_us is None, "nothing is known here"
    search_all(session)
    measured = store.scan({}, ["config_hash", "trial"]).sort_values("trial")["config_hash"].tolist()
    assert {record.config_hash for record in records} <= set(measured[:5])
    assert session.runs[0].match is not None and session.runs[0].match.level == "team"


def _taken_on(record: TuningRecord, spec: DeviceSpec) -> TuningRecord:
    return replace(record, device=spec.fingerprint, spec=spec_key(spec))


def test_of_other_devices_the_nearest_goes_first(
    task: Task, space: Space, records: tuple[TuningRecord, ...]
):
    far, near = _taken_on(records[0], NARROW), _taken_on(records[1], NEAR)
    found = matched(task, space, package=(far, near))
    assert found.match.text == "near hit (package): measured on near"
    assert found.candidates[0] == candidate_of(near, space)


def test_unmeasured_only_records_of_a_device_of_the_same_kind_are_used(
    task: Task,
    space: Space,
    records: tuple[TuningRecord, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    sketches = [sketch.name for sketch in space.sketches]

    def fitting(*denied: str) -> TuningRecord | None:
        return fitting_record(task, space, GENERIC_CPU, sketches, denied)

    monkeypatch.setenv("RETUNE_SHIPPED_RECORDS", str(tmp_path))
    assert fitting() is None
    narrow, near = _taken_on(records[0], NARROW), _taken_on(records[1], NEAR)
    write_records([narrow], tmp_path / "narrow.jsonl.gz", [NARROW])
    assert fitting() is None, "its vectors are others"
    write_records([near], tmp_path / "near.jsonl.gz", [NEAR])
    found = fitting()
    assert found is not None and found.config_hash == near.config_hash
    assert fitting(near.config_hash) is None
    assert fitting(near.record_id) is None

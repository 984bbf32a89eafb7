"""A configuration in quarantine is a wrong one for every reader, and no row is lost."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune import records
from retune.core.errors import RecordError
from retune.records import files
from retune.records.arrow import to_table
from retune.records.export import export
from retune.records.quarantine import FILE, Quarantined, as_wrong, quarantine, quarantined
from retune.records.ranking import best, known, top
from retune.records.schema import TuningRecord, failed
from retune.records.store import RecordStore
from tests.support.store import DAY, DEVICE, record

HERE = {"device": DEVICE}


@pytest.fixture
def denied() -> TuningRecord:
    """The fastest record of its task."""
    return record(0)


@pytest.fixture
def filled(store: Path, denied: TuningRecord) -> Path:
    """A store with that record in quarantine."""
    broken = replace(failed("timeout", "hang"), timestamp=DAY)
    RecordStore(store).append([denied, record(1), record(2), record(3, measurement=broken)])
    quarantine(store, [denied], "wrong in its network")
    return store


def test_a_record_in_quarantine_is_never_the_best(filled: Path):
    store = RecordStore(filled)
    found = best(store, "task-a", HERE)
    assert found is not None and found.decisions == (1, 2, 3)
    assert [r.decisions[0] for r in top(store, "task-a", HERE, 9)] == [1, 2]
    assert f"{0:016x}" in known(store, "task-a", HERE), "it need not be measured again"


def test_another_record_of_a_configuration_in_quarantine_is_not_ranked(filled: Path):
    """A comparison measures it anew, under another id, in another run, and faster than ever."""
    again = replace(record(0), record_id="other", run_id="later", phase="final", attempt=1)
    RecordStore(filled).append([again])
    found = top(RecordStore(filled), "task-a", HERE, 9)
    assert [r.decisions[0] for r in found] == [1, 2]


def test_other_tasks_and_devices_know_nothing_of_it(filled: Path):
    RecordStore(filled).append([record(0, task_key="task-b"), record(0, device="other")])
    store = RecordStore(filled)
    for task, where in (("task-b", HERE), ("task-a", {"device": "other"})):
        found = best(store, task, where)
        assert found is not None and found.decisions[0] == 0


def test_its_row_says_why(filled: Path, denied: TuningRecord):
    found = (
        RecordStore(filled).named({denied.record_id: denied.task_key})[denied.record_id].measurement
    )
    assert (found.status, found.median_us) == ("wrong_result", None)
    assert found.error == "quarantined: wrong in its network"
    assert found.run_times_us == pytest.approx(denied.measurement.run_times_us)
    (entry,) = quarantined(filled)
    assert entry.record_id == denied.record_id and entry.reason == "wrong in its network"


COUNTS: dict[str, Callable[[Path], int]] = {
    "ok": lambda root: len(records.load(root, status="ok")),
    "wrong": lambda root: len(records.load(root, columns=["op"], status="wrong_result")),
    "both": lambda root: len(records.load(root, status=["ok", "wrong_result"], op="dense")),
    "with a time": lambda root: int(records.load(root, ["median_us"])["median_us"].notna().sum()),
    "by error": lambda root: len(
        RecordStore(root).table({"error": "quarantined: wrong in its network"}, ["op"])
    ),
    "summary": lambda root: RecordStore(root).summary().statuses["ok"],
    "tasks": lambda root: int(RecordStore(root).tasks()["ok"].sum()),
    "all": lambda root: len(records.load(root)),
}


def test_every_reader_sees_it_as_wrong(filled: Path):
    found = {name: count(filled) for name, count in COUNTS.items()}
    assert found == {
        "ok": 2, "wrong": 1, "both": 3, "with a time": 2, "by error": 1, "summary": 2, "tasks": 2,
        "all": 4,
    }  # fmt: skip
    assert RecordStore(filled).tasks()["best_us"].to_list() == [12.0]


def test_an_exported_table_says_so_too(filled: Path, tmp_path: Path):
    export(RecordStore(filled), tmp_path / "all.csv")
    assert pd.read_csv(tmp_path / "all.csv")["status"].value_counts()["wrong_result"] == 1


def test_no_row_changes_and_without_the_entry_it_is_allowed(filled: Path, denied: TuningRecord):
    store = RecordStore(filled)
    store.append([record(5)])
    assert store.compact(DAY.date().replace(year=2027)) == 1
    (path,) = files.list_files(filled)
    assert pq.read_table(path)["status"].to_pylist().count("ok") == 4
    (filled / FILE).unlink()
    found = best(store, "task-a", HERE)
    assert found is not None and found.record_id == denied.record_id


def test_it_is_put_in_once(filled: Path, denied: TuningRecord):
    quarantine(filled, [denied, record(1), record(1)], "again")
    assert [e.reason for e in quarantined(filled)] == ["wrong in its network", "again"]


def test_a_damaged_file_allows_nothing(filled: Path):
    (filled / FILE).write_text("{")
    with pytest.raises(RecordError, match=r"quarantine\.json: expected the configurations"):
        records.load(filled)


@given(
    rows=st.lists(st.tuples(*[st.sampled_from("ab")] * 3, st.booleans()), min_size=1, max_size=12),
    denied=st.lists(st.tuples(*[st.sampled_from("ab")] * 3), min_size=1, max_size=3, unique=True),
)
def test_right_records_of_exactly_these_configurations_are_wrong(
    rows: list[tuple[str, str, str, bool]], denied: list[tuple[str, str, str]]
):
    table = to_table(
        [
            record(task_key=task, config_hash=config, device=device)
            if right
            else record(
                task_key=task, config_hash=config, device=device, measurement=failed("crash", "x")
            )
            for task, config, device, right in rows
        ]
    )
    entries = [
        Quarantined(record_id="", task_key=t, config_hash=c, device=d, reason=f"{t}{c}{d}", when="")
        for t, c, d in denied
    ]
    found = as_wrong(table, entries)
    assert found.schema == table.schema
    for row, before, (*name, right) in zip(found.to_pylist(), table.to_pylist(), rows, strict=True):
        if right and tuple(name) in denied:
            assert row["status"] == "wrong_result" and row["median_us"] is None
            assert row["error"] == f"quarantined: {''.join(name)}"
        else:
            assert row == before

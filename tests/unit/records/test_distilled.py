"""Records that travel: the best few of each task, to a file and back, and those of other tuners."""

import json
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from retune.core.errors import InputError, RecordError
from retune.core.target import GENERIC_CPU
from retune.records.arrow import to_table
from retune.records.distilled import (
    FORMAT,
    devices_of,
    distill,
    merge,
    read_records,
    travelling,
    write_records,
)
from retune.records.foreign import KINDS, Kind, foreign_lines, kind_of, read_foreign
from retune.records.origins import keep_spec, read_spec
from retune.records.schema import Environment
from retune.records.shared import SHIPPED, records_named, shared_records
from retune.records.store import RecordStore
from tests.support.store import record


def filled(folder: Path) -> RecordStore:
    """Five candidates of one task and two of another, the later the slower."""
    store = RecordStore(folder)
    rows = [record(number, record_id=f"a{number}", features=(1.0,)) for number in range(5)]
    rows += [record(number, record_id=f"b{number}", task_key="task-b") for number in range(2)]
    store.append(rows)
    return store


def test_the_best_few_of_each_task_come_back_as_they_were(tmp_path: Path):
    store, path = filled(tmp_path / "store"), tmp_path / "best.jsonl"
    found = distill(store, 3)
    assert [row.record_id for row in found] == ["a0", "a1", "a2", "b0", "b1"]
    assert not any(row.features or row.measurement.run_times_us for row in found)
    assert write_records(found, path) == 5
    assert read_records(path).records == found
    assert distill(store, 3, model="another") == () == distill(store, 3, device="another")


def test_a_compressed_file_describes_the_devices_and_is_the_same_each_time(tmp_path: Path):
    store, path = RecordStore(tmp_path / "store"), tmp_path / "best.jsonl.gz"
    key = keep_spec(store.root, GENERIC_CPU)
    store.append([record(number, record_id=f"a{number}", spec=key) for number in range(9)])
    found = distill(store, 9)
    write_records(found, path, devices_of(store, found))
    data = path.read_bytes()
    write_records(found, path, [GENERIC_CPU])
    assert path.read_bytes() == data and len(data) < 2000
    assert read_records(path).records == found
    assert [*read_records(path).devices] == [key], "by what records call it"
    assert merge(there := RecordStore(tmp_path / "there"), found, [GENERIC_CPU]) == 9
    assert read_spec(there.root, key) == replace(GENERIC_CPU, global_memory_bytes=0)
    path.write_bytes(data[:-20])
    with pytest.raises(InputError, match="expected a file of records"):
        read_records(path)


def test_the_packages_records_may_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert shared_records("package").records == ()
    write_records([travelling(record())], tmp_path / "a.jsonl")
    monkeypatch.setenv("RETUNE_SHIPPED_RECORDS", str(tmp_path))
    (found,) = shared_records("package").records
    named = records_named(RecordStore(tmp_path / "store"), {found.record_id: found.task_key})
    assert named == {found.record_id: found}


def test_merging_adds_what_is_new_once(tmp_path: Path):
    found = distill(filled(tmp_path / "store"), 2)
    there = RecordStore(tmp_path / "there")
    assert merge(there, found) == 4
    more = [*found, replace(found[0], record_id="c", model="zoo:other"), found[1]]
    assert merge(there, more) == 1
    assert len(there.scan()) == 5
    assert distill(there, 2)[1:] == found[1:]


def test_a_file_that_is_none_or_newer_is_refused(tmp_path: Path):
    path = tmp_path / "r.jsonl"
    with pytest.raises(InputError, match=r"expected a file of records, got none .*distill FILE"):
        read_records(path)
    write_records([travelling(record())], path)
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text(f"{lines[0]}\n{{}}\n", encoding="utf-8")
    with pytest.raises(RecordError, match=r"r\.jsonl: line 2"):
        read_records(path)
    path.write_text(json.dumps({"retune_records": FORMAT + 1}), encoding="utf-8")
    with pytest.raises(RecordError, match="of format 1 at most, got 2; install a newer retune"):
        read_records(path)


def test_a_teams_records_are_those_of_a_file_or_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    assert shared_records("user").records == shared_records("team").records == ()
    rows = (travelling(record()), travelling(record(1)))
    write_records(rows[:1], tmp_path / "a.jsonl")
    write_records(rows[1:], tmp_path / "b.jsonl")
    monkeypatch.setenv("RETUNE_TEAM_RECORDS", str(tmp_path / "a.jsonl"))
    assert shared_records("team").records == rows[:1]
    (tmp_path / "c.jsonl").write_text("{}\n", encoding="utf-8")
    monkeypatch.setenv("RETUNE_TEAM_RECORDS", str(tmp_path))
    assert shared_records("team").records == rows
    assert "c.jsonl: expected a file of records" in caplog.text


AUTOTVM = {
    "input": [
        "llvm -mcpu=skylake",
        "conv2d_NCHWc.x86",
        [["TENSOR", [1, 3, 8, 8], "float32"], ["TENSOR", [4, 3, 3, 3], "float32"], [1, 1]],
        {},
    ],
    "config": {
        "index": 7,
        "code_hash": None,
        "entity": [["tile_ic", "sp", [-1, 3]], ["unroll_kw", "ot", True]],
    },
    "result": [[2e-3, 4e-3], 0, 1.5, 1.6e9],
    "version": 0.2,
    "tvm_version": "0.16.0",
}
ANSOR = {
    "i": [['["hash", 1, 8]', "llvm", [8, 64]], [[], [["SP", 2, 0, 8, [4], 1]]]],
    "r": [[1e10], 6, 1.5, 1.6e9],
    "v": "v0.6",
}


def test_rows_of_other_tuners_are_for_comparison_and_read_once(tmp_path: Path):
    path = tmp_path / "tvm.log"
    path.write_text(f"{json.dumps(AUTOTVM)}\n\n", encoding="utf-8")
    assert kind_of(path) == "autotvm"
    (row,) = read_foreign(path, "autotvm")
    assert (row.op, row.device) == ("conv2d_NCHWc", "llvm -mcpu=skylake")
    assert row.input_shapes == ((1, 3, 8, 8), (4, 3, 3, 3))
    assert row.knobs == (("tile_ic", (-1, 3)), ("unroll_kw", (1,)))
    assert row.measurement.median_us == pytest.approx(3000.0)
    store = RecordStore(tmp_path / "store")
    assert [merge(store, read_foreign(path, "autotvm")) for _ in range(2)] == [1, 0]

    path.write_text(json.dumps(ANSOR), encoding="utf-8")
    assert kind_of(path) == "ansor"
    (row,) = read_foreign(path, "ansor")
    assert (row.measurement.status, row.measurement.median_us) == ("timeout", None)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_for_other_tuners_keep_times_and_devices(kind: Kind, tmp_path: Path):
    path, mine = tmp_path / "r.log", record(3)
    path.write_text("\n".join(foreign_lines([mine], kind)), encoding="utf-8")
    assert kind_of(path) == kind
    (row,) = read_foreign(path, kind)
    assert row.measurement.run_times_us == pytest.approx(mine.measurement.run_times_us)
    assert row.measurement.timestamp == mine.measurement.timestamp
    if kind == "autotvm":
        assert (row.knobs, row.input_shapes) == (mine.knobs, mine.input_shapes)


def test_records_of_several_days_lie_below_their_days(tmp_path: Path):
    rows = [record(), record(1)]
    late = replace(rows[1].measurement, timestamp=rows[1].measurement.timestamp + timedelta(days=3))
    store = RecordStore(tmp_path / "store")
    assert merge(store, [rows[0], replace(rows[1], measurement=late)]) == 2
    found = {path.name for path in store.root.rglob("date=*")}
    assert found == {"date=2026-03-01", "date=2026-03-04"}


@pytest.mark.parametrize(
    "changes",
    [
        {"trial": 1 << 80},
        {"trial": 1 << 31},
        {"attempt": -(1 << 15) - 1},
        {"input_shapes": ((3,), (1 << 31,))},
        {"knobs": (("tile", (1, 1 << 31)),)},
        {"knobs": (("\ud800", (1,)),)},
        {"dtypes": ("float32", "\ud800")},
        {"env": Environment(driver="\ud800")},
        {"model": "\ud800"},
        {"op": "\ud800"},
    ],
)
def test_what_no_store_can_hold_is_refused_by_its_line(tmp_path: Path, changes: dict[str, object]):
    path = tmp_path / "r.jsonl"
    write_records([record(), record(1, **changes)], path)
    if "model" not in changes:
        with pytest.raises((OverflowError, ValueError)):
            to_table([record(1, **changes)])
    with pytest.raises(RecordError, match=r"line 3: expected numbers of 64 bits and text"):
        read_records(path)


def test_the_largest_numbers_that_a_store_holds_are_read(tmp_path: Path):
    most = record(
        trial=(1 << 31) - 1,
        attempt=-(1 << 15),
        flops=(1 << 63) - 1,
        knobs=(("tile", (-(1 << 31),)), ("none", ())),
        dtypes=("\u00fcber",),
    )
    path = tmp_path / "r.jsonl"
    write_records([most], path)
    assert to_table(read_records(path).records).num_rows == 1


def test_reading_records_imports_no_pandas():
    """It takes a third of a second, and a run that measures nothing does without."""
    code = """
import sys
from retune.records.distilled import read_records
from retune.records.shared import SHIPPED
assert read_records(next(SHIPPED.glob("*.jsonl.gz"))).records
assert "pandas" not in sys.modules"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"result": [[0.1], 0, 1.0, 1e20]},
        {"result": [[-1.0], 0, 1.0, 1.6e9]},
        {"result": [[float("nan")], 0, 1.0, 1.6e9]},
        {"result": [[0.1], float("inf"), 1.0, 1.6e9]},
        {"result": [[0.1], 0, float("inf"), 1.6e9]},
        {"config": {"entity": [["tile", "sp", [1 << 80]]]}},
        {"input": ["llvm", "conv2d", [["TENSOR", [1 << 80], "float32"]], {}]},
    ],
)
def test_numbers_that_no_tuner_writes_are_refused_by_their_line(
    tmp_path: Path, changes: dict[str, object]
):
    path = tmp_path / "r.log"
    path.write_text(json.dumps({**AUTOTVM, **changes}), encoding="utf-8")
    with pytest.raises(RecordError, match=r"r\.log: line 1: expected"):
        read_foreign(path, "autotvm")


def test_a_file_of_deep_lists_is_of_no_tuner(tmp_path: Path):
    path = tmp_path / "r.log"
    path.write_text("[" * 200_000, encoding="utf-8")
    assert kind_of(path) is None


def test_a_line_that_lacks_something_is_named(tmp_path: Path):
    path = tmp_path / "r.log"
    path.write_text(f"{json.dumps(ANSOR)}\n{json.dumps({'i': [], 'r': []})}\n", encoding="utf-8")
    with pytest.raises(RecordError, match=r"r\.log: line 2: expected a record of ansor"):
        read_foreign(path, "ansor")
    path.write_text("no json", encoding="utf-8")
    assert kind_of(path) is None


def test_the_package_ships_small_files_of_right_records():
    """`benchmarks.ship_records` writes them."""
    files = sorted(SHIPPED.glob("*.jsonl.gz"))
    assert files and sum(file.stat().st_size for file in files) <= 1 << 20
    for file in files:
        found = read_records(file)
        assert found.records and all(record.measurement.ok for record in found.records)
        assert {record.spec for record in found.records} <= found.devices.keys()

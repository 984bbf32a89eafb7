"""The record store: durable, read once, tolerant of damage, strict about newer versions."""

import logging
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retune import records
from retune.core.errors import InputError, RecordError
from retune.core.locking import exclusive
from retune.records import files, index
from retune.records import store as stores
from retune.records.arrow import FILE_SCHEMA, to_records, to_table
from retune.records.schema import (
    MAX_ERROR_CHARS,
    Environment,
    Measurement,
    failed,
)
from retune.records.store import RecordStore
from tests.support.store import DAY, record


def test_a_record_survives_the_round_trip(store: Path):
    wanted = [record(1), record(2, measurement=replace(failed("crash", "died"), timestamp=DAY))]
    RecordStore(store).append(wanted)
    table = RecordStore(store).table()
    found = sorted(to_records(table), key=lambda item: item.decisions)
    assert [item.decisions for item in found] == [(1, 2, 3), (2, 2, 3)]
    assert found[0].measurement.median_us == 12.0
    assert found[0].measurement.run_times_us == pytest.approx((11.0, 12.0, 13.5))
    assert found[1].measurement.status == "crash"
    assert found[1].measurement.median_us is None
    exact = [replace(item, measurement=wanted[0].measurement) for item in found]
    assert exact == [replace(item, measurement=wanted[0].measurement) for item in wanted]
    assert [item.measurement.timestamp for item in found] == [DAY, DAY]


def test_a_file_lies_under_quoted_target_model_and_date(store: Path):
    path = RecordStore(store).append([record(model="a/b=c d", target="GPU/1 é")])
    assert path.relative_to(store).parts[:4] == (
        "v1",
        "target=GPU%2F1%20%C3%A9",
        "model=a%2Fb%3Dc%20d",
        "date=2026-03-01",
    )
    frame = records.load(store, model="a/b=c d")
    assert frame["target"].to_list() == ["GPU/1 é"]
    assert frame["date"].to_list() == ["2026-03-01"]


@pytest.mark.parametrize("value", ["..", ".", "123", "2026-01-01", "a%2Fb", "null"])
def test_any_partition_value_comes_back_as_text(store: Path, value: str):
    RecordStore(store).append([record(model=value)])
    assert records.load(store)["model"].to_list() == [value]


def test_the_file_states_its_version_and_its_units(store: Path):
    path = RecordStore(store).append([record()])
    schema = pq.read_schema(path)
    assert schema.metadata[b"retune.schema_version"] == b"1"
    assert schema.field("median_us").metadata[b"unit"] == b"us"
    assert not {"target", "model", "date"} & set(schema.names)


def test_columns_keep_their_types_when_everything_is_empty(store: Path):
    path = RecordStore(store).append([record(measurement=Measurement(status="skipped"))])
    assert pq.read_schema(path).types == FILE_SCHEMA.types


def test_append_refuses_no_records_and_mixed_homes(store: Path):
    with pytest.raises(InputError, match="one device and one model, got 0"):
        RecordStore(store).append([])
    with pytest.raises(InputError, match="got 2"):
        RecordStore(store).append([record(), record(model="other")])


def test_an_empty_store_reads_as_an_empty_table(store: Path):
    frame = records.load(store)
    assert frame.empty
    assert {"task_key", "median_us", "target"} <= set(frame.columns)
    assert RecordStore(store / "missing").summary().records == 0


def test_load_filters_and_selects_columns(store: Path):
    RecordStore(store).append([record(n, task_name=f"t{n}") for n in range(4)])
    frame = records.load(store, columns=["task_name"], task_name=["t1", "t3"])
    assert frame.columns.to_list() == ["task_name"]
    assert sorted(frame["task_name"]) == ["t1", "t3"]


def test_a_question_to_the_records_is_a_line_of_pandas(store: Path):
    tuners = ("random", "xgb", "random")
    RecordStore(store).append([record(n, tuner=tuner) for n, tuner in enumerate(tuners)])
    rows = records.load(store, status="ok").sort_values("median_us")
    gflops = rows["flops"] / rows["median_us"] / 1e3
    assert gflops.tolist() == pytest.approx([2e3 / us for us in (11.0, 12.0, 13.0)])
    best = rows.groupby("tuner")["median_us"].min()
    assert best.to_dict() == {"random": 11.0, "xgb": 12.0}
    knobs = pd.DataFrame(map(dict, rows["knobs"]))
    assert knobs.to_dict("list") == {"tile": [[0, 2], [1, 2], [2, 2]], "unroll": [[3]] * 3}


def test_an_unknown_column_is_named(store: Path):
    with pytest.raises(InputError, match="no column 'speed'; there are: record_id"):
        records.load(store, speed=3)


def test_a_folder_that_is_not_there_is_no_empty_table(tmp_path: Path):
    """A name that was misspelt would look as if nothing had been measured."""
    with pytest.raises(InputError, match="none: expected the folder of a record store, got noth"):
        records.load(str(tmp_path / "none"))
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file: expected the folder of a record store, got a file"):
        records.summary(tmp_path / "file")
    assert records.load(tmp_path).empty, "a store in which nothing lies yet"


def test_a_record_that_was_delivered_twice_is_read_once(store: Path):
    twice = [record(1), record(2)]
    RecordStore(store).append(twice)
    RecordStore(store).append(twice[:1])
    assert len(records.load(store)) == 2
    assert len(records.load(store, columns=["task_key"])) == 2


def test_tasks_and_summary_count(store: Path):
    broken = replace(failed("wrong_result", "off"), timestamp=DAY)
    RecordStore(store).append([record(1), record(2), record(3, measurement=broken)])
    tasks = RecordStore(store).tasks()
    assert tasks[["records", "ok", "best_us"]].to_numpy().tolist() == [[3, 2, 12.0]]
    found = records.summary(store)
    assert (found.files, found.records, found.tasks) == (1, 3, 1)
    assert found.statuses == {"ok": 2, "wrong_result": 1}


def test_a_store_object_sees_what_others_append(store: Path):
    reader = RecordStore(store)
    assert reader.scan().empty
    RecordStore(store).append([record(1)])
    assert len(reader.scan()) == 1


@pytest.mark.parametrize("kept", [0, 7, 0.5, -1])
def test_a_truncated_file_is_skipped_and_named(store: Path, caplog, kept: float):
    good = RecordStore(store).append([record(1)])
    bad = RecordStore(store).append([record(2)])
    data = bad.read_bytes()
    bad.write_bytes(data[: int(len(data) * kept) if 0 < kept < 1 else int(kept)])
    reader = RecordStore(store)
    with caplog.at_level(logging.WARNING):
        frame = reader.scan()
        reader.scan()
    assert frame["decisions"].to_list() == [[1, 2, 3]] and len(frame) == 1
    assert [bad.name in message for message in caplog.messages] == [True]
    assert good.name not in caplog.text
    assert reader.summary().damaged == (str(bad),)


def test_a_link_to_a_file_that_is_not_there_is_skipped_and_named(store: Path):
    """As of a store whose large files were not fetched: it has not gone meanwhile."""
    writer = RecordStore(store)
    link = writer.append([record(1)]).with_name("part-1-elsewhere.parquet")
    link.symlink_to("not-fetched.parquet")
    reader = RecordStore(store)
    assert len(reader.scan()) == 1
    assert reader.summary().damaged == (str(link),)


def test_a_file_with_damaged_pages_is_skipped_and_named(store: Path, caplog):
    RecordStore(store).append([record(1)])
    bad = RecordStore(store).append([record(n) for n in range(2, 40)])
    data = bytearray(bad.read_bytes())
    data[4:600] = bytes(596)
    bad.write_bytes(bytes(data))
    with caplog.at_level(logging.WARNING):
        frame = RecordStore(store).scan()
    assert len(frame) == 1
    assert bad.name in caplog.text


def test_a_file_of_a_newer_version_is_refused(store: Path):
    path = RecordStore(store).append([record(1)])
    table = pq.read_table(path, partitioning=None)
    newer = table.replace_schema_metadata({b"retune.schema_version": b"2"})
    pq.write_table(newer, path)
    with pytest.raises(
        RecordError, match=rf"{path.name}: expected .* 1 at most, got 2; install a newer"
    ):
        RecordStore(store).scan()


def test_older_files_lack_columns_and_unknown_columns_are_ignored(store: Path):
    table = to_table([record(1)])
    older = table.drop_columns(["layout", "env", "features"])
    stranger = older.append_column("colour", pa.array(["red"]))
    folder = files.partition_folder(
        store, {"target": "cpu one", "model": "zoo:mlp", "date": "2026-03-01"}
    )
    files.write_table(stranger, folder / "part-1-old-1.parquet")
    RecordStore(store).append([record(2)])
    frame = records.load(store)
    assert len(frame) == 2
    assert "colour" not in frame.columns
    assert frame["layout"].isna().sum() == 1
    old = next(item for item in to_records(RecordStore(store).table()) if item.decisions[0] == 1)
    assert (old.layout, old.env) == ("", Environment())


def test_records_name_their_night_and_older_ones_name_none(store: Path):
    older = to_table([record(1)]).drop_columns(["night"])
    folder = files.partition_folder(
        store, {"target": "cpu one", "model": "zoo:mlp", "date": "2026-03-01"}
    )
    files.write_table(older, folder / "part-1-old-1.parquet")
    RecordStore(store).append([record(2, night="2026-03-02")])
    frame = records.load(store).sort_values("night")
    assert frame["night"].to_list() == ["", "2026-03-02"]
    assert len(records.load(store, ["record_id"], night="")) == 1
    assert len(records.load(store, ["record_id"], night="2026-03-02")) == 1


KILLED_WRITER = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = {path!r}
import tests.unit.records.test_store as here
from retune.records.store import RecordStore
store = RecordStore(sys.argv[1])
store.append([here.record(1)])
Path.replace = lambda self, target: os.kill(os.getpid(), signal.SIGKILL)
store.append([here.record(2)])
"""


@pytest.mark.process
def test_a_kill_between_write_and_rename_loses_that_batch_only(store: Path):
    code = textwrap.dedent(KILLED_WRITER).format(path=[p for p in sys.path if p])
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", code, str(store)], cwd=root, check=False)
    assert done.returncode == -signal.SIGKILL
    left = list(store.rglob(".*.tmp"))
    assert len(left) == 1
    assert len(records.load(store)) == 1
    os.utime(left[0], (0, 0))
    RecordStore(store).compact()
    assert list(store.rglob(".*.tmp")) == []
    assert len(records.load(store)) == 1


def test_a_file_that_goes_away_meanwhile_does_not_stop_the_clearing(store: Path):
    RecordStore(store).append([record(1)])
    folder = files.list_files(store)[0].parent
    (folder / ".a.tmp").symlink_to("renamed")  # listed, and no longer there
    (folder / ".b.tmp").touch()
    os.utime(folder / ".b.tmp", (0, 0))
    assert files.remove_stale(store, older_than_s=60) == 1
    assert not (folder / ".b.tmp").exists()


def test_a_failed_write_leaves_nothing(store: Path, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    folder = files.partition_folder(store, {"target": "t", "model": "m", "date": "2026-03-01"})
    folder.mkdir(parents=True)
    with pytest.raises(OSError, match="No space left"):
        RecordStore(store).append([record(1, target="t", model="m")])
    assert [path for path in store.rglob("*") if path.is_file()] == []


def test_compaction_joins_finished_days_and_keeps_every_record(store: Path):
    writer = RecordStore(store)
    for number in range(5):
        writer.append([record(number), record(number + 10, task_key="task-b")])
    before = records.load(store).sort_values("record_id")["record_id"].to_list()
    assert RecordStore(store).compact(today=date(2026, 3, 1)) == 0
    assert RecordStore(store).compact(today=date(2026, 3, 2)) == 4
    paths = files.list_files(store)
    assert [path.name[:4] for path in paths] == ["cpt-"]
    after = records.load(store).sort_values("record_id")["record_id"].to_list()
    assert after == before
    assert len(writer.scan()) == 10
    assert RecordStore(store).compact(today=date(2026, 3, 2)) == 0


@pytest.mark.parametrize("step", ["_open_file", "_read_all"])
def test_files_that_are_joined_while_they_are_read_lose_no_rows(
    store: Path, monkeypatch: pytest.MonkeyPatch, step: str
):
    """Day after day is joined in the middle of one reading: the rows are in files of later."""
    days = [DAY.replace(day=day) for day in (1, 2, 3)]
    for moment in days:
        for number in range(2):
            one = record(number)
            RecordStore(store).append(
                [replace(one, measurement=replace(one.measurement, timestamp=moment))]
            )
    plain, left = getattr(stores, step), list(days)

    def meanwhile(*arguments: object) -> object:
        if left:
            monkeypatch.setattr(stores, step, plain)
            RecordStore(store).compact(today=left.pop(0).date() + timedelta(days=1))
            monkeypatch.setattr(stores, step, meanwhile)
        return plain(*arguments)

    monkeypatch.setattr(index, "_OPENERS", 1)
    monkeypatch.setattr(stores, step, meanwhile)
    assert len(RecordStore(store).scan()) == 6
    assert RecordStore(store).summary().records == 6


def test_of_the_chosen_records_only_are_all_columns_read(
    store: Path, monkeypatch: pytest.MonkeyPatch
):
    for number in range(4):
        RecordStore(store).append([record(number, trial=number)])
    read, plain = list[int](), stores._read_file

    def counting(path: Path, schema: pa.Schema, names: list[str], *rest: object) -> pa.Table:
        read.append(len(names))
        return plain(path, schema, names, *rest)

    monkeypatch.setattr(stores, "_read_file", counting)
    found = RecordStore(store).chosen({}, ["trial"], lambda table: [trial_at(table, 3)])
    assert [item.trial for item in found] == [3]
    assert sorted(read) == [4, 4, 4, 4, len(stores.READ_SCHEMA)]
    with pytest.raises(InputError, match="no column 'trail'"):
        RecordStore(store).chosen({}, ["trail"], lambda _: [])


def test_records_are_chosen_while_their_files_are_joined(store: Path):
    for number in range(3):
        RecordStore(store).append([record(number, trial=number)])

    def choose(table: pa.Table) -> list[int]:
        assert RecordStore(store).compact(today=date(2026, 3, 2)) == 2
        return [trial_at(table, 2), trial_at(table, 0)]

    found = RecordStore(store).chosen({}, ["trial"], choose)
    assert [item.trial for item in found] == [2, 0]


def trial_at(table: pa.Table, trial: int) -> int:
    return table.column("trial").to_pylist().index(trial)


def test_compaction_leaves_files_with_damaged_pages_alone(
    store: Path, caplog: pytest.LogCaptureFixture
):
    paths = [RecordStore(store).append([record(number)]) for number in range(3)]
    whole = bytearray(paths[1].read_bytes())
    whole[4:200] = bytes(196)
    paths[1].write_bytes(whole)
    with caplog.at_level(logging.WARNING):
        assert RecordStore(store).compact(today=date(2026, 3, 2)) == 1
    assert paths[1].name in caplog.text
    assert paths[1].exists() and not paths[0].exists()
    assert len(records.load(store)) == 2


def test_of_a_long_file_only_those_groups_are_read_that_can_match(
    store: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(files, "ROW_GROUP_ROWS", 2)
    for task in ("b", "a", "c"):
        RecordStore(store).append([record(number, task_key=task) for number in range(2)])
    RecordStore(store).compact(today=date(2026, 3, 2))
    read, plain = list[list[int]](), pq.ParquetFile.read_row_groups

    def reading(
        file: pq.ParquetFile, groups: list[int], *rest: object, **named: object
    ) -> pa.Table:
        read.append(groups)
        return plain(file, groups, *rest, **named)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", reading)
    for task, groups in (("a", [0]), ("c", [2]), (["c", "a"], [0, 2])):
        found = RecordStore(store).table({"task_key": task}, ["task_key"])["task_key"].to_pylist()
        assert (read.pop(), found) == (groups, sorted(2 * [*task]))
    assert RecordStore(store).table({"task_key": "bb"}).num_rows == 0


def test_a_crash_in_compaction_only_leaves_duplicates(store: Path, monkeypatch):
    for number in range(3):
        RecordStore(store).append([record(number)])

    def die(self: Path, missing_ok: bool = False) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", die)
        with pytest.raises(KeyboardInterrupt):
            RecordStore(store).compact(today=date(2026, 3, 2))
    assert len(files.list_files(store)) == 4
    assert len(records.load(store)) == 3


def test_compaction_leaves_files_with_unknown_columns_alone(store: Path):
    path = RecordStore(store).append([record(1)])
    RecordStore(store).append([record(2)])
    table = pq.read_table(path, partitioning=None)
    pq.write_table(table.append_column("colour", pa.array(["red"])), path)
    assert RecordStore(store).compact(today=date(2026, 3, 2)) == 0
    assert path.exists()


def test_compaction_yields_to_another_process(store: Path):
    for number in range(2):
        RecordStore(store).append([record(number)])
    with exclusive(store / "v1" / ".compact.lock", "the store is being compacted"):
        assert RecordStore(store).compact(today=date(2026, 3, 2)) == 0
    assert len(files.list_files(store)) == 2


def test_a_long_message_keeps_its_start_and_its_end():
    message = failed("compile_error", "start" + "x" * 9000 + "end").error
    assert len(message) <= MAX_ERROR_CHARS
    assert message.startswith("start") and message.endswith("end")


@pytest.mark.process
def test_importing_records_loads_no_table_library():
    code = "import sys, retune.records.schema; print({'pandas', 'pyarrow'} & set(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_a_version_of_thousands_of_digits_is_newer(store: Path):
    path = RecordStore(store).append([record(1)])
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({b"retune.schema_version": b"9" * 5000}), path)
    with pytest.raises(RecordError, match="install a newer retune, or point --records"):
        RecordStore(store).scan()


def test_rows_of_others_are_no_records(store: Path, caplog: pytest.LogCaptureFixture):
    """They are rows for who reads the table; nobody takes them for measurements."""
    path = RecordStore(store).append([record(1), record(2)])
    table = pq.read_table(path)
    stamps = pa.array([1 << 62, 0], pa.timestamp("us", tz="UTC"))
    for name, column, left in (
        ("task_key", pa.nulls(2, pa.string()), 0),
        ("timestamp", stamps, 1),
    ):
        at = table.schema.get_field_index(name)
        pq.write_table(table.set_column(at, table.schema.field(name), column), path)
        caplog.clear()
        assert len(to_records(RecordStore(store).table())) == left
        assert "rows are no records: they lack a task" in caplog.text
        assert len(RecordStore(store).scan(columns=["record_id"])) == 2


def test_a_file_with_text_that_is_none_is_skipped(store: Path, caplog: pytest.LogCaptureFixture):
    whole = RecordStore(store).append([record(1)])
    table = pq.read_table(whole)
    names = pa.array([b"\xff\xfe"]).cast(pa.binary())
    text = pa.Array.from_buffers(pa.string(), 1, names.buffers())
    at = table.schema.get_field_index("task_name")
    pq.write_table(table.set_column(at, table.schema.field("task_name"), text), whole)
    RecordStore(store).append([record(2)])
    assert [row.decisions[0] for row in to_records(RecordStore(store).table())] == [2]
    assert "cannot be read and is skipped" in caplog.text


def test_a_count_that_no_float_holds_is_summed_up_all_the_same(store: Path):
    RecordStore(store).append([record(1, flops=(1 << 62) + 1)])
    assert RecordStore(store).tasks()["records"].tolist() == [1]


def test_tables_of_other_programs_are_no_records(store: Path, caplog: pytest.LogCaptureFixture):
    folder = RecordStore(store).append([record(0)]).parent
    pq.write_table(pa.table({"a": [1, 2]}), folder / "part-0-other-0.parquet")
    summary = RecordStore(store).summary()
    assert summary.records == 1
    assert [Path(path).name for path in summary.damaged] == ["part-0-other-0.parquet"]
    assert "not a file of records: it has no column record_id" in caplog.text


@pytest.mark.process
def test_a_question_to_an_empty_store_loads_no_pandas(tmp_path: Path):
    """A third of a second at the start of every command that asks."""
    program = """
    import sys
    from pathlib import Path
    from retune.records.ranking import top
    from retune.records.store import RecordStore
    store = RecordStore(Path(sys.argv[1]))
    assert top(store, "task", {}, 1) == [] and store.named({}) == {}
    sys.exit("pandas" in sys.modules)
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    arguments = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    assert subprocess.run(arguments, env=environment, check=False).returncode == 0

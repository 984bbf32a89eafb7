"""The index of a store: queries open few files, and see what they would see without it."""

import fcntl
import logging
import os
import random
import shutil
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retune.core.locking import exclusive
from retune.records import files, index
from retune.records import store as stores
from retune.records.store import RecordStore
from tests.support.store import DAY, record

TASKS = ("task-a", "task-b")
NIGHTS = 3
QUERIES = (
    {},
    {"task_key": "task-a"},
    {"task_key": ["task-a", "task-x"], "status": "ok"},
    {"conditions": [None]},
    {"model": "net-b"},
    {"model": ["net-a", "net-c"], "task_key": "task-b"},
    {"date": DAY.date().isoformat()},
    {"run_id": "no-run"},
    {"target": "no-target"},
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("template")
    for night in range(NIGHTS):
        for number, task in enumerate(TASKS):
            measured_at(root, 2 * night + number, task, night)
    return root


@pytest.fixture
def store(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two networks on three days, in folders whose last change is long ago."""
    monkeypatch.setattr(index, "NEW_FILES", 1)
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    settle(tmp_path)
    return tmp_path


def measured_at(root: Path, number: int, task: str, night: int) -> Path:
    """A file of one record of that task and night."""
    one = record(number, task_key=task, model=f"net-{task[-1]}")
    moment = DAY + timedelta(days=night)
    measurement = replace(one.measurement, timestamp=moment)
    return RecordStore(root).append([replace(one, measurement=measurement)])


def settle(root: Path) -> None:
    """Every folder was changed an hour ago, each at another time."""
    for number, folder in enumerate(sorted((root / "v1").glob("*/*/*"))):
        before_ns = folder.stat().st_mtime_ns - (3600 + number) * 10**9
        os.utime(folder, ns=(before_ns, before_ns))


def ids(root: Path, filters: dict[str, object]) -> list[str]:
    return sorted(RecordStore(root).scan(filters, ["record_id"])["record_id"])


def opened(root: Path, filters: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> int:
    """How many files a query reads, whether rows of them or what the index wants of them."""
    count, plain, read = 0, stores._open_file, stores._read_file

    def counting(path: Path) -> object:
        nonlocal count
        count += 1
        return plain(path)

    def reading(path: Path, *arguments: object) -> object:
        nonlocal count
        count += 1
        return read(path, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(stores, "_open_file", counting)
        patch.setattr(stores, "_read_file", reading)
        ids(root, filters)
    return count


@pytest.mark.parametrize("filters", QUERIES)
def test_a_query_finds_the_same_with_and_without_an_index(
    store: Path, filters: dict[str, object], monkeypatch: pytest.MonkeyPatch
):
    ids(store, {})
    assert (store / "v1" / files.INDEX).is_file()
    with monkeypatch.context() as patch:
        patch.setattr(index, "_read", lambda path: index._index(index.empty(index._SCHEMA)))
        patch.setattr(index, "NEW_FILES", 10**6)
        expected = ids(store, filters)
    assert ids(store, filters) == expected
    added = measured_at(store, 90, "task-a", 0)
    assert len(ids(store, {"task_key": "task-a"})) == NIGHTS + 1
    added.unlink()
    assert ids(store, filters) == expected


def test_a_query_opens_the_files_of_its_task_only(store: Path, monkeypatch: pytest.MonkeyPatch):
    assert opened(store, {}, monkeypatch) == 2 * 2 * NIGHTS  # looked into, and read
    assert opened(store, {"task_key": "task-a"}, monkeypatch) == NIGHTS
    assert opened(store, {"run_id": "no-run"}, monkeypatch) == 0
    measured_at(store, 91, "task-b", 1)
    assert opened(store, {"task_key": "task-a"}, monkeypatch) == NIGHTS + 1  # the new one, once
    assert opened(store, {"model": "net-b"}, monkeypatch) >= NIGHTS + 1


def test_a_change_right_after_a_folder_was_listed_is_seen(store: Path):
    """Its time of modification may stay the same then: it is believed when it is old."""
    folder = measured_at(store, 92, "task-a", 0).parent
    assert len(ids(store, {"task_key": "task-a"})) == NIGHTS + 1
    changed_ns = folder.stat().st_mtime_ns
    measured_at(store, 93, "task-a", 0)
    os.utime(folder, ns=(changed_ns, changed_ns))
    assert len(ids(store, {"task_key": "task-a"})) == NIGHTS + 2


@pytest.mark.parametrize("damage", [b"", b"PAR1", b"no parquet at all" * 99])
def test_a_damaged_index_is_made_again(store: Path, damage: bytes):
    expected = ids(store, {})
    (store / "v1" / files.INDEX).write_bytes(damage)
    assert ids(store, {}) == expected
    assert pq.read_metadata(store / "v1" / files.INDEX).num_rows == len(expected)


def test_a_damaged_file_is_named_by_every_reader(store: Path, caplog: pytest.LogCaptureFixture):
    path = files.list_files(store)[0]
    path.write_bytes(path.read_bytes()[:100])
    settle(store)
    for _ in range(3):
        stores._warn_of.cache_clear()
        caplog.clear()
        assert len(ids(store, {})) == 2 * NIGHTS - 1
        assert path.name in caplog.text
    assert RecordStore(store).summary().damaged == (str(path),)


@pytest.mark.parametrize("name", ["device", "task_key", "run_id"])
def test_a_file_whose_column_of_texts_has_lists_is_named(
    store: Path, name: str, caplog: pytest.LogCaptureFixture
):
    path = files.list_files(store)[0]
    table = pq.ParquetFile(path).read()
    lists = pa.array([[text] for text in table[name].to_pylist()])
    pq.write_table(table.set_column(table.schema.get_field_index(name), name, lists), path)
    settle(store)
    assert len(ids(store, {})) == 2 * NIGHTS - 1
    assert f"column {name}: expected texts, got list" in caplog.text


def test_an_index_is_not_believed_once_a_byte_of_it_changed(store: Path):
    """It is not synced to the disk: after a power cut it may hold anything."""
    ids(store, {})
    path = store / "v1" / files.INDEX
    whole, expected = path.read_bytes(), index._read(path).table
    rng = random.Random(5)
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] ^= rng.randrange(1, 256)
        path.write_bytes(damaged)
        found = index._read(path).table
        assert not found.num_rows or found.equals(expected)


def test_a_reader_leaves_an_index_that_is_newer_than_its_own(
    store: Path, monkeypatch: pytest.MonkeyPatch
):
    path, plain = store / "v1" / files.INDEX, index._inspected

    def meanwhile(*arguments: object) -> object:
        monkeypatch.setattr(index, "_inspected", plain)
        ids(store, {})
        written.append(path.stat().st_ino)
        return plain(*arguments)

    written = list[int]()
    monkeypatch.setattr(index, "_inspected", meanwhile)
    assert len(ids(store, {})) == 2 * NIGHTS
    assert written == [path.stat().st_ino]


def test_a_query_waits_for_no_disk(store: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "fsync", lambda _: pytest.fail("it waited"))
    assert len(ids(store, {})) == 2 * NIGHTS
    assert (store / "v1" / files.INDEX).is_file()


def test_a_store_that_cannot_be_written_is_read(store: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **__: object) -> object:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(index, "replacing", refuse)
    assert len(ids(store, {})) == 2 * NIGHTS
    assert not (store / "v1" / files.INDEX).exists()


def test_a_query_waits_for_no_lock(store: Path, monkeypatch: pytest.MonkeyPatch):
    """Also where the store is compacted, and its index written, by others meanwhile."""
    asked, plain = list[int](), fcntl.flock

    def asking(descriptor: int, operation: int) -> None:
        asked.append(operation)
        plain(descriptor, operation | fcntl.LOCK_NB)

    written = store / "v1" / files.INDEX
    with (
        exclusive(store / "v1" / ".compact.lock", "the store is compacted"),
        exclusive(written.with_suffix(".lock"), "the index is written"),
        monkeypatch.context() as patch,
    ):
        patch.setattr(fcntl, "flock", asking)
        assert len(ids(store, {})) == 2 * NIGHTS
    assert asked and all(operation & fcntl.LOCK_NB for operation in asked)
    assert not written.exists()


def test_joined_files_take_the_place_of_their_sources(
    store: Path, caplog: pytest.LogCaptureFixture
):
    measured_at(store, 94, "task-a", 0)
    expected = ids(store, {})
    settle(store)
    assert RecordStore(store).compact(today=date(2030, 1, 1)) == 1
    with caplog.at_level(logging.WARNING):
        assert ids(store, {}) == expected
    assert not caplog.records

"""RecordStore: an append-only folder of Parquet files, read as one table.

`append` is durable when it returns. Readers see every finished file, each record once, with the
columns of today's schema; a damaged file is skipped with a warning that names it, and a file of a
newer schema is refused, since skipping it would silently measure everything again. What is in
quarantine reads as wrong, whoever asks (see `quarantine`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from retune.core.errors import BusyError, InputError, refuse_newer
from retune.core.locking import exclusive
from retune.records import MEASURED, files, index
from retune.records.arrow import (
    FILE_SCHEMA,
    PARTITION_COLUMNS,
    READ_SCHEMA,
    RESTATED,
    as_frame,
    as_of_today,
    empty,
    schema_version,
    to_records,
    to_table,
)
from retune.records.quarantine import JUDGED, NAMING, as_wrong, quarantined
from retune.records.schema import BESIDE_SEARCH, SCHEMA_VERSION, TuningRecord

if TYPE_CHECKING:
    import pandas as pd

Filter = str | int | float | Sequence[str | None] | Sequence[int]
"""A value that a column equals, or several of which it equals one; None is a missing value."""

ALWAYS = frozenset(("record_id", "task_key", "status"))
"""Columns that every file of records has had since the first version."""

FILE = "file"
LOCATED = READ_SCHEMA.append(pa.field(FILE, pa.string()))
"""What is read of a file, with its own path."""

CONDITIONS = (
    *("constants", "place", "layout_in", "layout_out"),
    *("host", "compute_units", "affinity", "flush"),
)
"""Columns of `tasks` that say under which conditions, beside the device."""

_LOG = logging.getLogger(__name__)
_MEASURED = logging.getLogger(MEASURED)
_STALE_S = 3600.0
_READERS = max(2, pa.cpu_count())
_UNREADABLE = (
    *(pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError),
    *(OSError, UnicodeDecodeError),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Counts of a store's content."""

    files: int
    bytes: int
    records: int
    tasks: int
    runs: int
    statuses: Mapping[str, int]
    targets: Mapping[str, int]
    models: Mapping[str, int]
    damaged: tuple[str, ...]
    """Files that could not be read."""


class RecordStore:
    """The records below one folder. Any number of processes may append to and read it at once."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        self._damaged: dict[Path, str] = {}

    def append(self, records: Sequence[TuningRecord]) -> Path:
        """Append the records as a new file, on disk when the call returns.

        Raises: InputError if there are none, or if they are of several models or devices.
        """
        homes = {(record.target, record.model) for record in records}
        if len(homes) != 1:
            raise InputError(
                f"append: expected records of one device and one model, got {len(homes)} "
                f"{sorted(homes)}; append each group by itself"
            )
        first = records[0]
        day = first.measurement.timestamp.astimezone(UTC).date().isoformat()
        values = {"target": first.target, "model": first.model, "date": day}
        folder = files.partition_folder(self.root, values)
        path = folder / files.file_name("part", first.run_id)
        written = files.write_table(to_table(records), path)
        if _MEASURED.isEnabledFor(logging.DEBUG):
            for record in records:
                _MEASURED.debug("%s", record.line)
        return written

    def scan(
        self,
        filters: Mapping[str, Filter] | None = None,
        columns: Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """The matching records, each once, as arrow-typed columns.

        Raises: InputError for an unknown column; RecordError for a file of a newer schema.
        """
        return as_frame(self.table(filters, columns))

    def table(
        self,
        filters: Mapping[str, Filter] | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """The rows of `scan` as an arrow table; all columns are those of READ_SCHEMA."""
        wanted, given = list(columns or READ_SCHEMA.names), filters or {}
        _check_names([*wanted, *given])
        return self._table(given, wanted)

    def chosen(
        self,
        filters: Mapping[str, Filter],
        columns: Sequence[str],
        choose: Callable[[pa.Table], Sequence[int]],
    ) -> list[TuningRecord]:
        """The matching records that `choose` names by their rows, in its order.

        It is shown these columns of all that match; only what it names is read in full.
        """
        _check_names([*columns, *filters])
        table = self._table(filters, [*columns, "record_id", "task_key", FILE])
        numbers = choose(table)
        if not numbers:  # making an array of Python's values imports pandas
            return []
        rows = table.take(pa.array(numbers, pa.int64()))
        ids = rows.column("record_id").to_pylist()
        paths = sorted(set(rows.column(FILE).to_pylist()))
        read = [self._read(Path(path), {"record_id": ids}, READ_SCHEMA.names) for path in paths]
        tables = [part for part in read if part is not None]
        if len(tables) == len(paths):
            whole = _once(pa.concat_tables([empty(READ_SCHEMA), *tables]))
            records = to_records(as_wrong(whole, quarantined(self.root)))
        else:  # a file went away: its rows are in another
            tasks = rows.column("task_key").to_pylist()
            records = self.named(dict(zip(ids, tasks, strict=True))).values()
        found = {record.record_id: record for record in records}
        return [found[name] for name in ids if name in found]

    def _table(self, given: Mapping[str, Filter], wanted: list[str]) -> pa.Table:
        denied = quarantined(self.root)
        changed = (*RESTATED, *(JUDGED if denied else ()))
        late = {name: given[name] for name in given if name in changed}
        early = {name: given[name] for name in given if name not in late}
        judged = (*NAMING, *JUDGED) if denied else ()
        read = list(dict.fromkeys([*wanted, "record_id", *late, *judged]))
        table = _once(self._gathered(early, read))
        if denied:
            table = as_wrong(table, denied)
        return _where(table, late).select(wanted)

    def _gathered(self, given: Mapping[str, Filter], columns: list[str]) -> pa.Table:
        """The matching rows of every file that can be read; the others are named in the log.

        Where one has gone meanwhile, its rows are in another: only what is new is read then.
        """
        inside = {name: given[name] for name in given if name not in PARTITION_COLUMNS}
        tables, done = [empty(LOCATED).select(columns)], set[Path]()
        while True:
            found = self._matching(given)
            if not found.paths and found.complete:
                return pa.concat_tables(tables)
            left = [path for path in found.paths if path not in done]
            done.update(left)
            try:
                tables.append(_read_all(left, LOCATED, inside, columns))
                gone = False
            except _UNREADABLE:
                some = [self._read(path, inside, columns) for path in left]
                tables += [table for table in some if table is not None]
                gone = any(table is None for table in some)
            if found.complete and not gone:
                return pa.concat_tables(tables)

    def _read(self, path: Path, given: Mapping[str, Filter], columns: list[str]) -> pa.Table | None:
        """A file's matching rows, none if it is damaged; None if it is not there any more."""
        try:
            return _read_all([path], LOCATED, given, columns)
        except _UNREADABLE as error:
            if not os.path.lexists(path):
                return None
            self._report(path, error)
            return empty(LOCATED).select(columns)

    def _matching(self, given: Mapping[str, Filter]) -> index.Found:
        """The files in which rows can match."""
        choices = {name: _choices(value) for name, value in given.items()}
        texts = {
            name: [item for item in some if item is None or isinstance(item, str)]
            for name, some in choices.items()
        }
        partitions = {
            name: [item for item in texts[name] if item is not None]
            for name in PARTITION_COLUMNS
            if name in texts
        }
        wanted = {name: texts[name] for name in index.INDEXED if name in texts}
        return index.find(self.root, self._inspected, partitions, wanted)

    def _inspected(self, path: Path) -> Mapping[str, index.Values] | None:
        """What the index keeps of a file; None, and a line of the log, if it cannot be read."""
        found = _open_file(path)
        if isinstance(found, Mapping):
            return found
        if os.path.lexists(path):  # also a link to nothing
            self._report(path, found)
        return None

    def named(self, record_ids: Mapping[str, str]) -> dict[str, TuningRecord]:
        """The records of these ids that the store has, by id; each id is given with its task."""
        tasks = sorted(set(record_ids.values()))
        found = to_records(self.table({"task_key": tasks, "record_id": list(record_ids)}, None))
        return {item.record_id: item for item in found}

    def trials(self, run_id: str, task_key: str, device: str) -> list[TuningRecord]:
        """The task's trials in a run on that device fingerprint, in their order.

        Measurements that repeat finalists are not trials.
        """
        wanted: dict[str, Filter] = {"run_id": run_id, "task_key": task_key, "device": device}
        found = to_records(self.table(wanted, None))
        trials = [item for item in found if item.phase not in BESIDE_SEARCH]
        return sorted(trials, key=lambda item: item.trial)

    def tasks(self) -> pd.DataFrame:
        """One row for each task and its conditions: records, right ones, the best time in us."""
        identity = ["task_key", "device", "conditions"]
        about = ["task_name", *CONDITIONS, "flops"]
        columns = [*identity, *about, "status", "median_us", "timestamp"]
        table = self.table(None, columns)
        right = pc.cast(pc.equal(table.column("status"), "ok"), pa.int64())
        flops = pc.cast(table.column("flops"), pa.float64(), safe=False)
        table = table.set_column(columns.index("flops"), "flops", flops)
        grouped = table.append_column("right", right).group_by(identity)
        result = grouped.aggregate(
            [
                *((name, "min") for name in about),
                ("right", "count"),
                ("right", "sum"),
                ("median_us", "min"),
                ("timestamp", "max"),
            ]
        )
        names = {
            **{f"{name}_min": name for name in about},
            "right_count": "records",
            "right_sum": "ok",
            "median_us_min": "best_us",
            "timestamp_max": "last",
        }
        frame = as_frame(result).rename(columns=names)
        frame["best_gflops"] = frame["flops"] / frame["best_us"] / 1e3
        shown = ["task_name", "records", "ok", "best_us", "best_gflops", *CONDITIONS]
        frame = frame.reindex(columns=[*shown, *identity, "flops", "last"])
        return frame.sort_values(by=["task_name", "device"], ignore_index=True)

    def summary(self) -> Summary:
        """Counts of what the store holds."""
        table = self.table(None, ["status", "target", "model", "task_key", "run_id"])
        sizes = files.sizes(self.root)
        return Summary(
            files=len(sizes),
            bytes=sum(sizes),
            records=table.num_rows,
            tasks=len(pc.unique(table.column("task_key"))),
            runs=len(pc.unique(table.column("run_id"))),
            statuses=_counts(table.column("status")),
            targets=_counts(table.column("target")),
            models=_counts(table.column("model")),
            damaged=tuple(sorted(str(path) for path in self._damaged)),
        )

    def compact(self, today: date | None = None) -> int:
        """Joins the files of each finished day into one; returns how many files went away.

        Today's files are left alone, and so are those with columns that this version does not
        know. A crash in between leaves duplicates, which readers drop. If another process is at
        it, nothing happens.
        """
        current = (today or datetime.now(UTC).date()).isoformat()
        lock = self.root / files.ROOT_FOLDER / ".compact.lock"
        try:
            with exclusive(lock, f"{self.root} is being compacted", wait=False):
                return self._compact(current)
        except BusyError as error:
            _LOG.info("%s", error)
            return 0

    def _compact(self, current: str) -> int:
        files.remove_stale(self.root, _STALE_S)
        groups: dict[Path, list[Path]] = {}
        for path in self._matching({}).paths:
            if path.parent.name != f"date={current}":
                groups.setdefault(path.parent, []).append(path)
        several = ((folder, paths) for folder, paths in groups.items() if len(paths) > 1)
        return sum(self._joined(folder, paths) for folder, paths in several)

    def _joined(self, folder: Path, paths: list[Path]) -> int:
        """The files are one; how many less that is. What cannot be read stays where it is."""
        known = [path for path in paths if self._is_known(path)]
        if len(known) < 2:
            return 0
        try:
            return self._join(folder, known) - 1
        except _UNREADABLE:
            sound = [path for path in known if self._is_readable(path)]
            return self._join(folder, sound) - 1 if len(sound) > 1 else 0

    def _is_known(self, path: Path) -> bool:
        """Whether the file has no column that this version would lose."""
        return set(pq.read_schema(path).names) <= set(FILE_SCHEMA.names)

    def _is_readable(self, path: Path) -> bool:
        try:
            _read_all([path], FILE_SCHEMA, {})
        except _UNREADABLE as error:
            self._report(path, error)
            return False
        return True

    def _join(self, folder: Path, paths: list[Path]) -> int:
        table = _once(_read_all(paths, FILE_SCHEMA, {}))
        table = table.sort_by([("task_key", "ascending"), ("timestamp", "ascending")])
        sources = ",".join(path.name for path in paths).encode()
        metadata = {**(FILE_SCHEMA.metadata or {}), b"retune.sources": sources}
        joined = table.replace_schema_metadata(metadata)
        files.write_table(joined, folder / files.file_name("cpt", "compact"))
        for path in paths:
            path.unlink(missing_ok=True)
        return len(paths)

    def _report(self, path: Path, error: Exception) -> None:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        self._damaged[path] = reason
        _warn_of(path, reason)


@cache
def _warn_of(path: Path, reason: str) -> None:
    """Once in a process, however many stages open the store."""
    _LOG.warning(
        "record file %s cannot be read and is skipped (%s); restore it from a backup, or "
        "delete it to silence this warning",
        path,
        reason,
    )


def _open_file(path: Path) -> Mapping[str, index.Values] | Exception:
    """The values of its indexed columns, or why they cannot be read.

    Raises: RecordError if it is of a newer version.
    """
    files.partition_values(path)
    try:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            version = schema_version(file.metadata.metadata)
            absent = sorted(ALWAYS - set(file.schema_arrow.names))
            if absent:
                return pa.ArrowInvalid(f"it is not a file of records: it has no column {absent[0]}")
            otherwise = ", or point --records at another store"
            refuse_newer(str(path), "records of version", version, SCHEMA_VERSION, otherwise)
            return index.values_of(file)
    except _UNREADABLE as error:
        return error


@lru_cache(maxsize=1 << 12)
def _stated_by(folder: Path) -> Mapping[str, str]:
    """The column values that a folder's names state for all rows in it. Raises: RecordError, as
    `partition_values`."""
    return files.partition_values(folder)


def _read_all(
    paths: list[Path],
    schema: pa.Schema,
    given: Mapping[str, Filter],
    columns: list[str] | None = None,
) -> pa.Table:
    """The matching rows of these files in the schema's columns, or some of them.

    Files are read one by one, each by one thread: most are small, and opening one costs more than
    reading it. `pyarrow.dataset` takes twice the processor time for that.
    """
    names = columns or schema.names
    wanted = {name: _values(name, value) for name, value in given.items()}
    with ThreadPoolExecutor(_READERS) as pool:
        found = pool.map(lambda path: _read_file(path, schema, names, wanted), paths)
        table = pa.concat_tables([empty(schema).select(names), *found])
    table.validate(full=True)  # text of somebody else's file may be no UTF-8
    return as_of_today(table)


def _read_file(
    path: Path, schema: pa.Schema, names: Sequence[str], wanted: Mapping[str, pa.Array]
) -> pa.Table:
    """A file's rows with one of the values in each of the `wanted` columns."""
    stated = {**_stated_by(path.parent), FILE: str(path)}
    fields = [schema.field(name) for name in {**dict.fromkeys(names), **wanted}]
    with pq.ParquetFile(path, pre_buffer=False) as file:
        groups = [n for n in range(file.num_row_groups) if _may_match(file.metadata, n, wanted)]
        rows = sum(file.metadata.row_group(number).num_rows for number in groups)
        held = [field.name for field in fields if field.name not in stated]
        table = file.read_row_groups(groups, held, use_threads=False)  # those that it has
    arrays = [
        pa.repeat(stated[field.name], rows) if field.name in stated else _column(table, field, rows)
        for field in fields
    ]
    table = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
    for name, values in wanted.items():
        table = table.filter(pc.is_in(table.column(name), value_set=values))
    return table.select(names)


def _may_match(file: pq.FileMetaData, number: int, wanted: Mapping[str, pa.Array]) -> bool:
    """Whether rows of that row group can have the values, by its column statistics."""
    if file.num_row_groups == 1:  # the index has chosen the file
        return True
    group = file.row_group(number)
    for column in map(group.column, range(group.num_columns)):
        values, found = wanted.get(column.path_in_schema), column.statistics
        if values is None or found is None or not found.has_min_max:
            continue
        kinds = {type(found.min), *map(type, some := values.to_pylist())}
        if len(kinds) == 1 and not any(found.min <= value <= found.max for value in some):
            return False
    return True


def _column(table: pa.Table, field: pa.Field, rows: int) -> pa.ChunkedArray | pa.Array:
    """The field's column in its type; nulls where an earlier version had none."""
    found = table.schema.get_all_field_indices(field.name)
    if len(found) > 1:
        raise pa.ArrowInvalid(f"it has {len(found)} columns {field.name}")
    if not found:
        return pa.nulls(rows, field.type)
    column = table.column(found[0])
    return column if column.type == field.type else column.cast(field.type)


def _once(table: pa.Table) -> pa.Table:
    """The table with each record_id once, the first of them."""
    ids = table.column("record_id")
    if pc.count_distinct(ids).as_py() == table.num_rows:
        return table
    return table.filter(pa.array(~ids.to_pandas().duplicated().to_numpy()))


def _where(table: pa.Table, given: Mapping[str, Filter]) -> pa.Table:
    """The rows that match."""
    for name, value in given.items():
        table = table.filter(pc.is_in(table.column(name), value_set=_values(name, value)))
    return table


def _values(name: str, value: Filter) -> pa.Array:
    """The values that a column is compared with."""
    return pa.array(_choices(value), READ_SCHEMA.field(name).type)


def _choices(value: Filter) -> list[str | int | float | None]:
    return [value] if isinstance(value, str | int | float) else list(value)


def _check_names(names: Sequence[str]) -> None:
    unknown = [name for name in names if name not in READ_SCHEMA.names]
    if unknown:
        raise InputError(
            f"records have no column {', '.join(map(repr, unknown))}; "
            f"there are: {', '.join(READ_SCHEMA.names)}"
        )


def _counts(column: pa.ChunkedArray) -> dict[str, int]:
    pairs = [(item["values"], item["counts"]) for item in pc.value_counts(column).to_pylist()]
    return dict(sorted(pairs, key=lambda pair: (-pair[1], pair[0])))

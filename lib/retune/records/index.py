"""The index of a store: which values its files hold, so that a query opens few of them.

Read `find`. Files are the truth and the index is a cache of what was read of them: it may be
deleted at any time, a damaged one is made again, and a file that it does not know is opened. A file
counts as known while its size and its time of modification are those of the index. A folder is not
even listed while its time of modification is, and was seen well after the last change.

A query waits for no disk and no lock because of the index: pages have checksums instead of being
durable, one process writes it while the others go on, and a process parses each version once.
"""

import contextlib
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from retune.core.errors import BusyError, InputError
from retune.core.keys import FileVersion, file_version
from retune.core.locking import exclusive
from retune.core.replacing import replacing
from retune.records import files
from retune.records.arrow import empty

INDEXED = ("task_key", "run_id", "device", "conditions", "feature_set")
"""Columns whose values are kept for each file."""
MOST_VALUES = 256
"""Of a column in a file; a file with more is opened in any case."""
NEW_FILES = 16
"""A reader that had to open or list as many files and folders writes the index anew."""
SETTLED_NS = 2_000_000_000
"""Nanoseconds after which two changes of a folder have different times on every file system."""

Values = tuple[str | None, ...] | None
"""The values of a column in a file; None: not known."""

_OPENERS = 4
_UNREADABLE = (pa.ArrowException, OSError, ValueError)
_SCHEMA = pa.schema(
    [
        ("folder", pa.string()),
        ("folder_ns", pa.int64()),
        ("name", pa.string()),
        ("bytes", pa.int64()),
        ("changed_ns", pa.int64()),
        ("sound", pa.bool_()),
        *((name, pa.list_(pa.string())) for name in INDEXED),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The index's entry of a file."""

    folder: str
    """Below the root of all partitions."""
    name: str
    bytes: int
    changed_ns: int
    values: Mapping[str, Values] | None
    """By indexed column; None: the file cannot be read, and is tried again each time."""

    @property
    def key(self) -> tuple[str, str]:
        """The file's key in its store."""
        return self.folder, self.name

    def may_match(self, wanted: Mapping[str, Collection[str | None]]) -> bool:
        """Whether it can be read, and rows of it can have a wanted value in each column."""
        if self.values is None:
            return False
        pairs = ((self.values[name], wanted[name]) for name in wanted)
        return all(held is None or not set(held).isdisjoint(some) for held, some in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Index:
    """The index as it is on the disk."""

    version: FileVersion
    """Which file it was read from; () if there was none."""
    table: pa.Table
    folders: Mapping[str, tuple[int, int, int]]
    """Time of modification, or 0 where it says nothing, and its rows: the first and the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The files that one look at the folders of a store found."""

    paths: list[Path]
    """Readable files that may hold matching rows, in a fixed order."""
    complete: bool
    """False if a file went away meanwhile: its rows are in another, which a fresh look finds."""


Inspect = Callable[[Path], Mapping[str, Values] | None]
"""The values of a file's indexed columns; None if it cannot be read, or is not there any more."""


def find(
    root: Path,
    inspect: Inspect,
    partitions: Mapping[str, Collection[str]],
    wanted: Mapping[str, Collection[str | None]],
) -> Found:
    """The files below the store's `root` that can hold rows with one of the values in each column.

    `partitions` are those of the folders' names, `wanted` those of indexed columns. New files are
    read by `inspect`.
    """
    top, settled_ns = root / files.ROOT_FOLDER, time.time_ns() - SETTLED_NS
    index = _read(top / files.INDEX)
    listed, looked = np.zeros(index.table.num_rows, bool), dict[str, int]()
    for folder, changed_ns in files.folders(top, partitions):
        seen_ns, first, end = index.folders.get(folder, (-1, 0, 0))
        if seen_ns == changed_ns:
            listed[first:end] = True
        else:
            looked[folder] = changed_ns
    known = _known(index, looked)
    entries, complete = _inspected(top, looked, known, inspect)
    times = {folder: ns if ns < settled_ns else 0 for folder, ns in looked.items()}
    opened = sum(entry.key not in known for entry in entries)
    if complete and opened + sum(map(bool, times.values())) >= NEW_FILES:
        _write(top, index, entries, times)
    rows = np.flatnonzero(listed & _matching(index.table, wanted))
    found = _paths(index, rows, top) if rows.size else []
    found += [top.joinpath(*entry.key) for entry in entries if entry.may_match(wanted)]
    return Found(paths=sorted(found), complete=complete)


def _paths(index: _Index, rows: np.ndarray, top: Path) -> list[Path]:
    chosen = index.table.select(["folder", "name"]).take(pa.array(rows))
    return [top / row["folder"] / row["name"] for row in chosen.to_pylist()]


def values_of(file: pq.ParquetFile) -> dict[str, Values]:
    """The values of its indexed columns: from statistics, or read where these do not tell.

    Raises: pa.ArrowTypeError if one of these columns is a list or has fields.
    """
    metadata, leaves, held = file.metadata, file.schema, file.schema_arrow
    paths = [leaves.column(number).path for number in range(len(leaves))]
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    stated: dict[str, Values] = {}
    for name in INDEXED:
        if name not in held.names:
            stated[name] = (None,)
            continue
        if name not in paths:
            found = held.field(name).type
            raise pa.ArrowTypeError(f"column {name}: expected texts, got {found}")
        position = paths.index(name)
        single = [_single(group.column(position)) for group in groups]
        if all(single):
            stated[name] = tuple({value for (value,) in filter(None, single)})
        else:
            found = pc.unique(file.read([name], use_threads=False).column(0)).to_pylist()
            stated[name] = tuple(found) if len(found) <= MOST_VALUES else None
    return stated


def _single(column: pq.ColumnChunkMetaData) -> tuple[str | None] | None:
    """The only value of a column of a row group, if its statistics say that there is one."""
    statistics = column.statistics
    if statistics is None or not statistics.has_null_count:
        return None
    if statistics.null_count == column.num_values:
        return (None,)
    alike = statistics.has_min_max and statistics.min == statistics.max
    whole = statistics.null_count == 0 and isinstance(statistics.min, str)
    return (statistics.min,) if alike and whole else None


def _read(path: Path) -> _Index:
    """The index; an empty one if there is none that can be read."""
    return _parsed(path, file_version(path))


@lru_cache(maxsize=2)
def _parsed(path: Path, version: FileVersion) -> _Index:
    """The index in that version, or in a later one that has replaced it since."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read()
        table.validate(full=True)
    except _UNREADABLE:
        table = empty(_SCHEMA)
    if table.schema != _SCHEMA:
        table = empty(_SCHEMA)
    return _index(table, version)


def _index(table: pa.Table, version: FileVersion = ()) -> _Index:
    if not table.num_rows:
        return _Index(version=version, table=table, folders={})
    codes = table.column("folder").combine_chunks().dictionary_encode()
    order = codes.indices.to_numpy(zero_copy_only=False)
    starts = [0, *(np.flatnonzero(np.diff(order)) + 1).tolist(), len(order)] if len(order) else [0]
    names, times = codes.dictionary.to_pylist(), table.column("folder_ns").to_numpy()
    rows = zip(
        order[starts[:-1]].tolist(), times[starts[:-1]].tolist(), pairwise(starts), strict=True
    )
    folders = {names[code]: (changed_ns, *span) for code, changed_ns, span in rows}
    return _Index(version=version, table=table, folders=folders)


def _matching(table: pa.Table, wanted: Mapping[str, Collection[str | None]]) -> np.ndarray:
    """Whether each file may hold matching rows; unreadable ones may not."""
    if not table.num_rows:  # making an array of Python's values imports pandas
        return np.zeros(0, bool)
    result = table.column("sound").to_numpy().copy()
    for name, values in wanted.items():
        lists = table.column(name).combine_chunks()
        hits = pc.is_in(pc.list_flatten(lists), value_set=pa.array(list(values), pa.string()))
        matches = pc.is_null(lists).to_numpy(zero_copy_only=False).copy()
        owners = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)
        matches[owners[hits.to_numpy(zero_copy_only=False)]] = True
        result &= matches
    return result


def _known(index: _Index, folders: Collection[str]) -> dict[tuple[str, str], Entry]:
    """The index's entries of the readable files in these folders."""
    known: dict[tuple[str, str], Entry] = {}
    for folder in folders & index.folders.keys():
        _, first, end = index.folders[folder]
        for row in index.table.slice(first, end - first).to_pylist():
            if row["sound"]:
                values = {n: None if row[n] is None else tuple(row[n]) for n in INDEXED}
                entry = Entry(
                    folder=folder,
                    name=row["name"],
                    bytes=row["bytes"],
                    changed_ns=row["changed_ns"],
                    values=values,
                )
                known[entry.key] = entry
    return known


def _inspected(
    top: Path, folders: Collection[str], known: Mapping[tuple[str, str], Entry], inspect: Inspect
) -> tuple[list[Entry], bool]:
    """All files in the folders, and whether none went away meanwhile; those that changed since they
    were known are opened."""
    listed = [(folder, *file) for folder in folders for file in files.listed(top / folder)]
    entries, new = list[Entry](), list[Entry]()
    for folder, name, size, changed_ns in listed:
        entry = known.get((folder, name))
        if entry and (entry.bytes, entry.changed_ns) == (size, changed_ns):
            entries.append(entry)
        else:
            new.append(
                Entry(folder=folder, name=name, bytes=size, changed_ns=changed_ns, values=None)
            )
    complete = True
    if not new:
        return entries, complete
    with ThreadPoolExecutor(_OPENERS) as pool:
        paths = [top.joinpath(*entry.key) for entry in new]
        for entry, path, values in zip(new, paths, pool.map(inspect, paths), strict=True):
            if values is None and not os.path.lexists(path):  # a link to nothing stays damaged
                complete = False
            else:
                entries.append(replace(entry, values=values))
    return entries, complete


def _write(top: Path, old: _Index, entries: Sequence[Entry], folders: Mapping[str, int]) -> None:
    """Write these folders' entries and times to the index, beside its entries of others.

    Not if another process writes it or has written it since, or where nothing may be written: the
    next reader tries again.
    """
    path, doing = top / files.INDEX, "the index is being written"
    with (
        contextlib.suppress(BusyError, InputError, OSError),
        exclusive(path.with_suffix(".lock"), doing, wait=False),
    ):
        if file_version(path) == old.version:
            table = _merged(old, entries, folders)
            with replacing(path, durable=False) as stream:
                pq.write_table(table, stream, compression="zstd", write_page_checksum=True)


def _merged(old: _Index, entries: Sequence[Entry], folders: Mapping[str, int]) -> pa.Table:
    """The index with these entries instead of its former ones of their folders.

    A folder with a file that cannot be read has no time, so every reader tries and names that file.
    """
    damaged = {entry.folder for entry in entries if entry.values is None}
    kept = old.table.filter(
        pc.invert(pc.is_in(old.table.column("folder"), pa.array(folders, pa.string())))
    )
    about: dict[str, list[object]] = {
        "folder": [entry.folder for entry in entries],
        "folder_ns": [0 if e.folder in damaged else folders[e.folder] for e in entries],
        "name": [entry.name for entry in entries],
        "bytes": [entry.bytes for entry in entries],
        "changed_ns": [entry.changed_ns for entry in entries],
        "sound": [entry.values is not None for entry in entries],
    }
    for name in INDEXED:
        about[name] = [entry.values and entry.values[name] for entry in entries]
    fresh = pa.table(about, schema=_SCHEMA)
    return pa.concat_tables([kept, fresh]).sort_by([("folder", "ascending")])

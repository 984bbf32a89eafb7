"""Paths of record files, and writing one so that it is there in full or not at all."""

import contextlib
import os
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq

from retune.core.errors import RecordError
from retune.core.replacing import replacing
from retune.records.arrow import PARTITION_COLUMNS

ROOT_FOLDER = "v1"
INDEX = ".index.parquet"
"""In the root folder, see `retune.records.index`."""
ROW_GROUP_ROWS = 8 * 1024
"""Rows of a task lie together in joined files: a query reads the groups that can hold them."""


def partition_folder(root: Path, values: Mapping[str, str]) -> Path:
    """`root/v1/target=.../model=.../date=...`; values are quoted, so that any text is one name."""
    folder = root / ROOT_FOLDER
    for name in PARTITION_COLUMNS:
        folder /= f"{name}={_quoted(values[name])}"
    return folder


def partition_values(path: Path) -> dict[str, str]:
    """The partition columns of a file, from its folders. Raises: RecordError if one is missing."""
    pairs: dict[str, str] = {}
    for part in path.parts:
        name, equals, value = part.partition("=")
        if equals:
            pairs[name] = value
    missing = [name for name in PARTITION_COLUMNS if name not in pairs]
    if missing:
        raise RecordError(
            f"{path}: lies outside target=/model=/date= folders (no {', '.join(missing)}); "
            "move it where `RecordStore.append` would have put it"
        )
    return {name: unquote(pairs[name]) for name in PARTITION_COLUMNS}


def list_files(root: Path) -> list[Path]:
    """Every finished record file below `root`, in a fixed order."""
    return sorted(
        path
        for path in (root / ROOT_FOLDER).glob("*=*/*=*/*=*/*.parquet")
        if not path.name.startswith(".")
    )


def folders(top: Path, partitions: Mapping[str, Collection[str]]) -> Iterator[tuple[str, int]]:
    """Every folder of record files below `top`, as its path from there on, and when it changed.

    Only those with one of the values of each partition column; times are in nanoseconds.
    """
    wanted = [
        {f"{name}={_quoted(value)}" for value in partitions[name]} if name in partitions else None
        for name in PARTITION_COLUMNS
    ]
    yield from _folders(str(top), "", wanted)


def _folders(path: str, below: str, wanted: Sequence[set[str] | None]) -> Iterator[tuple[str, int]]:
    names, *rest = wanted
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(path) as found:
        for entry in found:
            if "=" not in entry.name or (names is not None and entry.name not in names):
                continue
            if rest:
                yield from _folders(entry.path, f"{below}{entry.name}/", rest)
            else:
                yield f"{below}{entry.name}", entry.stat().st_mtime_ns


def listed(folder: Path) -> list[tuple[str, int, int]]:
    """The finished record files in a folder: name, bytes, and when it changed in nanoseconds.

    A link to nothing has no bytes.
    """
    result: list[tuple[str, int, int]] = []
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as found:
        for entry in found:
            if entry.name.endswith(".parquet") and not entry.name.startswith("."):
                size, changed_ns = 0, 0
                with contextlib.suppress(FileNotFoundError):
                    stat = entry.stat()
                    size, changed_ns = stat.st_size, stat.st_mtime_ns
                result.append((entry.name, size, changed_ns))
    return result


def sizes(root: Path) -> list[int]:
    """Bytes of every finished record file; files that are deleted meanwhile are left out."""
    found: list[int] = []
    for path in list_files(root):
        with contextlib.suppress(FileNotFoundError):
            found.append(path.stat().st_size)
    return found


def file_name(kind: str, run_id: str) -> str:
    """A name that no other writer picks; names of one process sort by time."""
    run = "".join(letter for letter in run_id if letter.isalnum())[:8] or "none"
    return f"{kind}-{time.time_ns()}-{run}-{uuid.uuid4().hex[:8]}.parquet"


def write_table(table: pa.Table, path: Path) -> Path:
    """`path` holds the table and survives a power cut; at no time does it hold part of it."""
    with replacing(path) as stream:
        pq.write_table(table, stream, compression="zstd", row_group_size=ROW_GROUP_ROWS)
    return path


def remove_stale(root: Path, older_than_s: float) -> int:
    """Deletes what killed writers left behind; returns how many files.

    Files of live writers go away under other names at any time.
    """
    oldest, removed = time.time() - older_than_s, 0
    for path in list((root / ROOT_FOLDER).glob("*=*/*=*/*=*/.*.tmp")):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < oldest:
                path.unlink()
                removed += 1
    return removed


def _quoted(value: str) -> str:
    """Safe as one folder name; a name of dots only would mean another folder."""
    text = quote(value, safe="")
    return text.replace(".", "%2E") if not text.strip(".") else text

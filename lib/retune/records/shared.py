"""Shared records: a team's, and those that come with the package.

Read `shared_records`. They are suggestions: a search measures them before anything else and keeps
what is right and fast here. What the user's own store has goes before a team's, and that before
the package's.
"""

import logging
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal

from retune.core.config import knob
from retune.core.errors import RetuneError
from retune.core.keys import FileVersion, cached_by_file, file_version
from retune.records.distilled import TravellingRecords, read_records
from retune.records.schema import TuningRecord
from retune.records.store import RecordStore

Level = Literal["user", "team", "package"]
"""Who measured, in the order in which they are asked."""
SHARED: tuple[Level, ...] = ("team", "package")
"""The levels of others than the user."""

SHIPPED = Path(__file__).parent / "shipped"
"""Files that come with the package; `benchmarks.ship_records` writes them."""
_NONE = "none"
_PATTERNS = ("*.jsonl", "*.jsonl.gz")
_LOG = logging.getLogger(__name__)


def shared_records(level: Level) -> TravellingRecords:
    """The records of that level; none of the user, whose records are in a store.

    A team's are those of the file, or of the folder's files (`*.jsonl`, `*.jsonl.gz`), that
    RETUNE_TEAM_RECORDS names; with RETUNE_SHIPPED_RECORDS other files replace the
    package's. A file that cannot be read is left out with a warning that names it.
    """
    root = _root(level)
    if root is None:
        return TravellingRecords()
    return _joined(tuple((path, file_version(path)) for path in _files(root)))


def records_named(store: RecordStore, record_ids: Mapping[str, str]) -> dict[str, TuningRecord]:
    """The records of these ids that the store or a shared level has, by id; see
    `RecordStore.named`."""
    found = store.named(record_ids)
    for level in SHARED if record_ids.keys() - found.keys() else ():
        known = {record.record_id: record for record in shared_records(level).records}
        found |= {key: known[key] for key in record_ids if key in known and key not in found}
    return found


def _root(level: Level) -> Path | None:
    if level == "user":
        return None
    if level == "team":
        named = knob("RETUNE_TEAM_RECORDS")
        return Path(named) if named else None
    named = knob("RETUNE_SHIPPED_RECORDS")
    return None if named == _NONE else Path(named or SHIPPED)


def _files(root: Path) -> Iterator[Path]:
    if root.is_dir():
        yield from sorted(path for pattern in _PATTERNS for path in root.glob(pattern))
    elif root != SHIPPED:
        yield root


@lru_cache(maxsize=16)
def _joined(files: tuple[tuple[Path, FileVersion], ...]) -> TravellingRecords:
    """The content of all files of these versions."""
    found = [_of(path) for path, _ in files]
    return TravellingRecords(
        records=tuple(record for one in found for record in one.records),
        devices={key: spec for one in found for key, spec in one.devices.items()},
    )


@cached_by_file(16)
def _of(path: Path) -> TravellingRecords:
    try:
        return read_records(path)
    except RetuneError as error:
        _LOG.warning("shared records are left out: %s", error)
        return TravellingRecords()

"""Records that others have measured: those of a team, and those that come with the package.

Read `shared_records`. They are suggestions: a search measures them before anything else and keeps
what is right and fast here. What the user's own store has goes before a team's, and that before
the package's.
"""

import logging
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Literal

from retune.core.config import knob
from retune.core.errors import RetuneError
from retune.records.distilled import read_records
from retune.records.schema import TuningRecord

Level = Literal["user", "team", "package"]
"""Who measured, in the order in which they are asked."""

_SHIPPED = Path(__file__).parent / "shipped"
"""Files that come with the package."""
_LOG = logging.getLogger(__name__)


def shared_records(level: Level) -> tuple[TuningRecord, ...]:
    """The records of that level; none of the user, whose records are in a store.

    A team's are those of the file, or of the folder's files (`*.jsonl`), that RETUNE_TEAM_RECORDS
    names. A file that cannot be read is left out with a warning that names it.
    """
    if level == "user":
        return ()
    named = knob("RETUNE_TEAM_RECORDS")
    root = _SHIPPED if level == "package" else Path(named) if named else None
    if root is None:
        return ()
    return tuple(record for path in _files(root) for record in _of(path, _version(path)))


def _files(root: Path) -> Iterator[Path]:
    if root.is_dir():
        yield from sorted(root.glob("*.jsonl"))
    elif root != _SHIPPED:
        yield root


def _version(path: Path) -> tuple[int, ...]:
    try:
        facts = path.stat()
    except OSError:
        return ()  # reading it says what is wrong
    return facts.st_size, facts.st_mtime_ns


@lru_cache(maxsize=16)
def _of(path: Path, version: tuple[int, ...]) -> tuple[TuningRecord, ...]:
    del version
    try:
        return read_records(path)
    except RetuneError as error:
        _LOG.warning("shared records are left out: %s", error)
        return ()

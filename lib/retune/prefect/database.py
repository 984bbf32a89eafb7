"""The database of a private Prefect server, made once for each user and release of Prefect.

Prefect makes one by running all of its migrations, which takes longer than the rest of a server's
start. Read `provide_database` and `keep_database`.
"""

import logging
import sqlite3
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

from retune.core.locking import own_file
from retune.core.replacing import replacing

_LOG = logging.getLogger(__name__)


def provide_database(path: Path) -> bool:
    """Whether there is a database at the path: its own, or else a copy of the one that is kept."""
    if path.exists():
        return True
    try:
        content = _kept().read_bytes()
        with replacing(path) as stream:
            stream.write(content)
    except OSError:
        return False  # Prefect makes it
    return True


def keep_database(path: Path) -> None:
    """A copy of a new server's database, in which no run is yet, is kept for other folders."""
    try:
        with (
            closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as source,
            closing(sqlite3.connect(":memory:")) as copy,
        ):
            source.backup(copy)
            content = copy.serialize()
        with replacing(_kept()) as stream:
            stream.write(content)
    except (OSError, sqlite3.Error) as error:
        _LOG.debug("%s cannot be kept for other folders: %s", path, error)


def _kept() -> Path:
    return own_file("prefect", ".db", version("prefect"))

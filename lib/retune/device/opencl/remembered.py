"""Lists of names that take the code generator to find, kept for this machine and this code.

Read `remembered`. A process that only runs bundles opens a device without importing what makes
kernels: 0.2 s of its start.
"""

import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

from retune.core.keys import content_key
from retune.core.locking import own_file
from retune.core.replacing import replacing

_LOG = logging.getLogger(__name__)
_PACKAGE = Path(__file__).parents[2]
_REGISTRY = "retune.intrinsics"
"""Who imported it may have registered more than the package has."""


def remembered(kind: str, make: Callable[[], Iterable[str]], *identity: object) -> tuple[str, ...]:
    """What `make` returns; a later process of the same code reads it instead of making it.

    One file of each identity serves an installation: what other code left there is replaced.
    """
    if _REGISTRY in sys.modules:
        return tuple(make())
    return kept(kind, make, *identity, str(_PACKAGE), state=_code())


def kept(
    kind: str, make: Callable[[], Iterable[str]], *identity: object, state: str = ""
) -> tuple[str, ...]:
    """The names in the user's file of that identity, made again where it is of another state."""
    path = own_file(kind, ".json", *identity)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["state"] == state:
            return tuple(map(str, found["names"]))
    except (OSError, ValueError, TypeError, KeyError):
        pass  # there is none, or a damaged one
    names = tuple(make())
    try:
        with replacing(path) as stream:
            stream.write(json.dumps({"state": state, "names": names}).encode())
    except OSError as error:
        _LOG.debug("%s cannot be kept: %s", path, error)
    return names


@cache
def _code() -> str:
    """Equal in processes between whose first calls no file of the package has changed."""
    return content_key(repr(sorted(_files(_PACKAGE))))


def _files(folder: Path | str) -> Iterator[tuple[str, int, int]]:
    """Path, size and time of the last change of each source in the folder and below it."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path)
            elif entry.name.endswith(".py"):
                found = entry.stat()
                yield entry.path, found.st_size, found.st_mtime_ns

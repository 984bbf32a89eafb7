"""Files that are there in full or not at all, whatever happens to the process or the machine."""

import contextlib
import os
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4


@contextlib.contextmanager
def replacing(path: Path) -> Generator[BinaryIO, None, None]:
    """A stream whose bytes are the content of `path`, durably, once the context ends well.

    Until then, and if the context raises, `path` is what it was. Its folder is made. A process that
    is killed leaves a file behind whose name is `.NAME.*.tmp`.
    """
    _make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{uuid4().hex[:8]}.tmp")
    try:
        with temporary.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def _make_folder(folder: Path) -> None:
    """The folder is there; each new entry is durable in its parent."""
    missing: list[Path] = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for new in reversed(missing):
        new.mkdir(exist_ok=True)
        sync(new.parent)


def sync(path: Path) -> None:
    """The content of that file, or the names in that folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

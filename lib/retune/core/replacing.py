"""Files and folders that are there whole or not at all, whatever happens to process or machine."""

import contextlib
import os
import shutil
from collections.abc import Generator
from glob import escape
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
    temporary = _beside(path)
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


@contextlib.contextmanager
def whole_folder(path: Path, *, replace: bool = True) -> Generator[Path, None, None]:
    """A new folder that is `path`, durably with all that is in it, once the context ends well.

    Until then, and if the context raises or removes the new folder, `path` is what it was. What was
    there is replaced; without `replace`, OSError is raised at the end if anything was. A process
    that is killed leaves folders behind, see `remove_leftovers`.
    """
    _make_folder(path.parent)
    fresh = _beside(path)
    fresh.mkdir()
    try:
        yield fresh
        if fresh.exists():
            for part in (*fresh.rglob("*"), fresh):
                sync(part)
            _publish(fresh, path, replace=replace)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def remove_leftovers(path: Path) -> None:
    """No folder is left of processes that were killed while they made the folder `path`.

    Their names are `.NAME.*.tmp` and `.NAME.*.old`. The caller sees to it that nobody makes it now.
    """
    for ending in ("tmp", "old"):
        for left in path.parent.glob(f".{escape(path.name)}.*.{ending}"):
            shutil.rmtree(left, ignore_errors=True)


def _beside(path: Path) -> Path:
    """A new name in the same folder."""
    return path.with_name(f".{path.name}.{uuid4().hex[:8]}.tmp")


def _publish(fresh: Path, path: Path, *, replace: bool) -> None:
    """Renames `fresh` to `path`; what was there is moved aside first, and removed at the end."""
    aside = fresh.with_suffix(".old")
    if replace and path.exists():
        path.rename(aside)
    try:
        fresh.rename(path)
    except OSError:
        if aside.exists():
            aside.rename(path)
        raise
    sync(path.parent)
    shutil.rmtree(aside, ignore_errors=True)


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

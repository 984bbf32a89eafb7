"""Files and folders that are there whole or not at all, whatever happens to process or machine."""

import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Generator
from glob import escape
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

_HERE, _EXCHANGE = -100, 2
"""AT_FDCWD and RENAME_EXCHANGE. Source: linux/fcntl.h, linux/fs.h."""
_NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)
"""What a kernel or file system says that cannot exchange names."""


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = True) -> Generator[BinaryIO, None, None]:
    """A stream whose bytes are the content of `path`, durably, once the context ends well.

    Until then, and if the context raises, `path` is what it was. Its folder is made. A process that
    is killed leaves a file behind whose name is `.NAME.*.tmp`. What is not `durable` waits for no
    disk: a power cut may leave any bytes, so its reader must know a damaged file.
    """
    _make_folder(path.parent)
    temporary = _beside(path)
    try:
        with _naming(path), temporary.open("wb") as stream:
            yield stream
            stream.flush()
            if durable:
                os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync(path.parent)


def link_or_copy(source: str | Path, copy: str | Path) -> None:
    """The file under a second name; its content once more where that is not possible.

    For files that are replaced and never changed in place: both names keep their content.
    """
    try:
        os.link(source, copy)
    except OSError:
        shutil.copy2(source, copy)


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
        with _naming(path):
            yield fresh
        if fresh.exists():
            for part in (*fresh.rglob("*"), fresh):
                sync(part)
            if replace:
                put_in_place(fresh, path)
            else:
                fresh.rename(path)
                sync(path.parent)
    finally:
        discard(fresh)


def point(link: Path, target: str) -> None:
    """`link` is a symbolic link to `target`, durably. A file or link that was there is replaced.

    At no moment is there none.
    """
    fresh = _beside(link)
    try:
        fresh.symlink_to(target)
        fresh.replace(link)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    sync(link.parent)


def exchange(first: Path, second: Path) -> bool:
    """Each has the other's name, in one step; False, and nothing has changed, if none can do that.

    Linux can (renameat2), on most of its file systems. Raises: OSError if one is not there.
    """
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_HERE, os.fsencode(first), _HERE, os.fsencode(second), _EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(first), None, str(second))


def put_in_place(fresh: Path, path: Path) -> None:
    """What was at `fresh` is at `path`, durably; what was there, if anything, is gone.

    Folders as well as files and links. Where the system cannot exchange names, there is a moment
    with nothing at `path`, between two renames; a process that is killed in it, or later, leaves
    what was there behind, see `remove_leftovers`.
    """
    if not os.path.lexists(path):
        fresh.rename(path)
    elif exchange(fresh, path):
        sync(path.parent)
        discard(fresh)
    else:
        aside = fresh.with_suffix(".old")
        path.rename(aside)
        try:
            fresh.rename(path)
        except OSError:
            aside.rename(path)
            raise
        discard(aside)
    sync(path.parent)


def remove_folder(path: Path) -> None:
    """No folder is at `path`: it goes away in one step, and then its content."""
    aside = _beside(path)
    path.rename(aside)
    sync(path.parent)
    discard(aside)


def remove_leftovers(path: Path) -> None:
    """Nothing is left of processes that were killed while they made or removed what is at `path`.

    Their names are `.NAME.*.tmp` and `.NAME.*.old`. The caller sees to it that nobody makes it now.
    """
    for ending in ("tmp", "old"):
        for left in path.parent.glob(f".{escape(path.name)}.*.{ending}"):
            discard(left)


def discard(path: Path) -> None:
    """Nothing is at `path`, as far as that is possible: a folder, file or link is removed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


@contextlib.contextmanager
def _naming(path: Path) -> Generator[None, None, None]:
    """The error of a full disk names the path: that of a stream names no file."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT):
            error.filename = str(path)
        raise


def _beside(path: Path) -> Path:
    """A new name in the same folder."""
    return path.with_name(f".{path.name}.{uuid4().hex[:8]}.tmp")


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

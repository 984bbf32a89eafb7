"""Locks between processes. A lock file names its holder; the kernel frees it when the holder ends.

Read `exclusive`. Threads of one process exclude each other as processes do.
"""

import contextlib
import fcntl
import logging
import os
import tempfile
from collections.abc import Generator
from contextvars import ContextVar
from pathlib import Path

from retune.core.config import knob
from retune.core.errors import BusyError, InputError, may_pass
from retune.core.keys import content_key
from retune.core.processes import Holder, is_alive, this_process

_LOG = logging.getLogger(__name__)
_LINE_BYTES = 512
"""A lock file is no longer than this."""


def machine_lock(kind: str, *identity: object) -> Path:
    """The lock file of a thing of this machine, the same for all of its processes and users."""
    return machine_file(kind, ".lock", *identity)


def machine_file(kind: str, suffix: str, *identity: object) -> Path:
    """The file of what all processes of this machine share of a thing."""
    folder = Path(knob("RETUNE_LOCKS") or tempfile.gettempdir())
    return folder / f"retune-{kind}-{content_key(*identity)[:16]}{suffix}"


@contextlib.contextmanager
def exclusive(path: Path, doing: str = "", *, wait: bool = True) -> Generator[None]:
    """Holds the lock at `path` for the time of the context; its folder is made.

    While another holds it the call waits, and says on the log who it is, since when, and `doing`
    what, such as "the store is being compacted". Without `wait` that is an error.
    The file is gone after the context; that of a holder who was killed stays, and locks nothing.

    Raises: BusyError without `wait`; InputError for a place where no file can be made.
    """
    descriptor = _acquire(path, doing, wait)
    try:
        yield
    finally:
        _release(descriptor, path)


@contextlib.contextmanager
def exclusive_once(path: Path, doing: str, *, wait: bool = True) -> Generator[None]:
    """As `exclusive`; nothing happens where the caller's own context holds the lock already.

    Contexts are those of `contextvars`: a flow that runs inside another one has its locks, and so
    has a thread that works for it in a copy of its context, until the holder lets go.
    """
    whole = path.resolve()
    if any(hold.path == whole and hold.lasts for hold in _HOLDS.get()):
        yield
        return
    with exclusive(whole, doing, wait=wait):
        hold = _Hold(whole)
        _HOLDS.set((*_HOLDS.get(), hold))
        try:
            yield
        finally:
            hold.lasts = False
            _HOLDS.set(tuple(other for other in _HOLDS.get() if other.lasts))


class _Hold:
    """A lock that a context holds, as copies of the context see it too."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lasts = True


_HOLDS: ContextVar[tuple[_Hold, ...]] = ContextVar("retune_locks", default=())


def _acquire(path: Path, doing: str, wait: bool) -> int:
    """The open lock file, locked, and at its place: a holder who ends takes it away."""
    while True:
        descriptor = _open(path)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _busy(descriptor, doing or f"{path} is held", wait)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _lies_at(descriptor, path):
                _name_holder(descriptor)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _open(path: Path) -> int:
    """The lock file, for every user; another user's file may be open for reading only."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except PermissionError:
            if not path.exists():
                raise
            return os.open(path, os.O_RDONLY)
    except OSError as error:
        if may_pass(error):
            raise
        raise InputError(
            f"{path.parent}: expected a folder that can be written to, for {path.name}; it "
            f"refuses that ({error.strerror}): mend its rights, or name another one"
        ) from None


def _busy(descriptor: int, doing: str, wait: bool) -> None:
    holder = Holder.from_line(os.pread(descriptor, _LINE_BYTES, 0).decode(errors="replace"))
    known = holder is not None and is_alive(holder)
    sentence = f"{doing} by {holder if known else 'another process'}"
    if not wait:
        raise BusyError(f"{sentence}; try again when it has ended")
    _LOG.warning("%s; waiting until it ends", sentence)


def _name_holder(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # another user's file, or a full disk: it locks all the same
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, this_process().to_line().encode(), 0)


def _lies_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _release(descriptor: int, path: Path) -> None:
    try:
        if _lies_at(descriptor, path):
            with contextlib.suppress(OSError):  # another user's file stays
                path.unlink()
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # also where a forked child has the file open
    finally:
        os.close(descriptor)

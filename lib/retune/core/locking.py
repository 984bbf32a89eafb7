"""Locks between processes. A lock file names its holder; the kernel frees it when the holder ends.

Read `exclusive`. Threads of one process exclude each other as processes do. Lock files of a machine
lie where every user can make them, so that users exclude each other, too: nothing there is trusted,
and no link is followed. What is read and believed lies in a folder of the user's own.
"""

import contextlib
import errno
import fcntl
import logging
import os
import stat
import tempfile
from collections.abc import Generator
from contextvars import ContextVar, copy_context
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread, Timer
from time import monotonic

from retune.core.config import knob
from retune.core.errors import BusyError, InputError, may_pass
from retune.core.keys import content_key
from retune.core.processes import Holder, is_alive, this_process
from retune.core.waiting import ASK_INTERVAL_S, check_waiting

_LOG = logging.getLogger(__name__)
_NO_LINKS = os.O_NOFOLLOW | os.O_NONBLOCK
"""Nothing is waited for at the other end of a pipe, either."""
_LINE_BYTES = 512
"""The largest size of a lock file."""


def machine_lock(kind: str, *identity: object) -> Path:
    """The lock file of a thing of this machine, the same for all of its processes and users."""
    folder = Path(knob("RETUNE_LOCKS") or tempfile.gettempdir())
    return folder / _file_name(kind, ".lock", *identity)


QUIET_S = 5.0
"""Shorter waits are not told: runs that share a device take turns at every batch."""


def own_file(kind: str, suffix: str, *identity: object) -> Path:
    """The file of what a user's processes share of a thing; its folder is there, and theirs alone.

    Raises: InputError if it is somebody else's.
    """
    named = knob("RETUNE_LOCKS")
    folder = Path(named) if named else _own_folder()
    return folder / _file_name(kind, suffix, *identity)


def _file_name(kind: str, suffix: str, *identity: object) -> str:
    return f"retune-{kind}-{content_key(*identity)[:16]}{suffix}"


def _own_folder() -> Path:
    """The user's own in the temporary folder, where others may have made it first."""
    folder = Path(tempfile.gettempdir()) / f"retune-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise InputError(
            f"{folder}: expected a folder that only you can write to, got another one; remove it, "
            "or name a folder of your own by RETUNE_LOCKS"
        )
    return folder


@contextlib.contextmanager
def exclusive(
    path: Path, doing: str = "", *, wait: bool = True, quiet_s: float = 0.0
) -> Generator[None]:
    """Holds the lock at `path` for the time of the context; its folder is made.

    While another holds it the call waits, and says on the log who it is, since when, and `doing`
    what, such as "the store is being compacted"; afterwards, how long that was. It says neither of
    a wait of less than `quiet_s` seconds. Without `wait` that is an error.
    The file is gone after the context; that of a holder who was killed stays, and locks nothing.

    Raises: BusyError without `wait`; InputError for a folder where no file can be made; what ends
    the wait, see `retune.core.waiting`.
    """
    descriptor = _acquire(path, doing or f"{path} is held", quiet_s if wait else None)
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


def _acquire(path: Path, doing: str, quiet_s: float | None) -> int:
    """The open lock file, locked. Raises: BusyError where `quiet_s` is None and another has it."""
    descriptor = _locked(path, wait=False)
    if descriptor is None:
        if quiet_s is None:
            raise BusyError(f"{_sentence(path, doing)}; try again when it has ended")
        with _told(path, doing, quiet_s):
            descriptor = _locked(path, wait=True)
    assert descriptor is not None, "it was waited for"
    _name_holder(descriptor)
    return descriptor


def _locked(path: Path, *, wait: bool) -> int | None:
    """The open lock file, locked, and at its path: a holder who ends takes it away.

    None if another has the lock, and nobody is to wait.
    """
    while True:
        descriptor = _open(path)
        try:
            if wait:
                _wait_for(descriptor)
            else:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _lies_at(descriptor, path):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _open(path: Path) -> int:
    """The lock file, for every user; another user's file may be open for reading only."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _NO_LINKS, 0o666)
        except PermissionError:
            if not path.exists():
                raise
            descriptor = os.open(path, os.O_RDONLY | _NO_LINKS)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _no_lock_file(path, "a link") from None
        if may_pass(error):
            raise
        raise InputError(
            f"{path.parent}: expected a folder that can be written to, for {path.name}; it "
            f"refuses that ({error.strerror}): mend its rights, or name another one"
        ) from None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(descriptor)
        raise _no_lock_file(path, "something else, or a file with another name, too")
    return descriptor


def _no_lock_file(path: Path, got: str) -> InputError:
    return InputError(
        f"{path}: expected a lock file, got {got}; it is left as it is: remove it, or name another "
        "folder by RETUNE_LOCKS"
    )


@contextlib.contextmanager
def _told(path: Path, doing: str, quiet_s: float) -> Generator[None]:
    """The log says of a wait for whom it is, once it lasts `quiet_s`, and then how long it was."""
    began, said = monotonic(), Event()

    def say() -> None:
        said.set()
        _LOG.warning("%s; waiting until it ends", _sentence(path, doing))

    timer = Timer(quiet_s, copy_context().run, (say,))
    timer.daemon = True
    if quiet_s:
        timer.start()
    else:
        say()
    try:
        yield
    finally:
        timer.cancel()
    if said.is_set():
        _LOG.warning(
            "the wait is over after %.0f s: %s by this process", monotonic() - began, doing
        )


def _sentence(path: Path, doing: str) -> str:
    """Who does it, as far as the lock file says."""
    holder = None
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | _NO_LINKS)
        try:
            line = os.pread(descriptor, _LINE_BYTES, 0).decode(errors="replace")
        finally:
            os.close(descriptor)
        holder = Holder.from_line(line)
    if holder is None or not is_alive(holder):
        return f"{doing} by another process"
    if replace(holder, since="") == replace(this_process(), since=""):
        return f"{doing} by this process, in another thread"
    return f"{doing} by {holder}"


def _wait_for(descriptor: int) -> None:
    """Holds after the call: the lock is held. Raises: what ends the wait.

    A thread waits in the kernel, which hands the lock over at once, however briefly it is free. It
    has a descriptor of its own: a wait that was given up lets go as soon as it gets the lock.
    """
    own, done = os.dup(descriptor), Event()
    failed: list[OSError] = []

    def wait() -> None:
        try:
            fcntl.flock(own, fcntl.LOCK_EX)
        except OSError as error:
            failed.append(error)
        finally:
            os.close(own)
            done.set()

    Thread(target=wait, name="lock", daemon=True).start()
    while not done.wait(ASK_INTERVAL_S):
        check_waiting()
    if failed:
        raise failed[0]


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

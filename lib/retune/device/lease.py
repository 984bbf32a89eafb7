"""One measurement on a device at a time, over all processes of this machine."""

import contextlib
import fcntl
import logging
import os
import tempfile
from collections.abc import Generator
from pathlib import Path

from retune.core.config import knob
from retune.core.keys import content_key
from retune.core.target import DeviceSpec

_LOG = logging.getLogger(__name__)


def lock_path(spec: DeviceSpec) -> Path:
    """The device's lock file, the same for every process of this machine."""
    folder = Path(knob("RETUNE_LOCKS") or tempfile.gettempdir())
    return folder / f"retune-{content_key(spec.name, spec.fingerprint)[:16]}.lock"


@contextlib.contextmanager
def lease(spec: DeviceSpec) -> Generator[None, None, None]:
    """Holds the device for the time of the context; waits, and says so, while another has it.

    The lock is the operating system's: it is free again when its holder dies.
    """
    path = lock_path(spec)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _open(path)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            _LOG.warning(
                "device %s is being measured by process %s; waiting for %s", spec.name, holder, path
            )
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    """The lock file, for every user; another user's file may be open for reading only."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:
        return os.open(path, os.O_RDONLY)

"""One holder at a time, over all processes of this machine."""

import fcntl
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusive(path: Path) -> Generator[None, None, None]:
    """Holds the lock file, which is made with its folder; waits while another holder has it.

    The system frees it when the process ends, however it ends. Not to be taken twice.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield

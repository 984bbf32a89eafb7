"""Looking after processes that a test started."""

import time
from collections.abc import Callable
from pathlib import Path

_TICK_S = 0.05


def leftovers(session: int) -> list[str]:
    """Command lines of live processes of the session that a killed process led."""
    found: list[str] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """True as soon as the condition holds; False if it does not within that time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_TICK_S)
    return True

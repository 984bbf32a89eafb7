"""Looking after processes that a test started."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

_TICK_S = 0.05


def talk(code: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """A Python process that runs the code and is talked to by its standard streams.

    As a context it is told that there is nothing more to hear, and waited for.
    """
    path = os.pathsep.join(item for item in sys.path if item)
    return subprocess.Popen(
        [sys.executable, "-u", "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": path, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def heard(process: subprocess.Popen[str]) -> str:
    """The next line that the process says; empty once it has ended."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str], text: str = "") -> None:
    """The process has one more line to read."""
    assert process.stdin is not None
    process.stdin.write(f"{text}\n")
    process.stdin.flush()


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


def busy_s(pid: int) -> float:
    """The processor time of a process that was not waited for (proc(5), stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

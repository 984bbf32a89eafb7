"""Identity of a process that outlives it: for lock files, records of runs and Prefect.

A process number is used again after the process's end, so its start belongs to its name.
"""

import os
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

_PROC = Path("/proc")
_UNKNOWN = "unknown"
"""Start of a process where the system does not say."""
_BOOT_DIGITS = 8
_START_FIELD = 19
"""Of /proc/PID/stat, counted after the name: the start in ticks since boot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process that holds something. `str` says it in words; see `to_line` for a file."""

    host: str
    process: int
    started: str
    """When the process started, as its host counts: boot and ticks since then."""
    since: str = ""
    """When it took what it holds: ISO 8601, UTC; empty where that is not known."""

    def __str__(self) -> str:
        since = f" since {local_time(self.since)}" if self.since else ""
        return f"process {self.process} on {self.host}{since}"

    def to_line(self) -> str:
        """One line that `from_line` reads."""
        return f"{self.host} {self.process} {self.started} {self.since}\n"

    @classmethod
    def from_line(cls, line: str) -> "Holder | None":
        """The holder that the line names; None if it names none."""
        match line.split():
            case [host, process, started, since] if process.isdecimal():
                return cls(host=host, process=int(process), started=started, since=since)
            case _:
                return None


def this_process() -> Holder:
    """This process, which takes something now."""
    return process_of(os.getpid())


def process_of(number: int) -> Holder:
    """The process of that number of this machine, as it is now."""
    return Holder(host=socket.gethostname(), process=number, started=_started(number), since=now())


def is_alive(holder: Holder) -> bool:
    """False if the process has ended. One of another host counts as alive: nobody can tell here."""
    if holder.host != socket.gethostname():
        return True
    return _started(holder.process) == holder.started


def now() -> str:
    """The moment, as `Holder.since` states it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def local_time(moment: str) -> str:
    """A moment that `now` gave, for people: in the time zone of this machine."""
    try:
        return datetime.fromisoformat(moment).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:  # of a damaged file
        return moment


def _started(process: int) -> str:
    """When the process started, of those since the machine was; empty if it does not run."""
    if not _PROC.is_dir():
        return _UNKNOWN if _answers(process) else ""
    try:
        fields = (_PROC / str(process) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    ended = fields[0] in "ZX"  # its parent has not asked yet how it ended
    return "" if ended else f"{boot()[:_BOOT_DIGITS]}.{fields[_START_FIELD]}"


@cache
def boot() -> str:
    """Tells this start of the machine from others; empty where the system does not say."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _answers(process: int) -> bool:
    """Whether there is a process of that number."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

"""Nights for tests: processes that live as long as one says, a clock that one turns."""

import contextlib
from collections.abc import Generator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from retune.core.errors import InputError
from retune.nightly.night import Measured, MemberResult, Processes


class Clock:
    """Shows ten o'clock in the evening, and an hour more after each `turn`."""

    def __init__(self) -> None:
        self.now = datetime(2026, 3, 1, 22, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def turn(self, hours: float = 1.0) -> None:
        self.now += timedelta(hours=hours)


@dataclass
class Machine:
    """Who runs on it, and which locks are held."""

    running: set[str] = field(default_factory=set)
    held: dict[Path, str] = field(default_factory=dict)

    def start(self, name: str) -> Processes:
        """A process of that name, which runs until `running` has it no more."""
        self.running.add(name)
        return Processes(
            me=name,
            alive=self.running.__contains__,
            describe=lambda line: f"process {line}",
            hold=lambda path: self._hold(path, name),
        )

    def kill(self, name: str) -> None:
        """The process is gone, and its locks are free."""
        self.running.discard(name)
        self.held = {path: holder for path, holder in self.held.items() if holder != name}

    @contextlib.contextmanager
    def _hold(self, path: Path, name: str) -> Generator[None]:
        if path in self.held:
            raise InputError(f"{path.parent.name} is run by process {self.held[path]}")
        self.held[path] = name
        try:
            yield
        finally:
            self.held.pop(path, None)


def times(median_us: float) -> Measured:
    return Measured(median_us=median_us, low_us=0.98 * median_us, high_us=1.03 * median_us)


def result(
    champion: float | None, challenger: float | None, *, promoted: bool = True, **changes: object
) -> MemberResult:
    """What a night did for a member, by the times of the two bundles in microseconds."""
    ratio = challenger / champion if champion and challenger else None
    values: dict[str, object] = {
        "minutes": 4.5,
        "trials": 100,
        "statuses": (("ok", 90), ("timeout", 10)),
        "champion": times(champion) if champion else None,
        "challenger": times(challenger) if challenger else None,
        "ratio": ratio,
        "ratio_low": ratio and 0.99 * ratio,
        "ratio_high": ratio and 1.01 * ratio,
        "promoted": promoted,
        "reason": "it is faster" if promoted else "it is not faster",
    }
    return MemberResult(**{**values, **changes})  # type: ignore[arg-type]

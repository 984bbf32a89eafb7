"""Other processes that hold locks, and a clock by which that takes its time. Nobody sleeps."""

import fcntl
from collections.abc import Callable

import pytest

from retune.core import locking


class OtherHolders:
    """Whoever asks for a lock waits `seconds` for it first, by the clock that this is as well."""

    LOCK_EX, LOCK_NB, LOCK_UN = fcntl.LOCK_EX, fcntl.LOCK_NB, fcntl.LOCK_UN

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.now = 1000.0
        self._timers: list[_FakeTimer] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> "OtherHolders":
        """Locks of this process are these from now on."""
        monkeypatch.setattr(locking, "fcntl", self)
        monkeypatch.setattr(locking, "monotonic", self)
        monkeypatch.setattr(locking, "Timer", self.timer)
        return self

    def __call__(self) -> float:
        return self.now

    def flock(self, descriptor: int, how: int) -> None:
        """Another process has it at first, and ends while it is waited for."""
        if how & self.LOCK_NB and self.seconds:
            raise BlockingIOError
        if how == self.LOCK_EX:
            self.now += self.seconds
            for timer in self._timers:
                timer.passed(self.seconds)

    def timer(self, seconds: float, function: Callable[..., object], args: tuple[object, ...]):
        """In place of `threading.Timer`."""
        self._timers.append(_FakeTimer(seconds, lambda: function(*args)))
        return self._timers[-1]


class _FakeTimer:
    def __init__(self, seconds: float, function: Callable[[], object]) -> None:
        self._seconds = seconds
        self._function = function
        self._running = False
        self.daemon = False

    def start(self) -> None:
        self._running = True

    def cancel(self) -> None:
        self._running = False

    def passed(self, seconds: float) -> None:
        if self._running and self._seconds <= seconds:
            self._running = False
            self._function()

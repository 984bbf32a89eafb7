"""Stopwatch: the time that a run spends, less the time in which it waits for what others hold.

A run's minutes are minutes of its device. Who waits for a device opens a `turn` and says so; the
stopwatch of the context then stands still, unless another thread of the run has a device meanwhile.

    with turn() as device:
        device.waits()
        with exclusive(lock):
            device.is_ours()
            ...

Threads that work for a run in copies of its context share its stopwatch.
"""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from time import perf_counter
from typing import Literal

TurnState = Literal["idle", "waiting", "using"]


class Stopwatch:
    """Calling it gives the seconds of its clock, less those in which it stood still."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._threads = {"waiting": 0, "using": 0}
        self._stopped_at: float | None = None
        """When it came to stand; None while it runs."""
        self._stood_s = 0.0
        """How long it stood before that."""

    def __call__(self) -> float:
        """Seconds. Only differences mean something, as of its clock."""
        with self._lock:
            now = self._clock() if self._stopped_at is None else self._stopped_at
            return now - self._stood_s

    @contextmanager
    def counting(self) -> Generator[None]:
        """Turns of this context, and of copies of it, stop this stopwatch while they wait."""
        token = _WATCH.set(self)
        try:
            yield
        finally:
            _WATCH.reset(token)

    def change(self, before: TurnState, after: TurnState) -> None:
        """A thread's turn has come to another state."""
        with self._lock:
            now = self._clock()
            if self._stopped_at is not None:
                self._stood_s += now - self._stopped_at
            for state, more in ((before, -1), (after, 1)):
                if state != "idle":
                    self._threads[state] += more
            still = self._threads["waiting"] > 0 and self._threads["using"] <= 0
            self._stopped_at = now if still else None


class DeviceTurn:
    """A thread's turn at a device that others may have. `turn` opens it."""

    def __init__(self, watch: Stopwatch | None, state: TurnState) -> None:
        self.watch = watch
        self.state: TurnState = state
        self.thread = threading.get_ident()

    def waits(self) -> None:
        """Others have it: nothing is measured for this run until it `is_ours`."""
        self.become("waiting")

    def is_ours(self) -> None:
        """The device works for this run."""
        self.become("using")

    def become(self, state: TurnState) -> None:
        """The turn is in that state."""
        before, self.state = self.state, state
        if self.watch is not None and before != state:
            self.watch.change(before, state)


_WATCH: ContextVar[Stopwatch | None] = ContextVar("retune_stopwatch", default=None)
_TURN: ContextVar[DeviceTurn | None] = ContextVar("retune_turn", default=None)


@contextmanager
def turn() -> Generator[DeviceTurn]:
    """A turn of this thread, which is over at the end of the context.

    One inside another one replaces it. Without a stopwatch it counts for nothing.
    """
    outer, made = _TURN.get(), DeviceTurn(_WATCH.get(), "idle")
    if outer is not None and (outer.watch, outer.thread) == (made.watch, made.thread):
        made.state = outer.state
    before = made.state
    token = _TURN.set(made)
    try:
        yield made
    finally:
        _TURN.reset(token)
        made.become(before)

"""MeasuringGate: work of this process stands still while something is measured on its processor.

There is one processor, so there is one gate, HOST, for all devices that a process has in use.
"""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from retune.core.stopwatch import turn


class MeasuringGate:
    """Any number of threads work, or one measures. Who waits to measure comes before new work."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._working = 0
        self._waiting = 0
        """Threads that wait to measure."""
        self._measuring = False
        self._inside: ContextVar[bool] = ContextVar("retune_working", default=False)

    @contextmanager
    def working(self) -> Generator[None]:
        """Nothing is measured during the context, which begins once no thread wants to measure.

        Inside of another one, also in a thread that runs in a copy of its context, the call does
        not wait. No device is to be leased in it: who measures has its lease already.
        """
        if self._inside.get():
            yield
            return
        with turn() as own:
            own.waits()
            with self._changed:
                self._changed.wait_for(lambda: not (self._measuring or self._waiting))
                self._working += 1
            own.is_ours()
            token = self._inside.set(True)
            try:
                yield
            finally:
                self._inside.reset(token)
                with self._changed:
                    self._working -= 1
                    self._changed.notify_all()

    @contextmanager
    def measuring(self) -> Generator[None]:
        """No other thread works or measures during the context."""
        with turn() as own:
            own.waits()
            with self._changed:
                self._waiting += 1
                try:
                    self._changed.wait_for(lambda: not (self._measuring or self._working))
                    self._measuring = True
                finally:
                    self._waiting -= 1
                    self._changed.notify_all()  # an interrupted wait keeps nobody waiting
            own.is_ours()
            try:
                yield
            finally:
                with self._changed:
                    self._measuring = False
                    self._changed.notify_all()


HOST = MeasuringGate()
"""Of this machine's processor."""

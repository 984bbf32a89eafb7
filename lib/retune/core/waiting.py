"""Cancellable waits: a run that waits for a lock, a device or a board can be cancelled.

Read `interruptible` and `check_waiting`. A wait for a lock, a device or a board asks now and then;
a run that only wants no further batch still gets what it waits for.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar

ASK_INTERVAL_S = 0.5
"""How often a wait asks."""

Check = Callable[[], None]
"""Raises what ends the wait, such as RunStopped."""

_CHECKS: ContextVar[tuple[Check, ...]] = ContextVar("retune_waiting", default=())


@contextmanager
def interruptible(check: Check) -> Generator[None]:
    """Whatever is waited for in this context, or a copy of it, asks `check`, too."""
    token = _CHECKS.set((*_CHECKS.get(), check))
    try:
        yield
    finally:
        _CHECKS.reset(token)


def check_waiting() -> None:
    """To be called now and then while something is waited for.

    Raises: what a check of this context raises, since the run is to end.
    """
    for check in _CHECKS.get():
        check()

"""Watchers of a run: where its progress goes, and their wish to stop measuring.

Both are known by the context of the caller and not by parameters, since what calls a stage (such
as Prefect) passes plain data on. Threads that work for a stage run in a copy of its context.
"""

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from retune.pipeline.results import TuneEvent

LOGGER = "retune.progress"
"""Logger of every event; its records carry the event as `event`."""

Progress = Callable[[TuneEvent], None]
Stop = Callable[[], bool]
"""True: nothing more is to be measured."""


def log_event(event: TuneEvent) -> None:
    """One line for the logger; its handlers find the event itself in the record's `event`."""
    logging.getLogger(LOGGER).info("%s", event.text, extra={"event": event})


@dataclass(frozen=True, slots=True)
class _Watch:
    progress: tuple[Progress, ...] = ()
    stop: tuple[Stop, ...] = ()


_WATCH: ContextVar[_Watch] = ContextVar("retune_watch", default=_Watch())  # noqa: B039 - frozen


@contextmanager
def watching(progress: Progress | None = None, stop: Stop | None = None) -> Generator[None]:
    """Stages that run in this context tell `progress`, too, and ask `stop`, too, before each batch.

    Those who watched before still do; every event is logged besides.
    """
    before = _WATCH.get()
    given = _Watch((progress,) if progress else (), (stop,) if stop else ())
    token = _WATCH.set(_Watch(before.progress + given.progress, before.stop + given.stop))
    try:
        yield
    finally:
        _WATCH.reset(token)


def tell(event: TuneEvent) -> None:
    """Tell the watchers of an event; they know of it when the call returns."""
    log_event(event)
    for progress in _WATCH.get().progress:
        progress(event)


def stopping() -> bool:
    """True once nothing more is to be measured."""
    return any(stop() for stop in _WATCH.get().stop)

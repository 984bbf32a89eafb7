"""retune's own log lines as lines of the flow run that they belong to.

A command line sets PREFECT_LOGGING_EXTRA_LOGGERS, a worker may have it set by prefect.toml, and a
program that simply calls a flow has nothing set: `run_log` is for all of them.
"""

import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager

from prefect.context import FlowRunContext, TaskRunContext
from prefect.logging.handlers import APILogHandler

LOGGER = "retune"
LEVEL = logging.INFO


class RunLogHandler(APILogHandler):
    """Sends lines to the server; one that is of no flow run has nowhere to go there."""

    def emit(self, record: logging.LogRecord) -> None:
        if FlowRunContext.get() is not None or TaskRunContext.get() is not None:
            super().emit(record)


class _Attached:
    """The handler on the logger, while at least one flow run wants it there."""

    def __init__(self) -> None:
        self._handler = RunLogHandler()
        self._lock = threading.Lock()
        self._runs = 0
        self._level = logging.NOTSET

    def begin(self) -> None:
        logger = logging.getLogger(LOGGER)
        with self._lock:
            self._runs += 1
            if self._runs > 1:
                return
            self._level = logger.level
            if not any(isinstance(handler, APILogHandler) for handler in logger.handlers):
                logger.addHandler(self._handler)
            if logger.getEffectiveLevel() > LEVEL:
                logger.setLevel(LEVEL)

    def end(self) -> None:
        logger = logging.getLogger(LOGGER)
        with self._lock:
            self._runs -= 1
            if not self._runs:
                logger.removeHandler(self._handler)
                logger.setLevel(self._level)


_ATTACHED = _Attached()


@contextmanager
def run_log() -> Generator[None]:
    """In this context lines of level INFO reach the server, each once. Runs may overlap."""
    _ATTACHED.begin()
    try:
        yield
    finally:
        _ATTACHED.end()

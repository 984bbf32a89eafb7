"""Progress on stderr while a run goes on: steps, the table of tasks, warnings.

With `-v` also each measurement, with `-q` warnings alone.
"""

import logging
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import TextIO

from retune.cli.live import LiveTable, standing_line
from retune.core.errors import InputError
from retune.pipeline.results import TuneEvent
from retune.pipeline.watch import LOGGER
from retune.records import MEASURED

LINE_INTERVAL_S = 10.0
"""While measuring, there is one line in this time."""
TABLE_INTERVAL_S = 0.25
"""A table on a terminal is redrawn no sooner."""


@contextmanager
def progress_on_stderr(*, verbose: bool = False, quiet: bool = False) -> Generator[None]:
    """Shows progress events and warnings of the library while the context lasts.

    Raises: InputError if it should be both verbose and quiet.
    """
    if verbose and quiet:
        raise InputError("--verbose and --quiet: expected one of them, got both; leave one out")
    logger, measured = logging.getLogger("retune"), logging.getLogger(MEASURED)
    handler = ProgressHandler(sys.stderr)
    handler.setLevel(logging.WARNING if quiet else logging.DEBUG)
    before = logger.level, logger.propagate, measured.level
    logger.setLevel(logging.INFO)
    measured.setLevel(logging.DEBUG if verbose else logging.NOTSET)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        handler.finish()
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
        measured.setLevel(before[2])


class ProgressHandler(logging.Handler):
    """One line for each step; while measuring, a table that changes, or one line in ten seconds."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._terminal = stream.isatty()
        self._table: LiveTable | None = None
        self._stage = ""
        self._last = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", None)
        if record.name == LOGGER and event is not None:
            self._progress(event)
        elif record.name == MEASURED:
            self._line(record.getMessage())
        else:
            self._line(f"{record.levelname.lower()}: {record.getMessage()}")

    def finish(self) -> None:
        """Leaves the last table where it is, and the cursor at the start of a line."""
        if self._table is not None:
            self._table.close()
            self._table = None
        self._stream.flush()

    def _progress(self, event: TuneEvent) -> None:
        now = time.monotonic()
        drawn = self._terminal and bool(event.tasks)
        interval = TABLE_INTERVAL_S if drawn else LINE_INTERVAL_S
        if event.tasks and event.stage == self._stage and now - self._last < interval:
            return
        self._stage, self._last = event.stage, now
        if drawn:
            self._table = self._table or LiveTable(self._stream)
            self._table.show(event)
        else:
            self.finish()
            self._line(standing_line(event))

    def _line(self, text: str) -> None:
        if self._table is not None:
            self._table.say(text)
        else:
            self._stream.write(text + "\n")
            self._stream.flush()

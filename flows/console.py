"""What commands print: tables for people, JSON for programs. Data on stdout, talk on stderr."""

import json
import logging
import sys
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from tasks.progress import LOGGER

LINE_INTERVAL_S = 10.0
"""A log gets one line of progress in this time, a terminal four each second."""
TERMINAL_INTERVAL_S = 0.25


def print_json(data: object) -> None:
    """The data on stdout; numbers keep all their digits."""
    json.dump(data, sys.stdout, indent=2, default=str)
    sys.stdout.write("\n")


def print_line(text: str = "") -> None:
    """One line for people, on stdout."""
    sys.stdout.write(text + "\n")


def say(text: str) -> None:
    """One line beside the data, on stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def print_table(rows: Sequence[Mapping[str, Any]], title: str = "") -> None:
    """The rows on stdout; columns are the keys of the first row, numbers to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    if not rows:
        print_line(f"{title}: none" if title else "none")
        return
    table = Table(title=title or None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for name in rows[0]:
        numeric = all(isinstance(row.get(name), int | float | None) for row in rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row.get(name)) for name in rows[0]))
    console = Console() if sys.stdout.isatty() else Console(width=160)
    console.print(table, markup=False)


@contextmanager
def progress_on_stderr(quiet: bool = False) -> Generator[None]:
    """Shows progress events and warnings of the library while the context lasts."""
    logger = logging.getLogger("retune")
    handler = ProgressHandler(sys.stderr)
    handler.setLevel(logging.WARNING if quiet else logging.INFO)
    before = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        handler.finish()
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


class ProgressHandler(logging.Handler):
    """One line for each step; measuring is one line that changes, or one line in ten seconds."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._live = stream.isatty()
        self._open = False
        self._stage = ""
        self._last = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", None)
        if record.name == LOGGER and event is not None:
            self._progress(event.stage, record.getMessage())
        else:
            self._line(f"{record.levelname.lower()}: {record.getMessage()}")

    def finish(self) -> None:
        """Leaves the cursor at the start of a line."""
        if self._open:
            self._stream.write("\n")
            self._open = False
        self._stream.flush()

    def _progress(self, stage: str, text: str) -> None:
        now = time.monotonic()
        interval = TERMINAL_INTERVAL_S if self._live else LINE_INTERVAL_S
        if stage == self._stage and now - self._last < interval:
            return
        same = stage == self._stage
        self._stage, self._last = stage, now
        if self._live:
            if not same:
                self.finish()
            self._stream.write(f"\r\x1b[2K{text}")
            self._open = True
            self._stream.flush()
        else:
            self._line(text)

    def _line(self, text: str) -> None:
        self.finish()
        self._stream.write(text + "\n")
        self._stream.flush()


def rounded(values: Iterable[Mapping[str, Any]], digits: int = 2) -> list[dict[str, Any]]:
    """Rows whose fractions have so many digits, for people."""
    return [
        {name: round(v, digits) if isinstance(v, float) else v for name, v in row.items()}
        for row in values
    ]


def _cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case float():
            return f"{value:,.2f}"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case _:
            return str(value)

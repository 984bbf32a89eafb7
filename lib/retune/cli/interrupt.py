"""Ctrl-C during a tuning run: the first one ends the measuring, the second one ends the run."""

import logging
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

from retune.cli.console import say
from retune.pipeline.watch import LOGGER, watching

MEASURING = ("tune", "finalists")
"""Stages that look at the flag; any other is simply interrupted."""


@contextmanager
def ctrl_c_ends_measuring() -> Generator[None]:
    """While the context lasts, Ctrl-C during measuring asks for no further batch, once.

    A second Ctrl-C, or one while nothing is measured, raises KeyboardInterrupt as usual. To be
    entered by the main thread, where progress is logged at level INFO.
    """
    stage = _LatestStage()
    logger = logging.getLogger(LOGGER)
    asked = threading.Event()

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        if asked.is_set() or stage.latest not in MEASURING:
            raise KeyboardInterrupt
        asked.set()
        say(
            "retune: no more is measured after this batch; making the bundle of what was found "
            "(Ctrl-C again leaves at once)"
        )

    logger.addHandler(stage)
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with watching(stop=asked.is_set):
            yield
    finally:
        signal.signal(signal.SIGINT, before)
        logger.removeHandler(stage)


class _LatestStage(logging.Handler):
    """Knows which stage the last progress event was of."""

    def __init__(self) -> None:
        super().__init__()
        self.latest = ""

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", None)
        if event is not None:
            self.latest = event.stage

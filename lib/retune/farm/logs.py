"""Logs of schedulers and boards: to stderr, one line for each event."""

import logging
import sys


def log_lines() -> None:
    """The process logs so from now on."""
    form = "%(asctime)s %(levelname)s %(message)s"
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=form, force=True)

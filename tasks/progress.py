"""Progress goes to the standard logger `retune.progress`: to the console, and to Prefect's log."""

import logging

from retune.stages.manifest import TuneEvent

LOGGER = "retune.progress"


def log_event(event: TuneEvent) -> None:
    """Logs one line; handlers find the event itself in the record's `event`."""
    logging.getLogger(LOGGER).info("%s", event.text, extra={"event": event})

"""Runs a flow from a command: a Prefect API at hand, dead runs reaped, the result brought back.

Importing this module does not import Prefect: its server must be there first.
"""

from collections.abc import Callable
from typing import TypeVar

from retune_prefect.server import prefect_api

R = TypeVar("R")

FLUSH_S = 10.0


def run_flow(call: Callable[[], R]) -> R:
    """What `call` returns, which imports a flow and calls it, while there is a Prefect API.

    Raises: what a stage raised, when it fails for good; RunCancelled if the run was cancelled on
    its server.
    """
    with prefect_api():
        from prefect.exceptions import CancelledRun

        from retune_prefect.cancelling import RunCancelled
        from retune_prefect.reap import mark_dead_runs

        mark_dead_runs()
        try:
            return call()
        except CancelledRun as cancelled:
            raise RunCancelled(str(cancelled)) from cancelled
        finally:
            flush()


def flush() -> None:
    """Holds after the call: Prefect's threads have sent what they had, before the server ends."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    APILogWorker.drain_all(timeout=FLUSH_S)
    EventsWorker.drain_all(timeout=FLUSH_S)

"""Runs the tuning flow: a Prefect API at hand, dead runs reaped, the result brought back.

Importing this module does not import Prefect: its server must be there first.
"""

from retune.stages.manifest import TuneRequest, TuneResult
from tasks.server import prefect_api

FLUSH_S = 10.0


def tune_with_prefect(request: TuneRequest) -> TuneResult:
    """The result of the flow. Raises: what a stage raised, when it fails for good."""
    with prefect_api():
        from prefect import tags

        from flows.reap import mark_dead_runs, run_tags
        from flows.tune_network import result_of, tune_network

        mark_dead_runs("tune-network")
        try:
            with tags(*run_tags()):
                return result_of(tune_network(request))
        finally:
            _flush()


def _flush() -> None:
    """Holds after the call: Prefect's threads have sent what they had, before the server ends."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    APILogWorker.drain_all(timeout=FLUSH_S)
    EventsWorker.drain_all(timeout=FLUSH_S)

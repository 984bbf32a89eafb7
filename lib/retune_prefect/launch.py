"""Runs a flow: a Prefect API at hand, dead runs reaped, the result brought back.

Importing this module does not import Prefect: its server must be there first.
"""

from collections.abc import Callable
from typing import TypeVar

from retune.stages.manifest import TuneRequest, TuneResult
from retune_prefect.server import prefect_api

R = TypeVar("R")

FLUSH_S = 10.0


def tune_with_prefect(request: TuneRequest) -> TuneResult:
    """The result of the flow. Raises: what a stage raised, when it fails for good."""

    def run() -> TuneResult:
        from flows.tune_network import result_of, tune_network

        return result_of(tune_network(request))

    return _with_prefect("tune-network", run)


def retrain_with_prefect(records: str, seed: int) -> str:
    """The name of the new model. Raises: InputError if the records are too few."""

    def run() -> str:
        from flows.retrain_cost_model import retrain_cost_model

        return retrain_cost_model(records, seed)

    return _with_prefect("retrain-cost-model", run)


def _with_prefect(flow: str, run: Callable[[], R]) -> R:
    with prefect_api():
        from prefect import tags

        from retune_prefect.reap import mark_dead_runs, run_tags

        mark_dead_runs(flow)
        try:
            with tags(*run_tags()):
                return run()
        finally:
            _flush()


def _flush() -> None:
    """Holds after the call: Prefect's threads have sent what they had, before the server ends."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    APILogWorker.drain_all(timeout=FLUSH_S)
    EventsWorker.drain_all(timeout=FLUSH_S)

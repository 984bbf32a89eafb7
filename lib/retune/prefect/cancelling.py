"""A flow run that somebody cancels measures no further batch, and keeps all that it has.

A run that a worker or `serve` started is also terminated by Prefect; one that a person started
only learns of it by asking the server. It asks between batches, so that nothing runs beside a
measurement.
"""

import logging
import time
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from uuid import UUID

from prefect.client.orchestration import get_client

from retune.core.errors import RunStopped
from retune.pipeline.watch import watching

ASK_INTERVAL_S = 3.0

_LOG = logging.getLogger(__name__)


class RunCancelled(RunStopped):
    """The flow run was cancelled on its server; what is finished stays, and is found again."""


class _FlowRun:
    """What the server said last of a flow run."""

    def __init__(self, run_id: str) -> None:
        self._id = UUID(run_id)
        self._moment = 0.0
        self._cancelled = False

    def cancelled(self) -> bool:
        now = time.monotonic()
        if not self._cancelled and now - self._moment >= ASK_INTERVAL_S:
            self._moment, self._cancelled = now, self._ask()
        return self._cancelled

    def _ask(self) -> bool:
        try:
            with get_client(sync_client=True) as client:
                state = client.read_flow_run(self._id).state
        except Exception as error:  # noqa: BLE001 - a server that does not answer cancels nothing
            _LOG.warning("the Prefect server does not say how flow run %s is: %s", self._id, error)
            return False
        return state is not None and (state.is_cancelling() or state.is_cancelled())


_RUNS: ContextVar[tuple[_FlowRun, ...]] = ContextVar("retune_flow_runs", default=())


@contextmanager
def cancellable(run_id: str | None) -> Generator[None]:
    """In this context stages stop once that flow run, or one that it is part of, is cancelled."""
    runs = (*_RUNS.get(), _FlowRun(run_id)) if run_id else _RUNS.get()
    token = _RUNS.set(runs)
    try:
        with watching(stop=is_cancelled):
            yield
    finally:
        _RUNS.reset(token)


def is_cancelled() -> bool:
    """True once a flow run of this context is cancelled; the server is asked now and then."""
    return any(run.cancelled() for run in _RUNS.get())


def raise_if_cancelled() -> None:
    """Raises: RunCancelled once a flow run of this context is cancelled."""
    if is_cancelled():
        raise RunCancelled("the flow run was cancelled; everything measured is kept")

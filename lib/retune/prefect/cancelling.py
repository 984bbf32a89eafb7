"""A flow run that somebody cancels or pauses measures no further batch, and keeps all that it has.

A run that a worker or `serve` started is also terminated by Prefect; one that a person started
only learns of it by asking the server. It asks between batches, so that nothing runs beside a
measurement, and while it waits for something. A paused run waits where it is; a suspended one ends,
and goes on from its files when it is resumed.
"""

import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic, sleep
from uuid import UUID

from prefect.client.schemas.objects import State
from prefect.exceptions import Pause

from retune.core.errors import RunStopped
from retune.core.waiting import interruptible
from retune.pipeline.watch import watching
from retune.prefect.contact import SERVER

ASK_INTERVAL_S = 3.0

_LOG = logging.getLogger("retune.prefect")


class RunCancelled(RunStopped):
    """The flow run was cancelled on its server; what is finished stays, and is found again."""


class RunSuspended(RunCancelled):
    """The flow run was suspended on its server, which starts it again when it is resumed."""

    def __init__(self, run: UUID, state: "State[object]") -> None:
        super().__init__("the flow run was suspended; everything measured is kept")
        self.run = run
        self.state = state


class _FlowRun:
    """What the server said last of a flow run."""

    def __init__(self, run_id: str) -> None:
        self.id = UUID(run_id)
        self._lock = threading.Lock()
        self._moment = 0.0
        self._state: State[object] | None = None

    def ended(self) -> RunCancelled | None:
        """Why the run is to end; None: it goes on. Returns only once the run is not paused."""
        with self._lock:  # a thread that comes meanwhile waits, too
            if self._is_to_end():
                return self._why()
            if monotonic() - self._moment >= ASK_INTERVAL_S:
                self._ask()
                if self._is_paused():
                    self._wait()
            return self._why() if self._is_to_end() else None

    def _wait(self) -> None:
        _LOG.warning("the flow run is paused: nothing is measured until it is resumed")
        while self._is_paused():
            sleep(ASK_INTERVAL_S)
            self._ask()
        _LOG.warning("the flow run is no longer paused")

    def _ask(self) -> None:
        """The state is the server's, or that of before where the server does not answer."""
        run = SERVER.ask(lambda client: client.read_flow_run(self.id))
        self._moment, self._state = monotonic(), run.state if run else self._state

    def _is_paused(self) -> bool:
        return self._state is not None and self._state.is_paused() and not self._is_suspended()

    def _is_suspended(self) -> bool:
        return self._state is not None and self._state.name == "Suspended"

    def _is_to_end(self) -> bool:
        state = self._state
        return state is not None and (
            state.is_cancelling() or state.is_cancelled() or self._is_suspended()
        )

    def _why(self) -> RunCancelled:
        if self._state is not None and self._is_suspended():
            return RunSuspended(self.id, self._state)
        return RunCancelled("the flow run was cancelled; everything measured is kept")


_RUNS: ContextVar[tuple[_FlowRun, ...]] = ContextVar("retune_flow_runs", default=())


@contextmanager
def cancellable(run_id: str | None) -> Generator[None]:
    """In this context stages stop once that flow run, or one that it is part of, is cancelled.

    Raises: Pause, Prefect's signal, once that flow run itself is suspended.
    """
    runs = (*_RUNS.get(), _FlowRun(run_id)) if run_id else _RUNS.get()
    token = _RUNS.set(runs)
    try:
        with watching(stop=is_cancelled), interruptible(raise_if_cancelled):
            yield
    except RunSuspended as suspended:
        if str(suspended.run) != run_id:
            raise
        raise Pause(state=suspended.state) from suspended
    finally:
        _RUNS.reset(token)


def is_cancelled() -> bool:
    """True once a flow run of this context is to end; the server is asked now and then."""
    return any(run.ended() for run in _RUNS.get())


def raise_if_cancelled() -> None:
    """Raises: RunCancelled once a flow run of this context is to end."""
    for run in _RUNS.get():
        if (why := run.ended()) is not None:
            raise why

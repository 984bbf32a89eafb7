"""Talking to the Prefect server from within a run that matters more than the server does.

Read `Contact.ask`. One question is one short request without retries. A server that does not answer
is left alone for a while, longer each time: a run whose server has died goes on at its usual speed.
"""

import contextlib
import logging
import queue
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.context import SettingsContext, get_settings_context
from prefect.events.worker import EventsWorker

T = TypeVar("T")
Clock = Callable[[], float]

TIMEOUT_S = 3.0
"""Of a request. A server that is only busy answers within a second."""
BUSY_S = (0.2, 0.6)
"""Before a question is asked again whose answer was that the server cannot, as its database is
locked."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 60.0
"""After a request without an answer; each further one doubles it."""

_LOG = logging.getLogger("retune.prefect")
_LOST = (
    "the Prefect server does not answer (%s): the run goes on without it, and cannot be cancelled, "
    "paused or looked at there until it answers again"
)


class Contact:
    """Whether the server of this process's runs answers. For any threads."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._pause_s = 0.0
        self._next = 0.0
        self._left_out = 0

    @property
    def lost(self) -> bool:
        """True once a question had no answer, until one has one."""
        return self._pause_s > 0

    def ask(self, question: Callable[[SyncPrefectClient], T]) -> T | None:
        """What the question gives; None if the server does not answer, or refuses.

        The log says once that the server is lost, and once that it answers again.
        """
        with self._lock:
            if self._clock() < self._next:
                self._left_out += 1
                return None
        try:
            with _without_retries(), get_client(_of_request(), sync_client=True) as client:
                answer = _answered(question, client)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run matters more
            if is_silence(error):
                self._is_lost(error)
            else:
                self._is_back()
                _LOG.warning("the Prefect server refused a request: %s", error)
            return None
        self._is_back()
        return answer

    def _is_lost(self, error: Exception) -> None:
        with self._lock:
            known, self._left_out = self.lost, self._left_out + 1
            self._pause_s = min(2 * self._pause_s or FIRST_PAUSE_S, LONGEST_PAUSE_S)
            self._next = self._clock() + self._pause_s
        if not known:
            _LOG.warning(_LOST, type(error.__cause__ or error).__name__)

    def _is_back(self) -> None:
        with self._lock:
            known, self._pause_s, self._next = self.lost, 0.0, 0.0
            left_out, self._left_out = self._left_out, 0
        if known:
            _LOG.warning("the Prefect server answers again; %d requests were left out", left_out)


def _of_request() -> dict[str, Any]:
    """What httpx is told of a request.

    Prefect reads the certificates of all authorities for each client, which takes longer than a
    request. Without encryption, as on the loopback address, they verify nobody.
    """
    url = get_settings_context().settings.api.url or ""
    trusting_nobody = {"verify": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)}
    return {"timeout": TIMEOUT_S, **(trusting_nobody if url.startswith("http://") else {})}


def _without_retries() -> SettingsContext:
    """Today's settings, in which a request is not sent again.

    Prefect's `temporary_settings` reads and checks all settings anew, which takes longer than a
    request.
    """
    context = get_settings_context()
    client = context.settings.client.model_copy(update={"max_retries": 0})
    settings = context.settings.model_copy(update={"client": client})
    return SettingsContext(profile=context.profile, settings=settings)


def _answered(question: Callable[[SyncPrefectClient], T], client: SyncPrefectClient) -> T:
    """What the question gives, asked again at once where the server is only busy."""
    for pause_s in BUSY_S:
        try:
            return question(client)
        except httpx.HTTPStatusError as error:
            if error.response.status_code < 500:
                raise
            time.sleep(pause_s)
    return question(client)


def is_silence(error: object) -> bool:
    """True for an error that says that the server did not answer, or cannot at the moment."""
    match error:
        case httpx.HTTPStatusError():
            return error.response.status_code >= 500
        case httpx.TransportError():
            return True
        case RuntimeError():  # of the check of versions, which comes before the first request
            return error.__cause__ is not None and is_silence(error.__cause__)
        case _:
            return False


def going_on(with_server: Callable[[], T], without: Callable[[], T]) -> T:
    """What the first call gives; where that fails for the lack of the server, the second one's.

    Raises: what either raises for another reason.
    """
    try:
        return with_server()
    except Exception as error:
        if not is_silence(error):
            raise
        _LOG.warning("the Prefect server is lost (%s); what it was to be told goes on", error)
    return without()


SERVER = Contact()
"""The server of this process."""


def forget_pending() -> None:
    """Holds after the call: no line or event waits to be sent, if the server does not answer.

    Prefect tries each of them for seven seconds, and a process does not end before.
    """
    if not SERVER.lost:
        return
    services = EventsWorker._instances  # noqa: SLF001  of all kinds
    for service in list(services.values()):
        _empty(service._queue)  # noqa: SLF001


def _empty(pending: "queue.Queue[Any]") -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            pending.get_nowait()
            pending.task_done()

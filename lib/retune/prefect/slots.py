"""A flow run's slot where a Prefect server limits how many runs a device has at once.

Read `device_slot`. The slot is a lease that the run renews. Prefect's own context manager waits in
silence, cannot be interrupted, and keeps the slot of a process that was killed for five minutes;
here the wait says who has the slot, ends when the run is cancelled, and frees the slots of the dead
(see `reap`). A missing limit is not an error (`strict`): the device's lock on its host ensures that
it measures one thing at a time, and a limit only keeps runs from waiting there.
"""

import logging
import math
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import ConcurrencyLeaseHolder

from retune.core.names import slug
from retune.core.waiting import check_waiting
from retune.prefect.contact import SERVER
from retune.prefect.reap import DEVICE, LEASE, free_slots, running_runs

LEASE_S = 60.0
"""The shortest that Prefect admits: so long a slot stays taken whose holder nobody found dead."""
RENEW_S = 20.0
ASK_S = 1.0
"""How often a taken slot is asked for, and whether the wait is to end."""
FREE_S = 15.0
"""How often slots of runs that were killed are looked for meanwhile."""

_LOCKED = 423
_LOG = logging.getLogger("retune.prefect")


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the server says to a run that wants a slot."""

    taken: bool = False
    """True: all slots are taken."""
    lease: UUID | None = None
    """Of the slot. None, and nothing is taken: the limit does not exist."""


def limit_name(device: str) -> str:
    """The name of the limit of a device: `prefect gcl create NAME --limit 1` makes it."""
    return f"retune-device-{slug(device)}"


@contextmanager
def device_slot(device: str, run: UUID) -> Generator[None]:
    """The flow run has a slot of the device for the time of the context, if slots are limited.

    Waits while all are taken, and says on the log who has them. A server that does not answer
    limits nothing. Raises: what ends the wait, see `retune.core.waiting`.
    """
    lease = _acquired(device, run)
    if lease is None:
        yield
        return
    over = threading.Event()
    threading.Thread(target=_renew, args=(lease, over), name="slot", daemon=True).start()
    try:
        yield
    finally:
        over.set()
        SERVER.ask(lambda client: client.release_concurrency_slots_with_lease(lease))


def _acquired(device: str, run: UUID) -> UUID | None:
    """The lease of the slot; None if there is nothing to lease."""
    began, freed = time.monotonic(), -math.inf
    said = False
    while (answer := _asked(device, run)).taken:
        if time.monotonic() - freed >= FREE_S:
            freed = time.monotonic()
            free_slots(device)
            continue
        if not said:
            said = True
            _LOG.warning("%s; waiting for a slot of %s", _holders(device), limit_name(device))
        check_waiting()
        time.sleep(ASK_S)
    if said:
        _LOG.warning("the wait for a slot is over after %.0f s", time.monotonic() - began)
    if (lease := answer.lease) is None:
        return None
    # A process that finds this run dead gives the slot back: see `reap`.
    SERVER.ask(lambda client: client.update_flow_run_labels(run, {LEASE: str(lease)}))
    return lease


def _asked(device: str, run: UUID) -> _Answer:
    return SERVER.ask(lambda client: _ask_for(client, device, run)) or _Answer()


def _ask_for(client: SyncPrefectClient, device: str, run: UUID) -> _Answer:
    holder = ConcurrencyLeaseHolder(type="flow_run", id=run)
    names = [limit_name(device)]
    try:
        answer = client.increment_concurrency_slots_with_lease(
            names, 1, "concurrency", LEASE_S, holder
        ).json()
    except httpx.HTTPStatusError as error:
        if error.response.status_code != _LOCKED:
            raise
        return _Answer(taken=True)
    return _Answer(lease=UUID(answer["lease_id"]) if answer["limits"] else None)


def _holders(device: str) -> str:
    """Who has the slots, in words."""
    runs = SERVER.ask(lambda client: running_runs(client, f"{DEVICE}{device}")) or []
    known = [
        f"flow run {run.name!r} since {run.start_time:%Y-%m-%d %H:%M:%S} UTC"
        for run in runs
        if LEASE in run.labels and run.start_time
    ]
    frees = f"prefect gcl update {limit_name(device)} --active-slots 0"
    unknown = f"a run that is not known (`{frees}` frees its slot)"
    return f"device {device} is taken by {', '.join(known) or unknown}"


def _renew(lease: UUID, over: threading.Event) -> None:
    """Holds the slot until `over`; without an answer it is free after LEASE_S."""
    while not over.wait(RENEW_S):
        SERVER.ask(lambda client: client.renew_concurrency_lease(lease, LEASE_S))

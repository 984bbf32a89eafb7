"""The scheduler of a farm: hands batches to boards, and knows which boards there are.

Read `run_scheduler`. It is distributed's scheduler with a restricted unpickler, see
`device.remote`: it passes bytes on, has no web pages, and forgets everything when it ends. What was
measured is in the clients' record stores.
"""

import asyncio
import logging
import signal
from pathlib import Path
from typing import Any

from distributed import Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.stealing import WorkStealing

from retune.core.errors import DeviceError, InputError
from retune.device.remote.names import DEFAULT_PORT, is_loopback
from retune.device.remote.restricted_unpickler import (
    BOARDS_SAY,
    CLIENTS_SAY,
    keep_only,
    restrict_unpickling,
)
from retune.device.remote.security import security_of
from retune.device.remote.wire import MOST_BYTES

_LOG = logging.getLogger("retune.farm")

BOARD_TIMEOUT_S = 30.0
"""A board that has not been heard of for so long is lost; its batches go to others."""
_MOST_CHARS = 80
"""Of what a board says of itself, in a line of the log."""
_LOST_BOARDS = 1
"""Of a job may take so many boards with it before its client is told: it then asks for less."""


class _Register(SchedulerPlugin):
    """Says on the log which boards come and go."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        """Address -> name and key."""

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """A board has come."""
        found = scheduler.workers[worker]
        keys = ", ".join(sorted(resource.partition("/")[0] for resource in found.resources))
        self._known[worker] = f"{str(found.name)[:_MOST_CHARS]!r} of key {keys[:_MOST_CHARS]!r}"
        _LOG.info("board %s is there, at %s", self._known[worker], worker)

    def remove_worker(self, scheduler: Scheduler, worker: str, **_: Any) -> None:  # noqa: ARG002
        """A board has gone, or was not heard of for too long."""
        _LOG.info("board %s is gone", self._known.pop(worker, worker))


class FarmScheduler(Scheduler):
    """distributed's scheduler, as far as a farm needs it."""

    def __init__(self, most_bytes: int = MOST_BYTES, **kwargs: Any) -> None:
        self.most_bytes = most_bytes
        super().__init__(
            **kwargs,
            allowed_failures=_LOST_BOARDS,
            extensions={"stealing": WorkStealing},
            plugins=[_Register()],
            dashboard=False,
        )
        self.handlers["retune_boards"] = self.boards
        for known in (self.handlers, self.stream_handlers):
            keep_only(known, BOARDS_SAY | CLIENTS_SAY)

    def start_http_server(self, *_: Any, **__: Any) -> None:
        """There are no web pages: they would be open to everybody."""

    def boards(self) -> dict[str, Any]:
        """What `link.Link.boards` reads: each board, and the jobs that no board is there for."""
        found = [
            {
                "name": str(ws.name),
                "address": ws.address,
                "resources": list(ws.resources),
                "about": ws.extra.get("retune", ""),
                "jobs": len(ws.processing),
                "running": [str(ts.key) for ts in ws.executing],
            }
            for ws in self.workers.values()
        ]
        waiting: dict[str, int] = {}
        for ts in self.tasks.values():
            if ts.state in ("no-worker", "queued"):
                for resource in ts.resource_restrictions or {}:
                    waiting[resource] = waiting.get(resource, 0) + 1
        return {"boards": found, "waiting": waiting, "most_bytes": self.most_bytes}


def run_scheduler(
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    *,
    certs: Path | None = None,
    plain: bool = False,
    most_bytes: int = MOST_BYTES,
    board_timeout_s: float = BOARD_TIMEOUT_S,
) -> None:
    """Serves until SIGTERM or SIGINT; the log has the address.

    `plain` is without TLS, and for this machine alone. Raises: InputError for a host that is not
    this machine without TLS, or certificates that cannot be used; DeviceError if the port is taken.
    """
    if plain and not is_loopback(host):
        raise InputError(
            f"scheduler: expected TLS off this machine, got none for {host}; anyone who reaches a "
            "farm without it runs programs there: see `retune farm certs`"
        )
    if plain and certs is not None:
        raise InputError("--plain and --certs: expected one of them, got both; leave one out")
    scheme = "tcp" if plain else "tls"
    security = security_of(f"{scheme}://{host}:{port}", "scheduler", certs)
    restrict_unpickling("scheduler", most_bytes, certs)

    async def main() -> None:
        options: dict[str, Any] = {"security": security} if security else {}
        scheduler = await _started(
            most_bytes,
            host=host,
            port=port,
            protocol=scheme,
            worker_ttl=board_timeout_s,
            **options,
        )
        _LOG.info("scheduler at %s", scheduler.address)
        stop = stop_event()
        await stop.wait()
        await scheduler.close()

    asyncio.run(main())


async def _started(most_bytes: int, **options: Any) -> FarmScheduler:
    """The scheduler, which listens. Raises: DeviceError if it cannot."""
    try:
        scheduler = FarmScheduler(most_bytes, **options)
        await scheduler
    except (OSError, RuntimeError) as error:
        why = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(why, OSError):
            raise
        address = f"{options['protocol']}://{options['host']}:{options['port']}"
        raise DeviceError(
            f"{address}: expected an address to listen on, got one that cannot be ({why}); is a "
            "scheduler there already? --port 0 takes any that is free"
        ) from error
    return scheduler


def stop_event() -> asyncio.Event:
    """Set by SIGTERM and SIGINT, in the loop that runs."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop

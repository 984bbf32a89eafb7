"""A board of a farm: takes jobs of bytes, one at a time, and survives whatever is in them.

    python -m retune.farm.serve --key rk3399 --scheduler tls://farm:8786 --certs board

Needs numpy, pyopencl, safetensors and distributed, and nothing else of what retune is installed
with. Kernels run in processes of their own (`device.measure`); the device is leased meanwhile, so
that a local user and the farm do not measure at once. Read `serve` and `service.Service`.
"""

import argparse
import asyncio
import logging
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Worker

from retune.core.config import knob
from retune.core.errors import RetuneError
from retune.core.keys import content_key
from retune.core.schema import to_json
from retune.core.target import DeviceSpec
from retune.device.opening import spec_of
from retune.device.remote.link import AboutBoard, about_board
from retune.device.remote.names import check_address, check_key, loopback_of
from retune.device.remote.restricted_unpickler import (
    BOARD_MESSAGES,
    BOARD_OPERATIONS,
    keep_only,
    restrict_unpickling,
)
from retune.device.remote.security import security_of
from retune.device.remote.wire import MOST_BYTES, most_bytes_of
from retune.farm.logs import log_lines
from retune.farm.reconnect import NotLetInError, Pauses, connect_in_one_try
from retune.farm.scheduler import stop_event
from retune.farm.service import Service

_LOG = logging.getLogger("retune.farm")

_GIVE_UP_S = 20.0
"""After which one try has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardSettings:
    """What a board is started with."""

    key: str
    scheduler: str
    device: str = "pocl"
    name: str = ""
    """By default the host's name."""
    certs: Path | None = None
    port: int = 0
    """That the scheduler reaches it at; 0: any that is free."""
    most_bytes: int = MOST_BYTES


class BoardWorker(Worker):
    """distributed's worker, as far as a board needs it."""

    def __init__(self, scheduler: str, service: Service, about: AboutBoard, **kwargs: Any) -> None:
        self.board = service
        super().__init__(
            scheduler,
            name=service.name,
            nthreads=1,
            resources={service.resource: 1},
            memory_limit=0,
            dashboard=False,
            extensions={},
            startup_information={"retune": lambda _: to_json(about)},
            death_timeout=_GIVE_UP_S,
            **kwargs,
        )
        keep_only(self.handlers, BOARD_OPERATIONS)
        keep_only(self.stream_handlers, BOARD_MESSAGES)

    def start_http_server(self, *_: Any, **__: Any) -> None:
        """There are no web pages: they would be open to everybody."""


def resource_of(key: str, spec: DeviceSpec) -> str:
    """What jobs for boards of that key and kind ask for."""
    return f"{check_key(key)}/{content_key(spec.fingerprint)[:8]}"


def serve(settings: BoardSettings, *, ready: Callable[[str], None] = lambda name: None) -> None:
    """Serves until SIGTERM or SIGINT; a scheduler that is away is waited for.

    Raises: InputError for a device that there is not, or certificates that cannot be used.
    """
    address = check_address(settings.scheduler)
    security = security_of(address, "board", settings.certs)
    spec = spec_of(settings.device)
    restrict_unpickling("board", settings.most_bytes, settings.certs)
    connect_in_one_try()
    about = about_board(spec, settings.most_bytes)
    name = settings.name or socket.gethostname()

    async def main(folder: str, service: Service) -> None:
        stop = stop_event()
        options: dict[str, Any] = {"security": security} if security else {}
        options["host"] = loopback_of(address)  # else all of the board's addresses, behind TLS
        options["port"] = settings.port
        pauses, said = Pauses(), ""
        while not stop.is_set():
            worker = BoardWorker(address, service, about, local_directory=folder, **options)
            why, closed = await _not_started(worker)
            pause_s = pauses.next_s(closed=closed)
            if why:
                if why != said or closed:
                    _LOG.warning(
                        "%s: board %s is not in the farm (%s); trying again in %.0f s",
                        *(address, name, why, pause_s),
                    )
            else:
                _LOG.info("board %s serves %s at %s", name, settings.key, address)
                ready(name)
                await _first(stop.wait(), worker.finished())
                await worker.close(reason="the board is stopped", executor_wait=False)
            said = why
            if not stop.is_set():
                await _first(stop.wait(), asyncio.sleep(pause_s))

    resource = resource_of(settings.key, spec)
    with (
        tempfile.TemporaryDirectory(prefix="retune-board-") as folder,
        Service(
            name, resource, settings.device, Path(folder), most_bytes=settings.most_bytes
        ) as service,
    ):
        asyncio.run(main(folder, service))


async def _not_started(worker: BoardWorker) -> tuple[str, bool]:
    """Why it is not, empty once it serves; and whether the scheduler closed the connection."""
    try:
        await worker
    except (OSError, RuntimeError) as error:
        await worker.close(reason="no scheduler", executor_wait=False)
        cause = error.__cause__ or error
        why = str(cause).strip().partition("\n")[0]
        if "name taken" in why:
            return "a board of that name is there; give this one --name", False
        closed = isinstance(cause, NotLetInError) and cause.closed
        return why or "no scheduler answers; check address and certificates", closed
    return "", False


async def _first(*waits: Any) -> None:
    """Until one of them is done; the others are given up."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    _, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m retune.farm.serve", description=__doc__)
    parser.add_argument("--key", required=True, help="what the board is asked for by")
    parser.add_argument("--scheduler", default=knob("RETUNE_SCHEDULER"), help="tls://HOST:PORT")
    parser.add_argument("--device", default="pocl", help="which of the board's devices")
    parser.add_argument("--name", default="", help="the board's own name (default: the host's)")
    parser.add_argument("--certs", type=Path, help="folder with ca.pem, cert.pem, key.pem")
    parser.add_argument("--listen", type=int, default=0, help="port for the scheduler (0: any)")
    parser.add_argument("--most-mb", type=float, default=MOST_BYTES / 2**20)
    given = parser.parse_args(arguments)
    log_lines()
    try:
        serve(
            BoardSettings(
                key=given.key,
                scheduler=given.scheduler,
                device=given.device,
                name=given.name,
                certs=given.certs,
                port=given.listen,
                most_bytes=most_bytes_of(given.most_mb),
            )
        )
    except RetuneError as error:
        print(f"retune: {error}", file=sys.stderr)  # noqa: T201  the program's own end
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

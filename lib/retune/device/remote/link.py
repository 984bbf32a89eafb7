"""A client's link to a farm's scheduler: which boards there are, and jobs of bytes for them.

Read `Link`. A scheduler that is gone is waited for; what was lost with it is asked for again by
those who asked. No other file of the client's knows distributed.
"""

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar, cast

from distributed import Client, Future

import retune
from retune.core.errors import DeviceError, InputError, RecordError
from retune.core.schema import from_json
from retune.core.stopwatch import turn
from retune.core.target import DeviceSpec
from retune.core.waiting import check_waiting
from retune.device.remote.names import FarmName, KeyRow, check_address
from retune.device.remote.restricted_unpickler import restrict_unpickling
from retune.device.remote.security import security_of
from retune.device.remote.wire import MOST_BYTES, WIRE
from retune.device.remote.work import carry_out

T = TypeVar("T")

_LOG = logging.getLogger("retune.farm")

_CONNECT_S = 10.0
_ANSWER_S = 30.0
"""A scheduler that was stopped keeps its connections open, and says nothing."""
_AROUND_BYTES = 1 << 16
"""What distributed puts around a job, and more."""
_GLANCE_S = 1.0
"""While an answer is waited for, the boards are looked at so often."""
PATIENCE_S = 600.0
"""A scheduler, or a board of the key, that is away may come back within so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AboutBoard:
    """What a board says of itself when it comes."""

    wire: int
    retune: str
    distributed: str
    """Versions: client and board have the same wire and the same distributed."""
    spec: DeviceSpec
    most_bytes: int = MOST_BYTES
    """It takes no larger message."""

    @property
    def versions(self) -> tuple[int, str]:
        """What has to be the same on both sides."""
        return self.wire, self.distributed


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteBoard:
    """A board that is there."""

    name: str
    address: str
    resource: str
    """`KEY/KIND`: what its jobs ask for."""
    jobs: int
    """That it has, or that wait for it."""
    about: AboutBoard
    running: tuple[str, ...] | None = None
    """Keys of the jobs that it carried out a moment ago; None: its scheduler does not say."""

    @property
    def key(self) -> str:
        """What it is asked for by."""
        return self.resource.partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Boards:
    """All boards of a farm, and jobs that wait for boards that are not there, by resource."""

    found: tuple[RemoteBoard, ...]
    waiting: Mapping[str, int]
    most_bytes: int = MOST_BYTES
    """The scheduler passes on no larger message."""

    def most_bytes_to(self, resource: str) -> int:
        """The most bytes that a job for any board of that resource may have."""
        taken = (board.about.most_bytes for board in self.found if board.resource == resource)
        return min(MOST_BYTES, self.most_bytes, *taken) - _AROUND_BYTES

    def of(self, key: str) -> tuple[RemoteBoard, ...]:
        """Those of the key."""
        return tuple(board for board in self.found if board.key == key)

    def table(self) -> tuple[KeyRow, ...]:
        """A row for each key, in their order."""
        keys = {board.key for board in self.found} | {r.partition("/")[0] for r in self.waiting}
        return tuple(self._row(key) for key in sorted(keys))

    def _row(self, key: str) -> KeyRow:
        mine = self.of(key)
        away = sum(n for resource, n in self.waiting.items() if resource.partition("/")[0] == key)
        return KeyRow(
            key=key,
            total=len(mine),
            free=sum(not board.jobs for board in mine),
            pending=away + sum(max(0, board.jobs - 1) for board in mine),
        )


class LostError(DeviceError):
    """A job did not come back: its board went, or the scheduler did."""


class AwayError(DeviceError):
    """The scheduler cannot be reached."""


class Link:
    """A connection to one scheduler, made anew when it breaks. For any threads."""

    def __init__(
        self, address: str, *, certs: Path | None = None, patience_s: float = PATIENCE_S
    ) -> None:
        """Connects at the first question; `certs` is RETUNE_CERTS by default.

        Raises: InputError for an address or certificates that cannot be used.
        """
        self.address = check_address(address)
        self.patience_s = patience_s
        self._security = security_of(self.address, "client", certs)
        self._client: Client | None = None
        self._seen = Boards(found=(), waiting={})
        self._lock = threading.Lock()
        restrict_unpickling("client", MOST_BYTES, certs)

    def boards(self) -> Boards:
        """The boards there are now. Raises: AwayError if the scheduler does not answer."""
        client = self._connected()
        try:
            scheduler: Any = client.scheduler
            answer: Any = client.sync(scheduler.retune_boards, callback_timeout=_ANSWER_S)
        except Exception as error:
            raise AwayError(f"{self.address}: the farm's scheduler does not answer") from error
        self._seen = _boards(answer)
        return self._seen

    def most_bytes_to(self, resource: str) -> int:
        """Of a job for a board of that resource, of those that were there a moment ago."""
        return self._seen.most_bytes_to(resource)

    def ask(self, job: bytes, resource: str, avoid: Collection[str] = ()) -> bytes:
        """A board's answer, as it came; a board whose name is in `avoid` gets the job last.

        Raises: LostError if the job took its boards with it; AwayError if the scheduler went;
        DeviceError if for `patience_s` there was no board of that resource.
        """
        client = self._connected()
        options: dict[str, Any] = {}
        if avoid:
            others = [
                b.address
                for b in self.boards().found
                if b.resource == resource and b.name not in avoid
            ]
            if others:
                options = {"workers": others, "allow_other_workers": True}
        try:
            future = client.submit(
                carry_out,
                job,
                key=f"retune-{uuid.uuid4().hex}",
                pure=False,
                resources={resource: 1},
                **options,
            )
        except Exception as error:
            raise AwayError(f"{self.address}: the farm's scheduler is gone") from error
        try:
            return self._result(future, resource)
        finally:
            future.release()

    def close(self) -> None:
        """The connection is closed; the next question opens another one."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            _close(client)

    def _result(self, future: Future[Any], resource: str) -> bytes:
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        alone_since: float | None = None
        with turn() as board:
            board.is_ours()
            while not done.wait(_GLANCE_S):
                check_waiting()
                alone_since = self._looked_after(future, resource, alone_since)
                board.become("using" if self._is_running(future, resource) else "waiting")
        if future.status not in ("finished", "error"):
            raise AwayError(f"{self.address}: the farm's scheduler is gone")
        try:
            answer: object = future.result()
        except CancelledError as error:
            raise AwayError(f"{self.address}: the farm's scheduler is gone") from error
        except Exception as error:
            raise LostError("a job was lost with its boards") from error
        if not isinstance(answer, bytes):
            raise LostError(f"expected bytes of a board, got {type(answer).__name__}")
        return answer

    def _is_running(self, future: Future[Any], resource: str) -> bool:
        """Whether a board of that resource carried the job out when the boards were seen last.

        True where a scheduler of an earlier version does not say.
        """
        jobs = [board.running for board in self._seen.found if board.resource == resource]
        return any(running is None or future.key in running for running in jobs)

    def _looked_after(
        self, future: Future[Any], resource: str, alone_since: float | None
    ) -> float | None:
        """Since when there has been no board for the job; None if there is one.

        Raises: DeviceError once that is too long; AwayError if the scheduler went.
        """
        if future.cancelled():
            raise AwayError(f"{self.address}: the farm's scheduler is gone")
        if any(board.resource == resource for board in self.boards().found):
            return None
        now = time.monotonic()
        if alone_since is None:
            _LOG.warning("no board %s is there; waiting for one", resource)
            return now
        if now - alone_since > self.patience_s:
            raise DeviceError(
                f"{self.address}: no board {resource} for {self.patience_s:g} s; start one, and "
                "the same command goes on"
            )
        return alone_since

    def _connected(self) -> Client:
        with self._lock:
            if self._client is not None and self._client.status == "running":
                return self._client
            if self._client is not None:
                broken, self._client = self._client, None
                _close(broken)
            self._client = self._opened()
            return self._client

    def _opened(self) -> Client:
        options: dict[str, Any] = {"security": self._security} if self._security else {}
        try:
            return Client(
                self.address, timeout=_CONNECT_S, set_as_default=False, name="retune", **options
            )
        except OSError as error:
            raise AwayError(
                f"{self.address}: expected a farm's scheduler, got none ({error or 'no answer'}); "
                "start `retune farm scheduler` there, or check address and certificates"
            ) from error


def _close(client: Client) -> None:
    """One whose scheduler is gone is left to itself."""
    with contextlib.suppress(OSError, TimeoutError, RuntimeError):
        client.close(timeout=_CONNECT_S)


def persevere(link: Link, ask: Callable[[], T], given_up: threading.Event) -> T:
    """What `ask` returns; while the scheduler is away it is asked again, for the link's patience.

    Raises: AwayError after that, or once it is `given_up`.
    """
    away_since: float | None = None
    while True:
        try:
            return ask()
        except AwayError as error:
            now = time.monotonic()
            if away_since is None:
                away_since = now
                _LOG.warning("%s; trying again", error)
            if now - away_since > link.patience_s or given_up.wait(_GLANCE_S):
                raise


@cache
def link_to(address: str) -> Link:
    """The process's link to that scheduler."""
    return Link(address)


def boards_of(name: FarmName, link: Link | None = None) -> tuple[RemoteBoard, ...]:
    """The boards of that key, all of one kind: there is one at least. By the process's own link.

    Raises: InputError for a key that no board has, or boards that differ; AwayError if there is no
    scheduler.
    """
    boards = (link or link_to(name.scheduler)).boards()
    mine = boards.of(name.key)
    if not mine:
        known = ", ".join(sorted({board.key for board in boards.found})) or "none"
        raise InputError(
            f"device {str(name)!r}: expected a key that a board has, got {name.key!r}; boards "
            f"there have: {known}. Start one: retune farm serve --key {name.key}"
        )
    one_kind(name, mine)
    return mine


def one_kind(name: FarmName, boards: Sequence[RemoteBoard]) -> None:
    """Raises: InputError if the boards are of several kinds, or of another version than this."""
    kinds = sorted({board.about.spec.fingerprint for board in boards})
    if len(kinds) > 1:
        raise InputError(
            f"device {str(name)!r}: expected boards of one kind, got {len(kinds)} "
            f"({'; '.join(kinds)}); give each kind a key of its own"
        )
    ours = about_board(boards[0].about.spec)
    strange = next((board for board in boards if board.about.versions != ours.versions), None)
    if strange is not None:
        theirs = strange.about
        raise InputError(
            f"board {strange.name}: expected retune {ours.retune} with distributed "
            f"{ours.distributed}, as here, got retune {theirs.retune} with distributed "
            f"{theirs.distributed}; install the same on both"
        )


def about_board(spec: DeviceSpec, most_bytes: int = MOST_BYTES) -> AboutBoard:
    """What a board with that device says of itself, installed as this process is."""
    return AboutBoard(
        wire=WIRE,
        retune=retune.__version__,
        distributed=version("distributed"),
        spec=spec,
        most_bytes=most_bytes,
    )


def _running(stated: object) -> tuple[str, ...] | None:
    """Keys of jobs; None where nothing is stated."""
    if not isinstance(stated, (list, tuple)):  # distributed makes tuples of lists
        return None
    return tuple(map(str, cast("Sequence[object]", stated)))


def _boards(answer: object) -> Boards:
    """What the scheduler says, as far as it can be understood."""
    stated = cast("Mapping[str, Any]", answer if isinstance(answer, dict) else {})
    found: list[RemoteBoard] = []
    for entry in stated.get("boards", ()):
        try:
            about = from_json(AboutBoard, str(entry["about"]))
            (resource,) = entry["resources"]
        except (RecordError, ValueError, KeyError, TypeError):
            continue  # a foreign worker, not a board
        found.append(
            RemoteBoard(
                name=str(entry["name"]),
                address=str(entry["address"]),
                resource=str(resource),
                jobs=int(entry["jobs"]),
                about=about,
                running=_running(entry.get("running")),
            )
        )
    waiting = {str(name): int(n) for name, n in dict(stated.get("waiting", {})).items()}
    most_bytes = int(stated.get("most_bytes", MOST_BYTES))
    return Boards(found=tuple(found), waiting=waiting, most_bytes=most_bytes)

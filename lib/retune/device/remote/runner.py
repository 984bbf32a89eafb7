"""FarmRunner: a Runner whose devices are the boards of a key, wherever they are.

Each batch is a job for any free board; at most two are in flight for each board, so that the next
one is there when one is done. What fails by the farm and not by a candidate (a board that is lost,
a scheduler that restarts, a board that cannot measure) is tried again, on another board if there
is one. A batch that takes its boards with it is taken apart; only a candidate that does so alone,
again and again, is what crashed them.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import cache

from retune.codegen.source import ProgramSource
from retune.core.errors import DeviceError, InputError
from retune.core.target import DeviceSpec
from retune.device.measure.gate import HOST
from retune.device.measure.workload import MeasureOptions, Workload, check_fits, prepared
from retune.device.remote.batches import MEASURE, pack_batch, pack_workload, unpack_rows
from retune.device.remote.link import (
    AwayError,
    Link,
    LostError,
    boards_of,
    link_to,
    persevere,
)
from retune.device.remote.names import FarmName
from retune.device.remote.wire import (
    WIRE,
    Envelope,
    MessageParts,
    RefusedError,
    Reply,
    digest_of,
    pack,
    unpack,
)
from retune.records.schema import Measurement, failed

_LOG = logging.getLogger("retune.farm")

IN_FLIGHT = 2
"""Batches of one board: one that it measures, and one that waits there."""
_TRIES = 4
"""A batch that boards cannot do, without a fault of its own, is given up after so many."""
_CRASHES = 2
"""A candidate that was lost with its boards so often while it was alone has crashed them."""
_MOST_THREADS = 512
_GLANCE_S = 1.0
"""Boards are counted so often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a board made of a job."""

    board: str
    body: str
    parts: MessageParts


class TooLargeError(InputError):
    """A job is larger than what scheduler or boards take."""


class FarmRunner:
    """A Runner for the boards of a key. May be shared by threads."""

    def __init__(self, name: FarmName, *, link: Link | None = None) -> None:
        """Raises: InputError for a key that no board has; DeviceError if there is no scheduler."""
        self._name = name
        self._link = link or link_to(name.scheduler)
        boards = boards_of(name, self._link)
        self._board = boards[0]
        self._number = len(boards)
        self._closed = threading.Event()
        """Boards are counted until then, and a scheduler that is away is waited for."""
        self._flight = 0
        self._slots = threading.Condition()
        self._workloads: dict[str, Workload] = {}
        self._digests: dict[str, str] = {}
        self._threads = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="farm")
        threading.Thread(target=self._count, name="farm boards", daemon=True).start()

    @property
    def spec(self) -> DeviceSpec:
        """The first board's device; all are of its kind."""
        return self._board.about.spec

    @property
    def capacity(self) -> int:
        """The number of boards that were there a moment ago, and one at least."""
        return max(1, self._number)

    @property
    def slots(self) -> int:
        """Two for each board."""
        return IN_FLIGHT * self.capacity

    def working(self) -> AbstractContextManager[None]:
        """Boards are not disturbed, but what is measured on this machine beside them can be."""
        return HOST.working()

    def prepare(self, workload: Workload) -> None:
        """Makes the workload known; a board gets it with its first batch."""
        self._digests[workload.key] = digest_of(pack_workload(workload))
        self._workloads[workload.key] = workload

    def forget(self, workload_key: str) -> None:
        """Its arrays are not held any longer."""
        self._workloads.pop(workload_key, None)

    def submit(
        self, workload_key: str, candidates: Sequence[ProgramSource], options: MeasureOptions
    ) -> Future[list[Measurement]]:
        """Hands the batch in; waits only while as many are in flight as boards take.

        Raises: InputError for an unknown workload, or a candidate that does not fit its arrays. The
        future raises DeviceError if no board could do it.
        """
        workload = prepared(self._workloads, workload_key)
        for source in candidates:
            check_fits(workload, source)
        self._enter()
        try:
            here = copy_context()  # whose stopwatch stands still while boards are busy
            return self._threads.submit(
                here.run, self._carried_out, workload_key, candidates, options
            )
        except BaseException:
            self._leave()
            raise

    def measure(
        self, workload_key: str, candidates: Sequence[ProgramSource], options: MeasureOptions
    ) -> list[Measurement]:
        """The rows of one batch. Raises: as `submit` and its future."""
        return self.submit(workload_key, candidates, options).result()

    def close(self) -> None:
        """Nothing more is handed in; the link stays, others may use it."""
        self._closed.set()
        self._threads.shutdown(wait=False, cancel_futures=True)

    # -- slots ----------------------------------------------------------------------------------

    def _enter(self) -> None:
        with self._slots:
            self._slots.wait_for(lambda: self._flight < self.slots)
            self._flight += 1

    def _leave(self) -> None:
        with self._slots:
            self._flight -= 1
            self._slots.notify()

    def _count(self) -> None:
        """Boards come and go."""
        while not self._closed.wait(_GLANCE_S):
            with contextlib.suppress(AwayError):
                there = self._link.boards().found
                self._number = sum(board.resource == self._board.resource for board in there)
            with self._slots:
                self._slots.notify_all()

    # -- a batch ---------------------------------------------------------------------------------

    def _carried_out(
        self, key: str, sources: Sequence[ProgramSource], options: MeasureOptions
    ) -> list[Measurement]:
        try:
            return self._rows(key, sources, options)
        finally:
            self._leave()

    def _rows(
        self, key: str, sources: Sequence[ProgramSource], options: MeasureOptions
    ) -> list[Measurement]:
        """Of the batch whole; where it took its boards with it, of each candidate by itself."""
        try:
            return self._batch(key, sources, options)
        except TooLargeError:
            half = len(sources) // 2
            if not half:
                raise
            parts = (sources[:half], sources[half:])
            return [row for part in parts for row in self._rows(key, part, options)]
        except LostError as lost:
            if len(sources) > 1:
                _LOG.warning("%s; its %d candidates are tried one by one", lost, len(sources))
                return [row for one in sources for row in self._rows(key, [one], options)]
        for _ in range(_CRASHES - 1):
            try:
                return self._batch(key, sources, options)
            except LostError:
                continue
        why = f"the board was lost, {_CRASHES} times and more, while it was measured there alone"
        return [failed("crash", why)]

    def _batch(
        self, key: str, sources: Sequence[ProgramSource], options: MeasureOptions
    ) -> list[Measurement]:
        """Raises: LostError if its boards were lost; DeviceError if boards could not do it."""
        workload, digest = self._workloads[key], self._digests[key]
        body, arrays = pack_batch(workload, digest, sources, options)

        def blobs() -> dict[str, bytes]:
            return {digest: pack_workload(workload)}

        asking = Asking(self._link, self._board.resource, self._closed)
        answer = asking.answer(MEASURE, body, MessageParts(arrays=arrays), (digest,), blobs)
        try:
            return unpack_rows(answer.body, answer.board, len(sources))
        except RefusedError as error:
            raise DeviceError(
                f"board {answer.board} does not answer with rows: {error}; is it one of this farm?"
            ) from error


@dataclass(frozen=True, slots=True)
class Asking:
    """Asks the boards of a resource."""

    link: Link
    resource: str
    given_up: threading.Event = field(default_factory=threading.Event)
    """Once it is set, a scheduler that is away is waited for no longer."""

    def answer(
        self,
        kind: str,
        body: str,
        parts: MessageParts,
        needs: Sequence[str] = (),
        blobs: Callable[[], dict[str, bytes]] = dict,
    ) -> Answer:
        """A board's answer. `blobs` are sent along to a board that lacks some of `needs`.

        Raises: InputError for a job that boards refuse; TooLargeError for one that is too large for
        them; LostError if it took its boards with it; DeviceError if boards could not do it.
        """
        avoid: list[str] = []
        sent = parts
        whole = False
        head = Envelope(wire=WIRE, kind=kind, board=self.resource, needs=tuple(needs), body=body)
        while True:
            job = pack(head, sent)
            if len(job) > (most := self.link.most_bytes_to(self.resource)):
                raise TooLargeError(
                    f"job for {self.resource}: expected at most {most} bytes, got {len(job)}; "
                    "start scheduler and boards with a larger --most-mb"
                )
            reply, got = self._asked(job, avoid)
            match reply.state:
                case "done":
                    return Answer(board=reply.board, body=reply.body, parts=got)
                case "missing" if not whole:
                    sent, whole = MessageParts(arrays=parts.arrays, blobs=blobs()), True
                case "missing" | "refused":
                    raise InputError(f"board {reply.board} refuses a job: {reply.why}")
                case "lost":
                    avoid.append(reply.board)
                    _LOG.warning("board %s: %s; trying another board", reply.board, reply.why)
                    if len(avoid) >= _TRIES:
                        raise DeviceError(
                            f"{_TRIES} boards could not do a job; {reply.board}: {reply.why}"
                        )

    def _asked(self, job: bytes, avoid: Sequence[str]) -> tuple[Reply, MessageParts]:
        answer = persevere(
            self.link, lambda: self.link.ask(job, self.resource, avoid), self.given_up
        )
        try:
            return unpack(Reply, answer)
        except RefusedError as error:
            raise DeviceError(
                f"a board of {self.resource} does not answer as one: {error}"
            ) from error


def asking_of(name: FarmName) -> Asking:
    """Who asks the boards of that key. Raises: as FarmRunner."""
    return Asking(link_to(name.scheduler), boards_of(name)[0].resource)


@cache
def spec_in_farm(name: FarmName) -> DeviceSpec:
    """The device of the boards of that key, the same for all of a process' questions.

    Raises: as FarmRunner.
    """
    return boards_of(name)[0].about.spec

"""The service of a board: it reads and checks a job, and hands it to its kind's handler.

Read `Service.carry_out`, which raises nothing: whatever a job is, there is an answer, and the board
goes on. Blobs that jobs need are kept, the latest of them, so that they travel once.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Literal, Protocol, Self, cast

from retune.core.errors import InputError, RetuneError, sentence
from retune.core.keys import content_key
from retune.device.remote.wire import (
    MOST_BYTES,
    WIRE,
    Envelope,
    MessageParts,
    RefusedError,
    Reply,
    pack,
    unpack,
)

_LOG = logging.getLogger("retune.farm")

_KEPT_BYTES = 256 << 20
"""Blobs that a board keeps; one that is larger is kept alone."""
_DIGEST_SHOWN, _MOST_SHOWN = 80, 3
"""Of what was asked for: characters of a digest, and digests."""
KINDS = {"measure": "retune.farm.measuring", "bundle": "retune.farm.bundles"}
"""Kind of a job -> module whose `open_handler` makes who carries it out."""


class JobHandler(Protocol):
    """Carries out jobs of one kind, one at a time."""

    def carry_out(
        self, body: str, parts: MessageParts, blob: Callable[[str], bytes]
    ) -> tuple[str, MessageParts]:
        """Body and parts of the answer; `blob` gives one that the job needs, by digest.

        Raises: RefusedError for data that is not a job; DeviceError where the board cannot do it.
        """
        ...

    def close(self) -> None:
        """Releases the device."""
        ...


class Service:
    """The jobs of one board."""

    def __init__(
        self,
        name: str,
        resource: str,
        device: str,
        folder: Path,
        *,
        most_bytes: int = MOST_BYTES,
        kept_bytes: int = _KEPT_BYTES,
    ) -> None:
        """`resource` is what its jobs ask for; nothing is opened yet."""
        self.name = name
        self.resource = resource
        self._device = device
        self._folder = folder
        self._most_bytes = most_bytes
        self._kept_bytes = kept_bytes
        self._blobs: OrderedDict[str, bytes] = OrderedDict()
        self._handlers: dict[str, JobHandler] = {}
        self._turn = threading.Lock()
        """Held by the job that is carried out; one of a connection that was lost may be."""

    def carry_out(self, job: object) -> bytes:
        """The answer to a job; nothing is raised."""
        with self._turn:
            try:
                return self._answer(job)
            except RefusedError as error:
                _LOG.warning("refused a job: %s", error)
                return self._reply("refused", str(error))
            except InputError as error:
                _LOG.warning("refused a job: %s", sentence(error))
                return self._reply("refused", sentence(error))
            except (RetuneError, OSError, MemoryError) as error:
                _LOG.warning("could not do a job: %s", sentence(error))
                return self._reply("lost", sentence(error))
            except Exception as error:  # noqa: BLE001  the edge of the board: logged with its traceback
                _LOG.exception("a job met a bug")
                return self._reply("lost", f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Releases the device."""
        for handler in self._handlers.values():
            handler.close()
        self._handlers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, job: object) -> bytes:
        head, parts = unpack(Envelope, job, self._most_bytes)
        if head.wire != WIRE:
            raise RefusedError(f"expected version {WIRE} of what travels, got {head.wire}")
        if head.board != self.resource:
            raise RefusedError(
                f"expected a job for {self.resource}, got one for {head.board[:100]!r}"
            )
        if head.kind not in KINDS:
            raise RefusedError(f"expected a job of {', '.join(KINDS)}, got {head.kind[:100]!r}")
        self._keep(parts)
        missing = tuple(digest for digest in head.needs if digest not in self._blobs)
        if missing:
            if parts.blobs:
                named = ", ".join(repr(digest[:_DIGEST_SHOWN]) for digest in missing[:_MOST_SHOWN])
                raise RefusedError(
                    f"expected the blobs that the job needs, got none of {len(missing)}: {named}"
                )
            return pack(Reply(state="missing", board=self.name, needs=missing))
        begun = time.monotonic()
        _LOG.info("job of %s begins: %s", head.kind, job_name(head))
        body, made = self._handler(head.kind).carry_out(head.body, parts, self._blob)
        _LOG.info("job ended: %s, %.3f s", job_name(head), time.monotonic() - begun)
        return pack(Reply(state="done", board=self.name, body=body), made)

    def _reply(self, state: Literal["refused", "lost"], why: str) -> bytes:
        return pack(Reply(state=state, board=self.name, why=why))

    def _handler(self, kind: str) -> JobHandler:
        if kind not in self._handlers:
            opened = import_module(KINDS[kind]).open_handler(self._device, self._folder)
            self._handlers[kind] = cast("JobHandler", opened)
        return self._handlers[kind]

    def _blob(self, digest: str) -> bytes:
        if digest not in self._blobs:
            raise RefusedError(
                f"expected a job that says which blobs it needs, got {digest[:_DIGEST_SHOWN]!r}"
            )
        self._blobs.move_to_end(digest)
        return self._blobs[digest]

    def _keep(self, parts: MessageParts) -> None:
        """The blobs are there; the oldest others are not, if all take too much."""
        for digest, blob in parts.blobs.items():
            self._blobs[digest] = blob
            self._blobs.move_to_end(digest)
        while len(self._blobs) > max(1, len(parts.blobs)) and self._held() > self._kept_bytes:
            self._blobs.popitem(last=False)

    def _held(self) -> int:
        return sum(map(len, self._blobs.values()))


def job_name(head: Envelope) -> str:
    """A job in a log: short, and the same for the same job."""
    return content_key(head.body)[:8]

"""The restricted unpickler of a process in a farm: what distributed may receive there.

Read `restrict_unpickling`. distributed sends pickles between client, scheduler and worker, and a
pickle may name any function of any module. Here it may name five things, which the submission of
`work.carry_out` on bytes is made of. A message has a size at most, which is checked before there
is memory for it. Nothing is decompressed, and a server knows no operation but those that handing
out work needs. Over TLS a peer says what its certificate lets it say: boards hand out no work. What
is refused is one line in the log, and the process goes on.
"""

import io
import logging
import pickle
import sys
import traceback
import types
import warnings
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import dask.config
import distributed.client
import distributed.comm.tcp
import distributed.protocol.compression
import distributed.protocol.pickle
import distributed.scheduler
from distributed.comm.core import CommClosedError
from distributed.versions import VersionMismatchWarning

from retune.device.remote import work
from retune.device.remote.revoked import Revoked
from retune.device.remote.security import PEERS, Role, certs_folder, role_of
from retune.device.remote.wire import MOST_BYTES, RefusedError

_LOG = logging.getLogger("retune.farm")

ALLOWED_GLOBALS = frozenset(
    {
        ("builtins", "bytes"),
        ("dask._expr", "Expr._reconstruct"),
        ("dask._expr", "LLGExpr"),
        ("dask._task_spec", "Task"),
        (work.__name__, work.carry_out.__name__),
    }
)
"""What a pickle may name: a graph of one task, its function, and its argument."""
CLIENTS_SAY = frozenset(
    {
        *("identity", "gather", "register-client", "retune_boards", "log-event"),
        *("client-desires-keys", "client-releases-keys", "close-client", "heartbeat-client"),
        *("update-graph", "cancel-keys", "subscribe-topic", "unsubscribe-topic"),
    }
)
"""Operations and messages of clients that a scheduler knows."""
BOARDS_SAY = frozenset(
    {
        *("identity", "connection_stream", "register-worker", "heartbeat_worker", "unregister"),
        *("task-finished", "task-erred", "release-worker-data", "add-keys", "reschedule"),
        *("long-running", "request-refresh-who-has", "worker-status-change", "steal-response"),
        *("keep-alive", "missing-data", "log-event"),
    }
)
"""And those of boards."""
BOARD_OPERATIONS = frozenset({"connection_stream", "identity", "get_data", "ping"})
BOARD_MESSAGES = frozenset(
    {
        *("close", "cancel-compute", "compute-task", "free-keys", "remove-replicas"),
        *("steal-request", "refresh-who-has", "worker-status-change", "remove-worker"),
        "acquire-replicas",
    }
)

_CONFIG = {
    "distributed.comm.compression": None,
    "distributed.comm.retry.count": 0,
    "distributed.comm.timeouts.connect": "10s",
    "distributed.admin.large-graph-warning-threshold": "4GiB",
    "distributed.diagnostics.computations.nframes": 0,
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    "distributed.worker.profile.enabled": False,
    "distributed.worker.multiprocessing-method": "spawn",
    "distributed.worker.memory.terminate": False,
}


def restrict_unpickling(
    role: Role, most_bytes: int = MOST_BYTES, certs: Path | None = None
) -> None:
    """From now on distributed takes in, in this process, what a farm needs and nothing else.

    `role` is what the process is in its farm. Messages have so many bytes at most. Nobody is talked
    with whose certificate is on the list of those that were revoked, in the folder `certs`,
    RETUNE_CERTS by default. For the whole process: its other uses of Dask end.

    Raises: InputError if that list cannot be read.
    """
    revoked = Revoked(certs_folder(certs))
    dask.config.set(_CONFIG)
    warnings.filterwarnings("ignore", category=VersionMismatchWarning)  # `link` compares them
    users: Sequence[Any] = (
        distributed.protocol.pickle, distributed.scheduler, distributed.client
    )  # fmt: skip
    for module in users:
        module.pickle = _RESTRICTED
    known = distributed.protocol.compression.compressions
    for name in [name for name in known if name]:
        del known[name]
    _guard_messages(role, most_bytes, revoked)
    _one_line_each()


def keep_only(operations: MutableMapping[str, Any], allowed: Iterable[str]) -> None:
    """A server has no other operations than these."""
    for name in set(operations) - set(allowed):
        del operations[name]


def refuse(what: str) -> RefusedError:
    """The error to raise, which the log has in one line."""
    _LOG.warning("refused: %s", what)
    return RefusedError(what)


# -- pickles --------------------------------------------------------------------------------------


class _Unpickler(pickle.Unpickler):
    """Knows a handful of names."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) not in ALLOWED_GLOBALS:
            name = f"{module_name}.{global_name}"[:200]
            what = f"a message{_from()} that names {name}; only batches of kernels are taken"
            if sys.exc_info()[1] is not None:
                raise RefusedError(what)  # distributed tries whether its own error can be read
            raise refuse(what)
        if (module_name, global_name) == ("builtins", "bytes"):
            return _Bytes
        return super().find_class(module_name, global_name)


class _Bytes(bytes):
    """What a pickle gets for `bytes`, which of a number makes as many zeros; this does not."""

    def __new__(cls, data: object = b"", /) -> bytes:
        if isinstance(data, bytes | bytearray | memoryview):
            return bytes(data)
        raise refuse(f"a message{_from()} with {type(data).__name__} for bytes")


def _loads(data: bytes, /, *, buffers: Iterable[Any] | None = None, **_: object) -> Any:
    return _Unpickler(io.BytesIO(data), buffers=buffers).load()


_RESTRICTED = types.ModuleType("pickle", "pickle, with an Unpickler that knows a handful of names.")
_RESTRICTED.__dict__.update(
    {name: value for name, value in vars(pickle).items() if not name.startswith("__")},
    loads=_loads,
    load=None,
    Unpickler=_Unpickler,
)


# -- messages -------------------------------------------------------------------------------------

_LEFT: ContextVar[list[int] | None] = ContextVar("retune_farm_bytes_left", default=None)
"""Bytes that the message that is being read may still have."""
_PEER: ContextVar[str] = ContextVar("retune_farm_peer", default="")
_COMM_CLASS = "comm_class"
_MOST_QUOTED = 160
"""Characters of what a peer sent, in a line of the log."""
_READ = distributed.comm.tcp.read_bytes_rw
_SAID: Mapping[str, frozenset[str]] = {
    "client": CLIENTS_SAY | {"close", "close-stream"},
    "board": BOARDS_SAY | {"close", "close-stream"},
}


def _guard_messages(role: Role, most_bytes: int, revoked: Revoked) -> None:
    """Comms read no message that is larger, or that its sender has no right to.

    Of those whose certificate was revoked they read none, and they send them none.
    """
    tcp = distributed.comm.tcp

    async def read_bytes_rw(stream: Any, n: int) -> Any:
        left = _LEFT.get()
        if left is not None:
            left[0] -= n
            if left[0] < 0:
                refuse(f"a message{_from()} of more than {most_bytes} bytes")
                raise CommClosedError("the message is too large")
        return await _READ(stream, n)

    class Guarded:
        """Reads what its peer may say."""

        async def read(self, deserializers: Any = None) -> Any:
            comm: Any = self
            _LEFT.set([most_bytes])
            _PEER.set(getattr(self, "peer_address", ""))
            peer = _peer(role, comm)
            _check_valid(comm, revoked)
            message = await super().read(deserializers)  # pyrefly: ignore[missing-attribute]  of TCP
            _check_valid(comm, revoked)  # it may have come hours later
            if role == "scheduler" and peer:
                _check_said(comm, peer, message)
            return message

        async def write(self, *args: Any, **kwargs: Any) -> Any:
            comm: Any = self
            _PEER.set(getattr(self, "peer_address", ""))
            _check_valid(comm, revoked)
            return await super().write(*args, **kwargs)  # pyrefly: ignore[missing-attribute]  of TCP

    tcp.read_bytes_rw = read_bytes_rw
    for kind, users in (
        (tcp.TCP, (tcp.TCPConnector, tcp.TCPListener)),
        (tcp.TLS, (tcp.TLSConnector, tcp.TLSListener)),
    ):
        guarded = type(f"Guarded{kind.__name__}", (Guarded, kind), {})
        for user in users:
            setattr(user, _COMM_CLASS, guarded)


def _peer(role: Role, comm: Any) -> str:
    """What the peer's certificate says that it is; empty where there is no TLS.

    Raises: CommClosedError for one that such a process has nothing to do with.
    """
    certificate = comm.extra_info.get("peercert")
    if certificate is None:
        return ""
    found = role_of(certificate)
    if found not in PEERS[role]:
        comm.abort()
        others = " or a ".join(sorted(PEERS[role]))
        own = found or "stranger"
        refuse(
            f"a connection{_from()} with the certificate of a {own}; a {role} talks to a {others}"
        )
        raise CommClosedError("the certificate is for something else")
    return found


def _check_valid(comm: Any, revoked: Revoked) -> None:
    """Raises: CommClosedError for a peer whose certificate is good no longer."""
    certificate = comm.extra_info.get("peercert")
    if certificate is not None and (why := revoked.why(certificate)):
        comm.abort()
        if revoked.is_news(why):  # a revoked process reconnects again and again
            refuse(f"a connection{_from()}: {why}; it is told once")
        raise CommClosedError("the certificate was revoked")


def _check_said(comm: Any, peer: str, message: object) -> None:
    """Raises: CommClosedError for an operation that is not the peer's."""
    said: Sequence[object] = message if isinstance(message, (list, tuple)) else (message,)
    for one in said:
        operation = one.get("op") if isinstance(one, dict) else None
        if operation is not None and not (isinstance(operation, str) and operation in _SAID[peer]):
            comm.abort()
            refuse(
                f"the operation {str(operation)[:80]!r}{_from()}, a {peer}; it has no right to it"
            )
            raise CommClosedError(f"an operation that a {peer} may not ask for")


def _from() -> str:
    return f" from {peer}" if (peer := _PEER.get()) else ""


# -- the log --------------------------------------------------------------------------------------


_TOLD = "_retune_farm_told"
"""What an error has that the log has a line of."""


class _OneLine(logging.Filter):
    """What distributed says of what was refused here is left out: that line is there already.

    Its other lines are one line each, also where a peer's message made it fail: no traceback.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        raised = record.exc_info[1] if record.exc_info else sys.exc_info()[1]
        if any(isinstance(e, RefusedError) or vars(e).get(_TOLD) for e in _chain(raised)):
            return False
        text = record.getMessage()
        if text.startswith("Unable to connect to scheduler"):
            return False  # `retune.farm.serve` says why, once
        if text.startswith("No handler") and record.args:
            operation = record.args[0] if isinstance(record.args, tuple) else record.args
            text = f"refused: the operation {str(operation)[:_MOST_QUOTED]!r}; a farm has none"
        elif record.exc_info and raised is not None:
            text = f"{(text.splitlines() or [''])[0]}: {_failure(raised)}"
            vars(raised)[_TOLD] = True
        record.msg, record.args = text, ()
        record.exc_info = record.exc_text = None
        return True


def _chain(raised: BaseException | None) -> Iterator[BaseException]:
    """The error, and those that led to it."""
    while raised is not None:
        yield raised
        raised = raised.__cause__ or raised.__context__


def _failure(raised: BaseException) -> str:
    """The error in a few words, with the line of code that raised it."""
    words = " ".join(str(raised).split())[:_MOST_QUOTED]
    frames = traceback.extract_tb(raised.__traceback__)[-1:]
    where = "".join(f" ({Path(frame.filename).name}:{frame.lineno})" for frame in frames)
    return f"{type(raised).__name__}: {words}{where}"


_ONE_LINE = _OneLine()


def _one_line_each() -> None:
    """The loggers of distributed, and of what it runs on, write to ours."""
    for name in ("asyncio", *logging.root.manager.loggerDict):
        if name.split(".")[0] in ("asyncio", "distributed", "tornado"):
            logger = logging.getLogger(name)
            if _ONE_LINE not in logger.filters:
                logger.addFilter(_ONE_LINE)
    top = logging.getLogger("distributed")
    top.handlers.clear()
    top.propagate = True
    top.setLevel(logging.WARNING)
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("distributed."):
            logging.getLogger(name).setLevel(logging.NOTSET)

"""The door of a process to a farm: what distributed takes in there, and what it does not.

Read `close_door`. distributed sends pickles between client, scheduler and worker, and a pickle may
name any function of any module. In a process whose door is closed a pickle may name five things,
which the submission of `work.carry_out` on bytes is made of; a message has a size at most, which is
checked before there is memory for it; nothing is decompressed; and a server knows no operation but
those that handing out work needs. What is refused is one line in the log, and the process goes on.
"""

import io
import logging
import pickle
import sys
import types
import warnings
from collections.abc import Iterable, MutableMapping
from contextvars import ContextVar
from typing import Any

import dask.config
import distributed.client
import distributed.comm.tcp
import distributed.protocol.compression
import distributed.protocol.pickle
import distributed.scheduler
from distributed.comm.core import CommClosedError
from distributed.versions import VersionMismatchWarning

from retune.device.farm import work
from retune.device.farm.wire import MOST_BYTES, RefusedError

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
SCHEDULER_OPERATIONS = frozenset(
    {
        *("connection_stream", "identity", "gather", "unregister", "retune_boards"),
        *("register-client", "register-worker", "heartbeat_worker"),
    }
)
SCHEDULER_MESSAGES = frozenset(
    {
        *("client-desires-keys", "client-releases-keys", "close-client", "heartbeat-client"),
        *("update-graph", "cancel-keys", "subscribe-topic", "unsubscribe-topic", "log-event"),
        *("task-finished", "task-erred", "release-worker-data", "add-keys", "reschedule"),
        *("long-running", "request-refresh-who-has", "worker-status-change", "steal-response"),
        *("keep-alive", "missing-data"),
    }
)
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


def close_door(most_bytes: int = MOST_BYTES) -> None:
    """From now on distributed takes in, in this process, what a farm needs and nothing else.

    Messages have so many bytes at most. For the whole process: its other uses of Dask end.
    """
    dask.config.set(_CONFIG)
    warnings.filterwarnings("ignore", category=VersionMismatchWarning)  # `link` compares them
    for module in (distributed.protocol.pickle, distributed.scheduler, distributed.client):
        module.pickle = _RESTRICTED  # pyright: ignore[reportAttributeAccessIssue]  their name for it
    known = distributed.protocol.compression.compressions
    for name in [name for name in known if name]:
        del known[name]
    _bound_messages(most_bytes)
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
        return super().find_class(module_name, global_name)


def _loads(data: bytes, /, *, buffers: Iterable[Any] | None = None, **_: object) -> Any:
    return _Unpickler(io.BytesIO(data), buffers=buffers).load()


_RESTRICTED = types.ModuleType("pickle", "pickle, with an Unpickler that knows a handful of names.")
_RESTRICTED.__dict__.update(
    {name: value for name, value in vars(pickle).items() if not name.startswith("__")},
    loads=_loads,
    load=None,
    Unpickler=_Unpickler,
)


# -- sizes ----------------------------------------------------------------------------------------

_LEFT: ContextVar[list[int] | None] = ContextVar("retune_farm_bytes_left", default=None)
"""Bytes that the message that is being read may still have."""
_PEER: ContextVar[str] = ContextVar("retune_farm_peer", default="")
_COMM_CLASS = "comm_class"
_READ = distributed.comm.tcp.read_bytes_rw


def _bound_messages(most_bytes: int) -> None:
    tcp = distributed.comm.tcp

    async def read_bytes_rw(stream: Any, n: int) -> Any:
        left = _LEFT.get()
        if left is not None:
            left[0] -= n
            if left[0] < 0:
                refuse(f"a message{_from()} of more than {most_bytes} bytes")
                raise CommClosedError("the message is too large")
        return await _READ(stream, n)

    class Bounded:
        """Reads no message that is larger."""

        async def read(self, deserializers: Any = None) -> Any:
            _LEFT.set([most_bytes])
            _PEER.set(getattr(self, "peer_address", ""))
            return await super().read(deserializers)  # pyright: ignore[reportAttributeAccessIssue]  of TCP

    tcp.read_bytes_rw = read_bytes_rw
    for kind, users in (
        (tcp.TCP, (tcp.TCPConnector, tcp.TCPListener)),
        (tcp.TLS, (tcp.TLSConnector, tcp.TLSListener)),
    ):
        bounded = type(f"Bounded{kind.__name__}", (Bounded, kind), {})
        for user in users:
            setattr(user, _COMM_CLASS, bounded)


def _from() -> str:
    return f" from {peer}" if (peer := _PEER.get()) else ""


# -- the log --------------------------------------------------------------------------------------


class _OneLine(logging.Filter):
    """What distributed says of what was refused here is left out: that line is there already.

    Its other lines have no traceback where they are about what a peer sent.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        raised = record.exc_info[1] if record.exc_info else sys.exc_info()[1]
        while raised is not None:
            if isinstance(raised, RefusedError):
                return False
            raised = raised.__cause__ or raised.__context__
        if str(record.msg).startswith("Unable to connect to scheduler"):
            return False  # `retune.farm.serve` says why, once
        if str(record.msg).startswith("No handler") and record.args:
            operation = record.args[0] if isinstance(record.args, tuple) else record.args
            record.msg, record.args = "refused: the operation %.80r; a farm has none", (operation,)
            record.exc_info = record.exc_text = None
        return True


_ONE_LINE = _OneLine()


def _one_line_each() -> None:
    """The loggers of distributed write to ours."""
    for name in list(logging.root.manager.loggerDict):
        if name.split(".")[0] in ("distributed", "tornado"):
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

"""The parent's handle of a measuring child: starts it, talks to it with deadlines, reaps it.

Requests and replies are frames of `core.schema`: the child ran foreign kernels, and nothing that it
sends is executed.
"""

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Hashable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import IO

from retune.core.errors import DeviceError, InputError, RecordError
from retune.core.schema import pack, unpack
from retune.core.target import DeviceSpec
from retune.device.measure.lease import abandon
from retune.device.measure.messages import REPLIES, Broken, Ready
from retune.device.opencl import pocl
from retune.records.schema import Status

_LOG = logging.getLogger(__name__)
_START_DEADLINE_S = 120.0
_END_DEADLINE_S = 10.0
"""For a process to end that has closed its connection."""
_KILL_DEADLINE_S = 60.0
"""For a process to end that was killed: a driver frees its memory meanwhile. One that takes longer
sleeps in its driver, which no signal interrupts, and is abandoned."""
_TAIL_CHARS = 800
_MOST_REPLY_BYTES = 1 << 32
"""Of a reply: the outputs of a network."""
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[4]); "
    "from importlib import import_module; "
    "import_module(sys.argv[5]).main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])"
)
"""A bare interpreter rather than multiprocessing's spawn: the user's main module is not run again,
so a script without a main guard works, and a start costs only numpy and pyopencl."""


class ChildLostError(DeviceError):
    """The child had to be killed (`timeout`) or died by itself (`crash`)."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status: Status = status


class Child:
    """A process with one open device. After a loss the next request starts a new process."""

    def __init__(
        self,
        device: str,
        *,
        pinned: bool = True,
        entry: str = "retune.device.measure.worker",
        environment: Mapping[str, str] | None = None,
        replies: Sequence[type] = REPLIES,
    ) -> None:
        """Starts nothing yet. A child that is not pinned compiles, and is not to be timed.

        `entry` names the module whose `main` the process runs, see `worker.serve`, with the
        `environment` beside this process's own; `replies` are the types of what it answers.
        """
        self._replies = (Ready, Broken, *replies)
        self._environment = dict(environment or {})
        self._device = device
        self._entry = entry
        self._pinned = pinned
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._lifeline: int | None = None
        self._log: IO[bytes] | None = None
        self._spec: DeviceSpec | None = None
        self.holds: set[Hashable] = set()
        """What the present process was given; empty again after each start."""

    @property
    def spec(self) -> DeviceSpec:
        """The child's device; starts the process if need be. Raises: InputError, DeviceError."""
        if self._spec is None:
            self._start()
        assert self._spec is not None
        return self._spec

    @property
    def pid(self) -> int | None:
        """Process id, while there is a process."""
        return self._process.pid if self._process else None

    def ensure(self) -> None:
        """The process runs and its device is open. Raises: InputError, DeviceError."""
        if self._process is None:
            self._start()

    def request(self, request: object, deadline_s: float) -> object:
        """The child's reply; its entry says which requests there are, and what follows on each.

        Raises: ChildLostError if none came in time or the child died; DeviceError for a bug in it.
        """
        self.ensure()
        assert self._connection is not None
        try:
            self._connection.send_bytes(pack(request))
        except (BrokenPipeError, ConnectionResetError):
            raise self._lost() from None
        except BaseException:
            self.close()  # half of it may be there: the next request would be the other half
            raise
        return self._receive(deadline_s)

    def kill(self) -> None:
        """Ends the process, if there is one; a thread that waits for its reply gets
        ChildLostError."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """The process is gone when the call returns, or abandoned: see `lease.abandon`."""
        if self._lifeline is not None:
            with contextlib.suppress(OSError):
                os.close(self._lifeline)
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._ended(self._process)
        if self._log is not None:
            self._log.close()
        self._process = self._connection = self._lifeline = self._log = None
        self.holds.clear()

    def _start(self) -> None:
        try:
            self._open()
        except BaseException:  # the system may have no process left for it
            self.close()
            raise
        self.holds.clear()
        try:
            reply = self._receive(_START_DEADLINE_S)
        except ChildLostError as error:
            raise DeviceError(f"device {self._device!r} cannot be opened: {error}") from error
        assert isinstance(reply, Ready)
        self._spec = reply.spec

    def _open(self) -> None:
        """The process, and what leads to it. What is there if it fails is for `close`."""
        ours, theirs = socket.socketpair()
        self._connection = Connection(ours.detach())
        with theirs:
            read_end, self._lifeline = os.pipe()
            try:
                self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed in close()
                path = json.dumps(sys.path)
                arguments = [str(theirs.fileno()), str(read_end), self._device, path, self._entry]
                unpinned = {} if self._pinned else dict(pocl.UNPINNED)
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _BOOT, *arguments],
                    pass_fds=(theirs.fileno(), read_end),
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=self._log,
                    env=os.environ | self._environment | unpinned,
                    start_new_session=True,
                )
            finally:
                os.close(read_end)

    def _receive(self, deadline_s: float) -> object:
        assert self._connection is not None
        try:
            if not self._connection.poll(deadline_s):
                self.close()
                raise ChildLostError("timeout", f"no answer within {deadline_s:.3g} s; killed")
            frame = self._connection.recv_bytes(_MOST_REPLY_BYTES)
            reply = unpack(self._replies, frame, _MOST_REPLY_BYTES)
        except (EOFError, ConnectionResetError):
            raise self._lost() from None
        except (RecordError, OSError) as error:
            self.close()
            raise ChildLostError(
                "crash", f"the process sent what is not a reply: {error}"
            ) from None
        except BaseException:
            self.close()  # interrupted in between: a late answer must not meet the next request
            raise
        if isinstance(reply, Broken):
            self.close()
            raise (
                InputError(reply.error)
                if reply.user_error
                else DeviceError(f"the measuring process failed:\n{reply.error}")
            )
        return reply

    def _ended(self, process: subprocess.Popen[bytes]) -> int:
        """The exit code of a process that was killed; of one that was abandoned, SIGKILL's."""
        try:
            return process.wait(_KILL_DEADLINE_S)
        except subprocess.TimeoutExpired:
            _LOG.error(
                "process %d on device %s was killed %.0f s ago and is still there: its driver does "
                "not let go of it; it is left to itself",
                *(process.pid, self._device, _KILL_DEADLINE_S),
            )
            if self._spec is not None:
                abandon(self._spec, process.pid)
            process.returncode = -signal.SIGKILL  # nobody waits for it, or asks it again
            return process.returncode

    def _lost(self) -> ChildLostError:
        """How the child died, with the end of what it printed."""
        assert self._process is not None
        assert self._log is not None
        try:
            code = self._process.wait(_END_DEADLINE_S)
        except subprocess.TimeoutExpired:  # a driver that hangs while the process ends
            self._process.kill()
            code = self._ended(self._process)
        self._log.seek(0)
        tail = self._log.read().decode(errors="replace").strip()[-_TAIL_CHARS:]
        self.close()
        return ChildLostError("crash", f"{_death(code)}{f': {tail}' if tail else ''}")


def _death(code: int) -> str:
    if code >= 0:
        return f"the process ended with exit code {code}"
    try:
        return f"the process died of {signal.Signals(-code).name}"
    except ValueError:
        return f"the process died of signal {-code}"

"""The measuring child: opens one device and carries out requests until its parent is gone.

It holds no decisions: what to build, when to give up and what to record is the parent's business.
Run by `retune.device.measure.child`; a kernel that hangs or crashes takes this process down,
not the run.
"""

import contextlib
import fcntl
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol, TypeVar

import numpy as np

from retune.codegen.source import ProgramBuffer, ProgramSource
from retune.core.dtypes import TensorType, as_dtype, numpy_dtype
from retune.core.errors import DeviceError, InputError
from retune.core.schema import pack, unpack
from retune.core.target import DeviceSpec
from retune.device.measure.contention import Took, took
from retune.device.measure.messages import (
    REQUESTS,
    Broken,
    Build,
    Check,
    Checked,
    Done,
    Forget,
    Launching,
    LoadArrays,
    Ready,
    Refused,
    Reply,
    Request,
    Time,
    Timed,
    Warm,
)
from retune.device.measure.reference import Reference
from retune.device.measure.timing import ExpectedOutputs, present_us, time_repeats
from retune.device.opencl.guards import GuardedBuffer, guarded, overrun, unwritten
from retune.device.opencl.jobs import BoundJob, BuiltJob, build_jobs
from retune.device.opencl.launch_cost import launch_cost
from retune.device.opencl.pool import ConstantPool
from retune.device.opencl.runtime import BuildFailed, Device, DeviceMemory, LaunchFailed
from retune.device.opening import open_device

_FLUSH_FACTOR = 2
"""The flush buffer is this many times the last cache."""
_FLUSH_LEAST = 32 << 20


@dataclass(frozen=True, slots=True, eq=False)
class _RightJob:
    """A job on its buffers, whose first run was right."""

    bound: BoundJob
    job: ProgramSource
    guards: Mapping[str, GuardedBuffer]
    """By name, all but the constants."""
    found: Mapping[str, np.ndarray]
    """The outputs of the first run."""


class Worker:
    """One open device with the jobs and arrays that the parent gave it."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._reference: Reference | None = None
        self._pool = ConstantPool(device)
        self._jobs: dict[int, tuple[BuiltJob, ProgramSource]] = {}
        self._workload = LoadArrays(inputs={}, outputs={}, positions={}, rtol=0.0, atol=0.0)
        self._expected = ExpectedOutputs({}, {})
        self._uploaded: dict[str, GuardedBuffer] = {}
        self._written: dict[str, GuardedBuffer] = {}
        """What the last candidate of the workload wrote to."""
        self._right: _RightJob | None = None
        self._flush: np.ndarray | None = None

    def handle(self, request: Request) -> Reply:
        """Carries out one request. A failure of the candidate is a reply."""
        try:
            match request:
                case LoadArrays():
                    self._workload = request
                    self._expected = ExpectedOutputs.of(request.outputs, request.rtol, request.atol)
                    self._uploaded.clear()
                    self._written.clear()
                    return Done()
                case Build():
                    built = build_jobs(self._device, list(request.jobs.values()), self._pool)
                    for (index, job), one in zip(request.jobs.items(), built, strict=True):
                        self._jobs[index] = (one, job)
                    return Done()
                case Warm():
                    for index in request.indices:
                        self._jobs[index][0].warm()
                    return Done()
                case Check():
                    return self._check(request)
                case Time():
                    return self._time(request)
                case Launching():
                    return launch_cost(self._device)
                case Forget():
                    self._jobs.clear()
                    self._right = None
                    return Done()
        except BuildFailed as error:
            return Refused(status="compile_error", error=str(error))
        except (LaunchFailed, MemoryError) as error:
            return Refused(status="launch_error", error=str(error) or "out of memory")

    def _check(self, request: Check) -> Reply:
        built, job = self._jobs[request.index]
        self._right = None
        fresh = not self._uploaded
        result = self._run_and_compare(built, job, request)
        if isinstance(result, Refused) and not fresh:
            # An earlier candidate may have written past its buffers: only fresh inputs prove it.
            self._uploaded.clear()
            result = self._run_and_compare(built, job, request)
        if isinstance(result, Refused):
            self._uploaded.clear()
        return result

    def _run_and_compare(self, built: BuiltJob, job: ProgramSource, request: Check) -> Reply:
        others = (spec for spec in job.buffers if spec.role != "weight")
        guards = {spec.name: self._fill(spec) for spec in others}
        buffers = {name: each.memory for name, each in guards.items()}
        bound = built.bind(buffers, self._constants(job, request), request.spread_bytes)
        seconds = bound.time()
        found = self._results(job, guards)
        off = self._expected.deviation(found)
        if problem := overrun(self._device, guards) or off.problem:
            return Refused(status="wrong_result", error=problem, max_abs_err=off.largest)
        self._right = _RightJob(bound, job, guards, found)
        return Checked(max_abs_err=off.largest, first_s=seconds)

    def _still_right(self, right: "_RightJob") -> Refused | None:
        """What is wrong with two further runs, after others have left their results behind.

        Each is looked at: what a run changes the next one may change back.
        """
        for _ in range(2):
            right.bound.time()
            found = self._results(right.job, right.guards)
            same = all(_same_bytes(found[name], right.found[name]) for name in found)
            off = None if same else self._expected.deviation(found)
            if problem := overrun(self._device, right.guards) or (off and off.problem):
                self._right = None
                self._uploaded.clear()
                error = f"after it was timed: {problem}"
                largest = off.largest if off else None
                return Refused(status="wrong_result", error=error, max_abs_err=largest)
        return None

    def _results(
        self, job: ProgramSource, guards: Mapping[str, GuardedBuffer]
    ) -> dict[str, np.ndarray]:
        outputs = (spec for spec in job.buffers if spec.role == "output")
        return {spec.name: self._result(guards[spec.name].memory, spec) for spec in outputs}

    def _result(self, buffer: DeviceMemory, spec: ProgramBuffer) -> np.ndarray:
        """The elements of an output, in the order of the reference."""
        kind = TensorType((spec.elements,), as_dtype(spec.dtype))
        array, positions = self._device.read(buffer, kind), self._workload.positions.get(spec.name)
        return array if positions is None else array[positions]

    def _time(self, request: Time) -> Reply:
        if self._reference is None:
            self._reference = Reference(self._device)
        options, right = request.options, self._right
        if right is None:
            raise DeviceError("expected a job that was checked before it is timed; got none")

        def before_repeat() -> None:
            if options.cooldown_s > 0:
                time.sleep(options.cooldown_s)
            if options.cache_flush:
                self._flush_caches()

        before, bound = self._reference.time_us(), right.bound
        bound.time_spread()
        best_us = present_us(request.best_cost, before, request.calm_us)

        def calls(number: int) -> Took:
            return took(lambda: bound.time_spread(number), self._device.spec)

        times = time_repeats(calls, options, best_us, before_repeat)
        after = self._reference.time_us()
        return self._still_right(right) or Timed(times_us=times, before_us=before, after_us=after)

    def _constants(self, job: ProgramSource, request: Check) -> dict[str, np.ndarray]:
        """Packed by the parent, or as the workload has them."""
        arrays = {**self._workload.inputs, **request.constants}
        return {
            spec.name: arrays[spec.name].astype(numpy_dtype(spec.dtype), copy=False)
            for spec in job.buffers
            if spec.role == "weight"
        }

    def _fill(self, spec: ProgramBuffer) -> GuardedBuffer:
        """The workload's array where there is one, what no kernel computes elsewhere: what a
        candidate leaves out is wrong, whatever the one before it has computed."""
        if spec.role in {"output", "temp"}:
            size, old = spec.bytes, self._written.get(spec.name)
            self._written[spec.name] = unwritten(self._device, size, old)
            return self._written[spec.name]
        if spec.name not in self._uploaded:
            array = self._workload.inputs[spec.name].astype(numpy_dtype(spec.dtype), copy=False)
            self._uploaded[spec.name] = guarded(self._device, array)
        return self._uploaded[spec.name]

    def _flush_caches(self) -> None:
        """Every cache line of the processor holds something else afterwards."""
        if self._flush is None:
            size = max(_FLUSH_FACTOR * self._device.spec.l3_bytes, _FLUSH_LEAST)
            self._flush = np.zeros(size, np.uint8)
        self._flush += 1


def _same_bytes(one: np.ndarray, other: np.ndarray) -> bool:
    return np.array_equal(one.view(np.uint8), other.view(np.uint8))


def main(channel: int, lifeline: int, device: str) -> None:
    """Serves requests from the `channel` descriptor until it closes or the lifeline does."""
    serve(channel, lifeline, device, Worker, open_device, REQUESTS)


class Described(Protocol):
    """What a process has open."""

    @property
    def spec(self) -> DeviceSpec:
        """What it is."""
        ...


D = TypeVar("D", bound=Described)


class Handler(Protocol):
    """What carries out the requests of a parent."""

    def handle(self, request: Any) -> object:
        """The reply."""
        ...


def serve(
    channel: int,
    lifeline: int,
    device: str,
    handler: Callable[[D], Handler],
    opening: Callable[[str], D],
    requests: Sequence[type],
) -> None:
    """Serves requests as `main` does, by a handler on what `opening` makes of the device's name.

    `requests` are the types of what the handler carries out.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent(lifeline)
    connection = Connection(channel)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        _serve(connection, device, handler, opening, requests)


def _serve(
    connection: Connection,
    device: str,
    handler: Callable[[D], Handler],
    opening: Callable[[str], D],
    requests: Sequence[type],
) -> None:
    try:
        worker = handler(opened := opening(device))
        connection.send_bytes(pack(Ready(spec=opened.spec)))
        while True:
            frame = connection.recv_bytes()
            connection.send_bytes(pack(worker.handle(unpack(requests, frame, len(frame)))))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise
    except InputError as error:
        connection.send_bytes(pack(Broken(error=str(error), user_error=True)))
    except Exception:  # noqa: BLE001  the edge of the process: the parent raises it again
        connection.send_bytes(pack(Broken(error=traceback.format_exc(), user_error=False)))


def _die_with_parent(lifeline: int) -> None:
    """This process ends when the other end of the pipe closes, even inside a hanging kernel.

    The kernel sends SIGIO then, whose default is to end the process: no thread of ours must run.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:
        sys.exit(0)

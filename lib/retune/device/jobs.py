"""Jobs on a device: built once, bound to buffers, run any number of times.

Timed in the way in which bundles run: by persistent workers where the device allows it, so that a
candidate's time holds neither the waking of threads nor the driver's dealing out of work-groups.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from retune.codegen.joining import join_kernels
from retune.codegen.persistent import Callee, Step, most_rounds
from retune.device.launching import prepare_launches
from retune.device.persistent import Persistent, can_persist
from retune.device.runtime import Buffer, Device, Launch, Program
from retune.device.workload import Job


class BoundJob(Protocol):
    """A job with its buffers."""

    def time(self, number: int = 1) -> float:
        """Seconds of `number` runs, one after the other; on a GPU without waiting for the host."""
        ...


class BuiltJob(Protocol):
    """A compiled job."""

    def warm(self) -> None:
        """Drivers that compile late do so now; at most one work-group of each kernel runs."""
        ...

    def bind(self, buffers: Mapping[str, Buffer]) -> BoundJob:
        """The job on these buffers, by name."""
        ...


def build_jobs(device: Device, jobs: Sequence[Job]) -> list[BuiltJob]:
    """The compiled jobs: in one program for persistent workers, or each in programs of its own.

    Several jobs must have the same options. Raises: BuildFailed, whichever job it was.
    """
    if can_persist(device) and all(job.solitary for job in jobs):
        return _build_resident(device, jobs)
    return [_QueuedJob(device, job, device.build(*job.texts, options=job.options)) for job in jobs]


@dataclass(frozen=True, eq=False)
class _QueuedJob:
    device: Device
    job: Job
    program: Program

    def warm(self) -> None:
        buffers = {
            spec.name: self.device.allocate(spec.elements * np.dtype(spec.dtype).itemsize)
            for spec in self.job.buffers
        }
        self.device.enqueue([launch.one_group() for launch in self._launches(buffers)])
        self.device.finish()

    def bind(self, buffers: Mapping[str, Buffer]) -> BoundJob:
        return _BoundLaunches(self.device, self._launches(buffers))

    def _launches(self, buffers: Mapping[str, Buffer]) -> tuple[Launch, ...]:
        return prepare_launches(self.device, self.program, self.job.launches, buffers)


@dataclass(frozen=True, eq=False)
class _BoundLaunches:
    device: Device
    launches: tuple[Launch, ...]

    def time(self, number: int = 1) -> float:
        return self.device.time_kernels(self.launches, number)


def _build_resident(device: Device, jobs: Sequence[Job]) -> list[BuiltJob]:
    """Each job as a range of the steps of one kernel, whose base pointers are the job's buffers."""
    kernels = [kernel for job in jobs for kernel in zip(_callees(job), job.texts, strict=True)]
    callees, texts = join_kernels(kernels)
    steps: list[Step] = []
    parts: list[range] = []
    for job in jobs:
        first = len(steps)
        parts.append(range(first, first + len(job.launches)))
        steps += _steps(job, first, [callees[number].kernel for number in parts[-1]])
    most = max(len(job.buffers) for job in jobs)
    distinct = list(dict.fromkeys(callees))
    kernel = Persistent(device, texts, jobs[0].options, distinct, steps, most)
    return [
        _ResidentJob(device, kernel, part, _padded([b.name for b in job.buffers], most))
        for job, part in zip(jobs, parts, strict=True)
    ]


def _callees(job: Job) -> list[Callee]:
    return [
        Callee(kernel=launch.kernel, parameters=len(launch.args), groups=launch.global_size)
        for launch in job.launches
    ]


def _steps(job: Job, first: int, kernels: Sequence[str]) -> list[Step]:
    """The job's launches under their kernels' names in the program, one after the other."""
    bases = {spec.name: number for number, spec in enumerate(job.buffers)}
    return [
        Step(
            kernel=kernel,
            args=tuple((bases[name], 0) for name in launch.args),
            waits=(number - 1,) if number > first else (),
            label=launch.kernel,
        )
        for number, (kernel, launch) in enumerate(zip(kernels, job.launches, strict=True), first)
    ]


def _padded(names: list[str], length: int) -> list[str]:
    """As many names as the kernel has base pointers; the job does not use those added."""
    return names + names[:1] * (length - len(names))


@dataclass(frozen=True, eq=False)
class _ResidentJob:
    device: Device
    kernel: Persistent
    steps: range
    names: list[str]
    """The buffer of each base pointer."""

    def warm(self) -> None:
        unused = self.device.allocate(1)  # no work-group runs
        self.device.enqueue([self._bound([unused] * len(self.names)).launch(0)])
        self.device.finish()

    def bind(self, buffers: Mapping[str, Buffer]) -> BoundJob:
        return self._bound([buffers[name] for name in self.names])

    def _bound(self, buffers: list[Buffer]) -> "_BoundResident":
        return _BoundResident(self.device, self.kernel, self.steps, buffers)


@dataclass(frozen=True, eq=False)
class _BoundResident:
    device: Device
    kernel: Persistent
    steps: range
    buffers: list[Buffer]
    launches: dict[int, Launch] = field(default_factory=dict[int, Launch])
    """By rounds: preparing one takes a millisecond."""

    def launch(self, rounds: int) -> Launch:
        """The job's steps, that many times over."""
        if rounds not in self.launches:
            first, last = self.steps.start, self.steps.stop
            self.launches[rounds] = self.kernel.launch(
                self.buffers, first=first, last=last, rounds=rounds
            )
        return self.launches[rounds]

    def time(self, number: int = 1) -> float:
        most = most_rounds(len(self.steps))
        full, rest = divmod(number, most)
        launches = [self.launch(most)] * full if full else []
        if rest:
            launches.append(self.launch(rest))
        return self.device.time(launches)

"""A job on a device: built once, bound to buffers, run any number of times.

Timed in the way in which bundles run: by persistent workers where the device allows it, so that a
candidate's time holds neither the waking of threads nor the driver's dealing out of work-groups.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from retune.codegen.opencl import pointer
from retune.codegen.persistent import Callee, Step
from retune.device.persistent import Persistent, can_persist
from retune.device.runtime import Buffer, Device, Launch, Program
from retune.device.workload import Job


class BoundJob(Protocol):
    """A job with its buffers."""

    def warm(self) -> None:
        """Drivers that compile late do so now; at most one work-group of each kernel runs."""
        ...

    def time(self, number: int = 1) -> float:
        """Wall-clock seconds of `number` runs, one after the other."""
        ...


class BuiltJob(Protocol):
    """A compiled job."""

    def bind(self, buffers: Mapping[str, Buffer]) -> BoundJob:
        """The job on these buffers, by name."""
        ...


def build_job(device: Device, job: Job) -> BuiltJob:
    """The compiled job. Raises: BuildFailed."""
    if can_persist(device) and all(launch.solitary for launch in job.launches):
        return _ResidentJob(device, job)
    return _QueuedJob(device, job, device.build(*job.texts, options=job.options))


@dataclass(frozen=True, eq=False)
class _QueuedJob:
    device: Device
    job: Job
    program: Program

    def bind(self, buffers: Mapping[str, Buffer]) -> BoundJob:
        launches = [
            self.device.prepare(
                self.program,
                launch.name,
                [buffers[name] for name in launch.buffers],
                launch.global_size,
                launch.local_size,
            )
            for launch in self.job.launches
        ]
        return _BoundLaunches(self.device, launches)


@dataclass(frozen=True, eq=False)
class _BoundLaunches:
    device: Device
    launches: list[Launch]

    def warm(self) -> None:
        self.device.enqueue([launch.one_group() for launch in self.launches])
        self.device.finish()

    def time(self, number: int = 1) -> float:
        return self.device.time(self.launches, number)


class _ResidentJob:
    def __init__(self, device: Device, job: Job) -> None:
        self._device = device
        self._names = [buffer.name for buffer in job.buffers]
        types = {buffer.name: pointer(buffer.dtype) for buffer in job.buffers}
        bases = {name: number for number, name in enumerate(self._names)}
        callees = {
            launch.name: Callee(
                kernel=launch.name,
                parameters=tuple(types[name] for name in launch.buffers),
                groups=launch.global_size,
            )
            for launch in job.launches
        }
        steps = [
            Step(
                kernel=launch.name,
                args=tuple((bases[name], 0) for name in launch.buffers),
                waits=(number - 1,) if number else (),
                label=launch.name,
            )
            for number, launch in enumerate(job.launches)
        ]
        self._kernel = Persistent(
            device, job.texts, job.options, list(callees.values()), steps, len(bases)
        )

    def bind(self, buffers: Mapping[str, Buffer]) -> BoundJob:
        return _BoundResident(self._device, self._kernel, [buffers[n] for n in self._names])


@dataclass(frozen=True, eq=False)
class _BoundResident:
    device: Device
    kernel: Persistent
    buffers: list[Buffer]

    def warm(self) -> None:
        self.device.enqueue([self.kernel.launch(self.buffers, rounds=0)])
        self.device.finish()

    def time(self, number: int = 1) -> float:
        most = self.kernel.most_rounds
        full, rest = divmod(number, most)
        launches = [self.kernel.launch(self.buffers, rounds=most)] * full if full else []
        if rest:
            launches.append(self.kernel.launch(self.buffers, rounds=rest))
        return self.device.time(launches)

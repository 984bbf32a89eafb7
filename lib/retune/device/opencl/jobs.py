"""Jobs on a device: built once, bound to buffers, run any number of times.

Timed in the way in which bundles run: by persistent workers where the device allows it, so that a
candidate's time holds neither the waking of threads nor the driver's dealing out of work-groups.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np

from retune.codegen.network.persistent import Callee, CalleeLaunch
from retune.codegen.opencl.kernels import group_function
from retune.codegen.source import ProgramSource, three
from retune.device.opencl.guards import padded
from retune.device.opencl.persistent import Persistent, can_persist
from retune.device.opencl.pool import ConstantPool, Window
from retune.device.opencl.runtime import BuiltProgram, Device, DeviceMemory, PreparedKernel


def build_jobs(
    device: Device, jobs: Sequence[ProgramSource], pool: ConstantPool
) -> "list[BuiltJob]":
    """The compiled jobs: in one program for persistent workers, or each in programs of its own.

    Several jobs must have the same options; one of those that share a pool is bound at a time.
    Raises: BuildFailed, whichever job it was.
    """
    if can_persist(device) and all(job.single_item for job in jobs):
        return _build_resident(device, jobs, pool)
    return [
        _QueuedJob(device, job, device.build(*(k.text for k in job.kernels), options=job.options))
        for job in jobs
    ]


@dataclass(frozen=True, eq=False)
class _QueuedJob:
    """A compiled job of launches."""

    device: Device
    job: ProgramSource
    program: BuiltProgram

    def warm(self) -> None:
        """Drivers that compile late do so now; at most one work-group of each kernel runs."""
        specs = self.job.buffers
        tried = {s.name: padded(self.device, s.bytes) for s in specs if not s.image}
        buffers = {name: each.memory for name, each in tried.items()} | {
            s.name: self.device.upload(np.zeros(s.elements, np.float32), s.image)
            for s in specs
            if s.image
        }
        self.device.enqueue([launch.one_group() for launch in self._launches(buffers)])
        self.device.finish()

    def bind(
        self,
        buffers: Mapping[str, DeviceMemory],
        constants: Mapping[str, np.ndarray],
        spread_bytes: int = 0,  # noqa: ARG002  the same for each run
    ) -> "_BoundLaunches":
        """The job on these buffers and constants, by name; `time_spread` has others, all of which
        together take `spread_bytes`."""
        images = {spec.name: spec.image for spec in self.job.buffers}
        uploaded = {n: self.device.upload(array, images[n]) for n, array in constants.items()}
        return _BoundLaunches(self.device, self._launches({**buffers, **uploaded}))

    def _launches(self, buffers: Mapping[str, DeviceMemory]) -> tuple[PreparedKernel, ...]:
        return self.device.prepare_all(self.program, self.job.launches, buffers)


@dataclass(frozen=True, eq=False)
class _BoundLaunches:
    """Such a job with its buffers."""

    device: Device
    launches: tuple[PreparedKernel, ...]

    def time(self, number: int = 1) -> float:
        """Seconds of `number` runs, one after the other; on a GPU without waiting for the host."""
        return self.device.time_kernels(self.launches, number)

    def time_spread(self, number: int = 1) -> float:
        """The same, where possible with other constants of the same size in each run (see `pool`);
        what comes out then means nothing."""
        return self.time(number)  # the queue has no rounds that could move


def _build_resident(
    device: Device, jobs: Sequence[ProgramSource], pool: ConstantPool
) -> "list[BuiltJob]":
    """Each job as a range of the steps of one kernel.

    Its base pointers are the window of the job's constants, which moves, and its other buffers.
    """
    kernels = [
        (callee, kernel.text)
        for job in jobs
        for callee, kernel in zip(_callees(job), job.kernels, strict=True)
    ]
    callees, texts = join_kernels(kernels)
    steps: list[CalleeLaunch] = []
    parts: list[range] = []
    windows = [Window.of(job) for job in jobs]
    names = [[b.name for b in job.buffers if b.role != "weight"] for job in jobs]
    for job, window, others in zip(jobs, windows, names, strict=True):
        first = len(steps)
        parts.append(range(first, first + len(job.launches)))
        locations = {name: (0, offset) for name, offset in window.offsets.items()}
        locations |= {name: (number, 0) for number, name in enumerate(others, 1)}
        steps += _steps(job, first, [callees[number].kernel for number in parts[-1]], locations)
    most = max(map(len, names))
    distinct = list(dict.fromkeys(callees))
    kernel = Persistent(device, texts, jobs[0].options, distinct, steps, 1 + most, moving=True)
    return [
        _ResidentJob(device, kernel, part, window, _padded(others, most), pool)
        for window, others, part in zip(windows, names, parts, strict=True)
    ]


def _callees(job: ProgramSource) -> list[Callee]:
    return [
        Callee(kernel=launch.kernel, parameters=len(launch.args), groups=three(launch.global_size))
        for launch in job.launches
    ]


def _steps(
    job: ProgramSource, first: int, kernels: Sequence[str], locations: Mapping[str, tuple[int, int]]
) -> list[CalleeLaunch]:
    """The job's launches under their kernels' names in the program, one after the other."""
    return [
        CalleeLaunch(
            kernel=kernel,
            args=tuple(locations[name] for name in launch.args),
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
    """A compiled job of persistent workers."""

    device: Device
    kernel: Persistent
    steps: range
    window: Window
    names: list[str]
    """The buffer of each base pointer, after that of the constants."""
    pool: ConstantPool

    def warm(self) -> None:
        unused = self.device.allocate(1)  # no work-group runs
        self.device.enqueue([self._bound([unused] * (1 + len(self.names)), 1).launch(0, 1)])
        self.device.finish()

    def bind(
        self,
        buffers: Mapping[str, DeviceMemory],
        constants: Mapping[str, np.ndarray],
        spread_bytes: int = 0,
    ) -> "_BoundResident":
        """As of a job of launches."""
        first, windows = self.pool.place(self.window, constants, spread_bytes)
        return self._bound([first, *(buffers[name] for name in self.names)], windows)

    def _bound(self, buffers: list[DeviceMemory], windows: int) -> "_BoundResident":
        return _BoundResident(
            self.device, self.kernel, self.steps, buffers, self.window.bytes, windows
        )


@dataclass(frozen=True, eq=False)
class _BoundResident:
    """Such a job with its buffers."""

    device: Device
    kernel: Persistent
    steps: range
    buffers: list[DeviceMemory]
    stride: int
    """Bytes from one window of constants to the next."""
    windows: int
    launches: dict[tuple[int, int], PreparedKernel] = field(
        default_factory=dict[tuple[int, int], PreparedKernel]
    )
    """By rounds and windows: preparing one takes a millisecond."""

    def launch(self, rounds: int, windows: int) -> PreparedKernel:
        """The job's steps, that many times over, with constants of so many windows in turn."""
        if (rounds, windows) not in self.launches:
            self.launches[rounds, windows] = self.kernel.launch(
                self.buffers,
                first=self.steps.start,
                last=self.steps.stop,
                rounds=rounds,
                windows=(self.stride, windows),
            )
        return self.launches[rounds, windows]

    def time(self, number: int = 1) -> float:
        return self._time(number, 1)

    def time_spread(self, number: int = 1) -> float:
        return self._time(number, self.windows)

    def _time(self, number: int, windows: int) -> float:
        most = self.kernel.most_rounds
        full, rest = divmod(number, most)
        launches = [self.launch(most, windows)] * full if full else []
        if rest:
            launches.append(self.launch(rest, windows))
        return self.device.time(launches)


BuiltJob = _QueuedJob | _ResidentJob
BoundJob = _BoundLaunches | _BoundResident


def join_kernels(kernels: Sequence[tuple[Callee, str]]) -> tuple[list[Callee], list[str]]:
    """Callees of several programs and the texts that define them, made fit for one program.

    Programs that are generated one by one use the same names. Here the preprocessor gives a kernel
    another name, so that its text stays as it was printed.

    Returns a callee for each one given, under its name in the joined program, and the texts to
    compile. Callees that are equal in all, their texts too, become one callee and one text.
    """
    joined: dict[tuple[Callee, str], Callee] = {}
    texts: list[str] = []
    taken: set[str] = set()
    for callee, text in kernels:
        if (callee, text) in joined:
            continue
        name = callee.kernel
        if name in taken:
            name = _unused(name, [other for _, other in kernels], taken)
            texts.append(_renamed(text, callee.kernel, name))
        else:
            texts.append(text)
        taken.add(name)
        joined[callee, text] = replace(callee, kernel=name)
    return [joined[kernel] for kernel in kernels], texts


def _unused(name: str, texts: Sequence[str], taken: set[str]) -> str:
    """A name that no text contains: registers and loops inside a kernel have names as well."""
    fresh = (f"{name}_c{number}" for number in count(1))
    return next(n for n in fresh if n not in taken and not any(n in text for text in texts))


def _renamed(text: str, old: str, new: str) -> str:
    """The text with its kernel, and the function of one work-group, under another name."""
    names = {old: new, group_function(old): group_function(new)}
    before = [f"#define {a} {b}" for a, b in names.items()]
    after = [f"#undef {a}" for a in names]
    return "\n".join([*before, text, *after])

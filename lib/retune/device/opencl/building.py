"""Candidates are compiled by several children at once, and a few of them in one program.

What a driver spends before a program's first kernel (PoCL: a third of a second with generated
kernels) is paid once for the candidates that share the program. A program that fails is taken
apart, so each candidate's failure is its own.
"""

import threading
import time
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count
from math import ceil
from queue import Empty, SimpleQueue

from retune.codegen.source import ProgramSource
from retune.device.measure.child import Child, ChildLostError
from retune.device.measure.messages import Build, Refused, Warm
from retune.device.measure.workload import MeasureOptions

MAX_SHARING = 4
"""Jobs of one program at most: nearly all that sharing saves, and little lost if one fails."""
_REMEMBERED = 64
"""Jobs of which it is known with which others the driver's disk cache holds them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A job that some child has compiled, or that failed."""

    index: int
    """Its number in `request`; differs between all builds of a Builder."""
    request: Build
    """Makes any child hold the job, from the driver's disk cache; its program may hold others."""
    build_s: float
    """The job's share of the time that its program took."""
    refused: Refused | None

    @property
    def shared(self) -> bool:
        """Whether its program holds other jobs too."""
        return len(self.request.jobs) > 1


class Builder:
    """Compiles jobs in these children. A job that comes again soon is not compiled again.

    One thread builds at a time; another one may build alone meanwhile, in another child.
    """

    def __init__(self, children: Sequence[Child]) -> None:
        self._children = children
        self._indices = count()
        self._programs: dict[ProgramSource, tuple[ProgramSource, ...]] = {}
        self._known = threading.Lock()
        """Held to look at, and to change, what is known of programs."""

    def build(self, jobs: Sequence[ProgramSource], options: MeasureOptions) -> list[Built]:
        """Every job compiled by some child, in the order given; equal jobs are compiled once.

        Raises: InputError, DeviceError if a child cannot open its device.
        """
        wanted = dict.fromkeys(jobs)
        waiting: SimpleQueue[tuple[ProgramSource, ...]] = SimpleQueue()
        for program in self._plan(list(wanted)):
            waiting.put(program)
        done: dict[ProgramSource, Built] = {}
        stopped = threading.Event()

        def work(child: Child) -> None:
            while not stopped.is_set():
                try:
                    program = waiting.get_nowait()
                except Empty:
                    return
                results = self._compile(child, program, options)
                if len(program) > 1 and any(built.refused for built in results):
                    for job in program:
                        if job in wanted:
                            waiting.put((job,))
                else:
                    done.update(zip(program, results, strict=True))

        active = self._children[: max(1, waiting.qsize())]
        with ThreadPoolExecutor(len(active)) as pool:
            try:
                for finished in [pool.submit(work, child) for child in active]:
                    finished.result()
            except BaseException:  # an interrupt must not wait for a compiler that hangs
                stopped.set()
                for child in active:
                    child.kill()
                raise
        self._remember(done)
        return [done[job] for job in jobs]

    def build_alone(self, built: Built, child: Child, options: MeasureOptions) -> Built:
        """A job that failed, in a program of its own from now on; `build_s` counts both.

        Raises: InputError, DeviceError if the child cannot open its device.
        """
        job = built.request.jobs[built.index]
        (alone,) = self._compile(child, (job,), options)
        self._remember({job: alone})
        return replace(alone, build_s=built.build_s + alone.build_s)

    def _plan(self, jobs: list[ProgramSource]) -> list[tuple[ProgramSource, ...]]:
        """The programs to build: those that are known, then new ones, as many for each child.

        Long texts come first, and in different programs: no child waits long at the end.
        """
        jobs = sorted(jobs, key=lambda job: -len(job.text))
        with self._known:
            programs_of = {job: self._programs[job] for job in jobs if job in self._programs}
        known = dict.fromkeys(programs_of.values())
        alike: dict[Hashable, list[ProgramSource]] = {}
        for job in jobs:
            if job not in programs_of:
                shares = job.single_item and self._children[0].spec.device_class == "cpu"
                alike.setdefault(job.options if shares else job, []).append(job)
        programs = list(known)
        for group in alike.values():
            each = ceil(len(group) / (len(self._children) * MAX_SHARING))
            number = min(len(group), len(self._children) * each)
            programs.extend(tuple(group[i::number]) for i in range(number))
        return programs

    def _compile(
        self, child: Child, program: tuple[ProgramSource, ...], options: MeasureOptions
    ) -> list[Built]:
        """The jobs of one program; all of them are refused, or none."""
        child.ensure()
        request = Build(jobs={next(self._indices): job for job in program})
        start = time.monotonic()
        stage = "compilation"
        try:
            reply = child.request(request, options.build_deadline_s)
            if not isinstance(reply, Refused):
                stage = "the first launch of one work-group"
                warm = Warm(indices=tuple(request.jobs))
                reply = child.request(warm, options.build_deadline_s)
        except ChildLostError as lost:
            reply = Refused(status=lost.status, error=f"{stage}: {lost}")
        refused = reply if isinstance(reply, Refused) else None
        if refused is None:
            child.holds |= request.jobs.keys()
        build_s = (time.monotonic() - start) / len(program)
        return [
            Built(index=index, request=request, build_s=build_s, refused=refused)
            for index in request.jobs
        ]

    def _remember(self, done: dict[ProgramSource, Built]) -> None:
        with self._known:
            for job, built in done.items():
                self._programs.pop(job, None)
                if built.refused is None:
                    self._programs[job] = tuple(built.request.jobs.values())
            for job in list(self._programs)[:-_REMEMBERED]:
                del self._programs[job]

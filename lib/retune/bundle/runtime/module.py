"""Module: a bundle, loaded on a device and ready to run.

Read `Module.run`. All that can be done once is done at load: kernels are built, weights uploaded,
temporaries laid out, every launch gets its arguments, and every input and output its copy. A run
copies inputs in, enqueues what the executor prepared, and copies outputs out; the read of the
outputs is the only wait. Where host and device share memory (PoCL) the copies are plain ones, not
commands of 20 us each. A network with host steps runs in parts, see `hosting`.
"""

import operator
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from statistics import median

import numpy as np

from retune.bundle.format import open_bundle
from retune.bundle.invariants import verify_plan
from retune.bundle.memory import MemoryPlan
from retune.bundle.plan import (
    Form,
    NetworkPlan,
    PlanHost,
    made_by_hosts,
    storage_roots,
)
from retune.bundle.runtime.allocations import Allocations, allocate
from retune.bundle.runtime.executor import make_executor, settle
from retune.bundle.runtime.hosting import HostRun, prepare_parts
from retune.bundle.runtime.inputs import InputCheck
from retune.codegen.source import KernelLaunch
from retune.core.dtypes import DType, TensorType
from retune.core.errors import InputError
from retune.core.target import DeviceSpec
from retune.device.measure.ceilings import Roofline
from retune.device.measure.inputs import random_array
from retune.device.opencl.runtime import Device
from retune.device.opening import open_device
from retune.device.profiles import plays


class BundleWarning(UserWarning):
    """A bundle works here, but was tuned for another device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchProfile:
    """One step of a run: its time, and what it achieved.

    Launches are timed by the device's clock. Host steps by the host's, the ways to and fro
    included; they have no arithmetic, traffic and roofline of their own.
    """

    label: str
    """Name of the fused group."""
    kernel: str
    """Entry point; of a host step its ops."""
    median_s: float
    share: float
    """Of the sum of all steps' medians."""
    flops: int
    bytes: int
    """Least traffic."""
    gflops: float
    """10^9 arithmetic operations per second."""
    gbytes_per_s: float
    """10^9 bytes of least traffic per second."""
    roofline: float | None
    """Time that the machine's ceilings allow over the time taken; None where none were given."""
    host: bool = False
    """True for a host step."""


class Module:
    """A network on a device. Not for use by two threads at once."""

    def __init__(self, plan: NetworkPlan, device: Device) -> None:
        """Every kernel is compiled, and has run once, when the call returns.

        Raises: VerifyError if the plan is not valid. InputError if the device cannot run it.
        """
        verify_plan(plan)
        _check_device(plan, device.spec)
        self._device = device
        self._form: Form
        self._form, self._host = settle(plan, device)
        self._types = {entry.name: _type(entry.dtype, entry.shape) for entry in plan.buffers}
        held = allocate(plan, self._host)
        self._memory = held.memory
        self._executor = make_executor(self._form, plan, held, self._host)
        # The arrays are on the device now; letting go of them frees the file or zip behind them.
        self.plan = replace(plan, weights={})
        self._parts = prepare_parts(plan, self._executor, held, self._host)
        self._whole = tuple(launch for part in self._parts for launch in part.launches)
        self._connect(held)
        self._host.enqueue(self._whole)
        self._host.finish()

    def _connect(self, held: Allocations) -> None:
        """What a run needs for its inputs and outputs is at hand."""
        host, types, plan = self._host, self._types, self.plan
        roots, elsewhere = storage_roots(plan), made_by_hosts(plan)
        self._made = {name: roots[name] for name in plan.outputs if roots[name] in elsewhere}
        read = [name for name in plan.outputs if name not in self._made]
        parts = {n: held.interface(n, host) for n in (*plan.inputs, *read)}
        self._check = InputCheck(plan.name, self.inputs)
        self._writers = [host.writer(parts[name], types[name]) for name in plan.inputs]
        self._readers = [(name, host.reader(parts[name], types[name])) for name in read]

    @classmethod
    def load(cls, path: Path | str, device: Device | str | None = None) -> "Module":
        """The bundle at `path` (folder or zip) on that device, or on the kind it was tuned for.

        Warns with BundleWarning if it was tuned for another device.
        Raises: RecordError if the bundle is damaged. InputError if there is no such device.
        """
        with open_bundle(Path(path)) as plan:
            if device is None or isinstance(device, str):
                device = open_device(device or plan.device.name)
            warn_if_foreign(plan, device.spec)
            return cls(plan, device)

    @property
    def inputs(self) -> dict[str, TensorType]:
        """What `run` takes, in the model's order."""
        return {name: self._types[name] for name in self.plan.inputs}

    @property
    def outputs(self) -> dict[str, TensorType]:
        """What `run` returns, in the model's order; UNKNOWN extents depend on the inputs."""
        return {name: self._types[name] for name in self.plan.outputs}

    @property
    def device(self) -> Device:
        """Where it runs."""
        return self._device

    @property
    def form(self) -> Form:
        """The form in which it runs: the plan's, unless the device lacks it."""
        return self._form

    @property
    def memory(self) -> MemoryPlan:
        """Sizes of the arena, the weights, and the inputs and outputs."""
        return self._memory

    @property
    def peak_bytes(self) -> int:
        """Device memory that the module holds."""
        return self._memory.peak_bytes

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Every output by name, in arrays of their own of the types that `outputs` states.

        Raises: InputError if an input is missing, unknown, or of another shape or type, or if a
        host step cannot work with what it gets.
        """
        if self.plan.hosts:
            return self.observe(inputs)[0]
        for write, array in zip(self._writers, self._check.arrays(inputs), strict=True):
            write(array)
        self._host.enqueue(self._whole)
        return {name: read() for name, read in self._readers}

    __call__ = run

    def observe(
        self, inputs: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], tuple[HostRun, ...]]:
        """What `run` returns, and what each host step read and made, in order."""
        arrays = self._check.arrays(inputs)
        for write, array in zip(self._writers, arrays, strict=True):
            write(array)
        values = dict(zip(self.plan.inputs, arrays, strict=True))
        runs: list[HostRun] = []
        for part in self._parts:
            self._host.enqueue(part.launches)
            runs += [call(values) for call in part.hosts]
        outputs = {name: read() for name, read in self._readers}
        for name, root in self._made.items():
            made = values[root]
            outputs[name] = made if name == root else made.reshape(self._types[name].shape).copy()
        return {name: outputs[name] for name in self.plan.outputs}, tuple(runs)

    def runner(self, first: int, end: int, rounds: int = 1) -> Callable[[], None]:
        """A call that runs the launches from `first` to before `end`, `rounds` times over.

        They work on whatever the buffers hold; for timing.
        Host steps between them do not run.
        """
        launches = self._executor.part(first, end, rounds)

        def run() -> None:
            self._host.enqueue(launches)
            self._host.finish()

        return run

    def run_launches(self) -> None:
        """All launches run, on whatever the buffers hold; steps between them do not. For timing."""
        for part in self._parts:
            self._host.enqueue(part.launches)
        self._host.finish()

    def benchmark(
        self,
        repeat: int = 20,
        warmup: int = 3,
        inputs: Mapping[str, np.ndarray] | None = None,
    ) -> list[float]:
        """Seconds of each of `repeat` whole runs, copies included, after `warmup` untimed ones.

        Beside an accelerator those of the launches, and what the accelerator's steps take there.
        """
        if self.plan.simulated_s:
            return [self._beside_accelerator() for _ in range(warmup + repeat)][warmup:]
        feeds = self.random_inputs() if inputs is None else inputs
        for _ in range(warmup):
            self.run(feeds)
        times_s: list[float] = []
        for _ in range(repeat):
            start = time.perf_counter()
            self.run(feeds)
            times_s.append(time.perf_counter() - start)
        return times_s

    def _beside_accelerator(self) -> float:
        start = time.perf_counter()
        self.run_launches()
        return time.perf_counter() - start + self.plan.simulated_s

    def profile(
        self,
        repeat: int = 10,
        inputs: Mapping[str, np.ndarray] | None = None,
        ceilings: Roofline | None = None,
    ) -> tuple[LaunchProfile, ...]:
        """The time of each step in order, as the median of `repeat` runs (at least one).

        A launch in a loop is timed once, and counted as often as it runs. With the ceilings of the
        device, also each launch's share of its roofline.
        """
        feeds, count = self.random_inputs() if inputs is None else inputs, max(1, repeat)
        self.run(feeds)
        steps = [
            launch
            for i in range(len(self.plan.launches))
            for launch in self._executor.part(i, i + 1, 1)
        ]
        alone = _medians([self._host.profile(steps) for _ in range(count)])
        launched = map(operator.mul, alone, self.plan.repeats)
        hosted = iter(self._host_medians(feeds, count))
        medians = [
            next(hosted) if isinstance(step, PlanHost) else next(launched)
            for step in self.plan.steps
        ]
        return profile_rows(self.plan.whole_steps, medians, ceilings)

    def _host_medians(self, feeds: Mapping[str, np.ndarray], count: int) -> Iterator[float]:
        """Seconds of each host step in order."""
        if not self.plan.hosts:
            return iter(())
        return _medians([[r.seconds for r in self.observe(feeds)[1]] for _ in range(count)])

    def random_inputs(self, seed: int = 0) -> dict[str, np.ndarray]:
        """A random array of the right type for each input, by name; equal seeds, equal arrays.

        Inputs that hold indices get valid ones.
        """
        return sample_inputs(self.plan, seed)


def profile_rows(
    steps: Sequence[KernelLaunch | PlanHost], seconds: Sequence[float], ceilings: Roofline | None
) -> tuple[LaunchProfile, ...]:
    """The profile of a plan's steps that take these seconds, in order."""
    total = sum(seconds)
    return tuple(_profile(*row, total, ceilings) for row in zip(steps, seconds, strict=True))


def sample_inputs(plan: NetworkPlan, seed: int = 0) -> dict[str, np.ndarray]:
    """An array for each input of the plan, by name; equal seeds give equal arrays.

    They are the samples that the user gave, in turns, or else random.
    """
    if plan.samples:
        return sample_of(plan.samples, seed)
    entries = {name: plan.buffer(name) for name in plan.inputs}
    types = {name: _type(entry.dtype, entry.shape) for name, entry in entries.items()}
    return random_inputs(types, seed, plan.counts, plan.least)


def sample_of(samples: Mapping[str, np.ndarray], number: int) -> dict[str, np.ndarray]:
    """The inputs of that number, counted round and round."""
    return {name: np.array(arrays[number % len(arrays)]) for name, arrays in samples.items()}


def random_inputs(
    types: Mapping[str, TensorType],
    seed: int = 0,
    counts: Mapping[str, int] | None = None,
    least: Mapping[str, int] | None = None,
) -> dict[str, np.ndarray]:
    """A random array of each type, none equal to another; equal seeds give equal arrays.

    Inputs among `counts` have values from 0, or from their `least`, to before their count.
    """
    counts, least = counts or {}, least or {}
    seeds = np.random.SeedSequence(seed).generate_state(len(types))
    arrays: dict[str, np.ndarray] = {}
    for (name, kind), own in zip(types.items(), seeds, strict=True):
        low = least.get(name, 0) if name in counts else least.get(name)
        high = counts[name] - 1 if name in counts else None
        arrays[name] = random_array(kind, low, high, seed=int(own))
    return arrays


def _check_device(plan: NetworkPlan, spec: DeviceSpec) -> None:
    for launch in plan.launches:
        if prod(launch.local_size) > spec.max_work_group:
            raise InputError(
                f"bundle {plan.name}: {launch.label}: expected work-groups of at most "
                f"{spec.max_work_group} on {spec.name}; got {prod(launch.local_size)}; "
                "tune the model for this device"
            )
    if lacking := sorted(plan.intrinsics - {*spec.instructions}):
        raise InputError(
            f"bundle {plan.name}: it was compiled with {', '.join(lacking)}, which {spec.name} "
            "does not have (see retune devices); compile or tune the model for this device"
        )


def warn_if_foreign(plan: NetworkPlan, spec: DeviceSpec) -> None:
    """Warns with BundleWarning if that device is not what the plan was tuned for, nor plays it."""
    if plan.device.fingerprint == spec.fingerprint or plays(spec, plan.device.name):
        return
    warnings.warn(
        f"bundle {plan.name} was tuned for {plan.device.fingerprint}; this is {spec.fingerprint}: "
        "it gives the same results, but tuning it here may make it faster",
        BundleWarning,
        stacklevel=3,
    )


def _medians(rounds: Sequence[Sequence[float]]) -> Iterator[float]:
    return (median(times) for times in zip(*rounds, strict=True))


def _profile(
    step: KernelLaunch | PlanHost, seconds: float, total: float, ceilings: Roofline | None
) -> LaunchProfile:
    share = seconds / total if total else 0.0
    if isinstance(step, PlanHost):
        return LaunchProfile(
            label=step.label,
            kernel=step.opened.title,
            median_s=seconds,
            share=share,
            flops=0,
            bytes=0,
            gflops=0.0,
            gbytes_per_s=0.0,
            roofline=None,
            host=True,
        )
    per_second = 1e-9 / seconds if seconds else 0.0
    least = ceilings.least_s(step.flops, step.bytes) if ceilings else None
    return LaunchProfile(
        label=step.label,
        kernel=step.kernel,
        median_s=seconds,
        share=share,
        flops=step.flops,
        bytes=step.bytes,
        gflops=step.flops * per_second,
        gbytes_per_s=step.bytes * per_second,
        roofline=least / seconds if least is not None and seconds else None,
    )


def _type(dtype: str, shape: tuple[int, ...]) -> TensorType:
    return TensorType(shape, DType(dtype))

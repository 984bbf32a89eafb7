"""Module: a bundle, loaded on a device and ready to run.

Read `Module.run`. All that can be done once is done at load: kernels are built, weights uploaded,
temporaries laid out, every launch gets its arguments, and every input and output its copy. A run
copies inputs in, enqueues what the executor prepared, and copies outputs out; the read of the
outputs is the only wait. Where host and device share memory (PoCL) the copies are plain ones, not
commands of 20 us each.
"""

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from statistics import median
from typing import cast

import numpy as np

from retune.bundle.allocations import Allocations, allocate
from retune.bundle.executor import make_executor, settle
from retune.bundle.format import read_bundle
from retune.bundle.inputs import InputCheck
from retune.bundle.memory import MemoryPlan
from retune.bundle.plan import Form, NetworkPlan, PlanLaunch, verify_plan
from retune.core.dtypes import DType, TensorType
from retune.core.errors import InputError
from retune.core.target import DeviceSpec
from retune.device.ceilings import Ceilings
from retune.device.inputs import random_array
from retune.device.runtime import Device, open_device


class BundleWarning(UserWarning):
    """A bundle works here, but was tuned for another device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchProfile:
    """One launch of a run: its time by the device's clock, and what it achieved."""

    label: str
    """Name of the fused group."""
    kernel: str
    median_s: float
    share: float
    """Of the sum of all launches' medians."""
    gflops: float
    """10^9 arithmetic operations per second."""
    gbytes_per_s: float
    """10^9 bytes of least traffic per second."""
    roofline: float | None
    """Time that the machine's ceilings allow over the time taken; None where none were given."""


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
        self._executor = make_executor(self._form, plan, held.storage, held.bases, self._host)
        # The arrays are on the device now; letting go of them frees the file or zip behind them.
        self.plan = replace(plan, weights={})
        self._connect(held)
        self._host.enqueue(self._executor.whole)
        self._host.finish()

    def _connect(self, held: Allocations) -> None:
        """What a run needs for its inputs and outputs is at hand."""
        host, types, plan = self._host, self._types, self.plan
        parts = {n: held.interface(n, host) for n in (*plan.inputs, *plan.outputs)}
        self._check = InputCheck(plan.name, self.inputs)
        self._writers = [host.writer(parts[name], types[name]) for name in plan.inputs]
        self._readers = [(name, host.reader(parts[name], types[name])) for name in plan.outputs]

    @classmethod
    def load(cls, path: Path | str, device: Device | str | None = None) -> "Module":
        """The bundle at `path` (folder or zip) on that device, or on the kind it was tuned for.

        Warns with BundleWarning if it was tuned for another device.
        Raises: RecordError if the bundle is damaged. InputError if there is no such device.
        """
        plan = read_bundle(Path(path))
        if device is None or isinstance(device, str):
            device = open_device(device or plan.device.name)
        _warn_if_foreign(plan, device.spec)
        return cls(plan, device)

    @property
    def inputs(self) -> dict[str, TensorType]:
        """What `run` takes, in the model's order."""
        return {name: self._types[name] for name in self.plan.inputs}

    @property
    def outputs(self) -> dict[str, TensorType]:
        """What `run` returns, in the model's order."""
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

        Raises: InputError if an input is missing, unknown, or of another shape or type.
        """
        for write, array in zip(self._writers, self._check.arrays(inputs), strict=True):
            write(array)
        self._host.enqueue(self._executor.whole)
        return {name: read() for name, read in self._readers}

    __call__ = run

    def runner(self, first: int, end: int, rounds: int = 1) -> Callable[[], None]:
        """A call that runs the launches from `first` to before `end`, `rounds` times over.

        They work on whatever the buffers hold; for timing. At most 1024 launches, rounds counted.
        """
        launches = self._executor.part(first, end, rounds)

        def run() -> None:
            self._host.enqueue(launches)
            self._host.finish()

        return run

    def benchmark(
        self,
        repeat: int = 20,
        warmup: int = 3,
        inputs: Mapping[str, np.ndarray] | None = None,
    ) -> list[float]:
        """Seconds of each of `repeat` whole runs, copies included, after `warmup` untimed ones."""
        feeds = self.random_inputs() if inputs is None else inputs
        for _ in range(warmup):
            self.run(feeds)
        times_s: list[float] = []
        for _ in range(repeat):
            start = time.perf_counter()
            self.run(feeds)
            times_s.append(time.perf_counter() - start)
        return times_s

    def profile(
        self,
        repeat: int = 10,
        inputs: Mapping[str, np.ndarray] | None = None,
        ceilings: Ceilings | None = None,
    ) -> tuple[LaunchProfile, ...]:
        """The time of each launch in order, as the median of `repeat` runs (at least one).

        With the ceilings of the device, also each one's share of its roofline.
        """
        self.run(self.random_inputs() if inputs is None else inputs)
        steps = [
            launch
            for i in range(len(self.plan.launches))
            for launch in self._executor.part(i, i + 1, 1)
        ]
        rounds = [self._host.profile(steps) for _ in range(max(1, repeat))]
        medians = [median(times) for times in zip(*rounds, strict=True)]
        total = sum(medians)
        return tuple(
            _profile(launch, seconds, total, ceilings)
            for launch, seconds in zip(self.plan.launches, medians, strict=True)
        )

    def random_inputs(self, seed: int = 0) -> dict[str, np.ndarray]:
        """A random array of the right type for each input, by name; equal seeds, equal arrays."""
        return random_inputs(self.inputs, seed)


def random_inputs(types: Mapping[str, TensorType], seed: int = 0) -> dict[str, np.ndarray]:
    """A random array of each type, none equal to another; equal seeds give equal arrays."""
    seeds = np.random.SeedSequence(seed).generate_state(len(types))
    return {
        name: random_array(kind, seed=int(own))
        for (name, kind), own in zip(types.items(), seeds, strict=True)
    }


def _check_device(plan: NetworkPlan, spec: DeviceSpec) -> None:
    for launch in plan.launches:
        if prod(launch.local_size) > spec.max_work_group:
            raise InputError(
                f"module {plan.name}: {launch.label}: expected work-groups of at most "
                f"{spec.max_work_group} on {spec.name}; got {prod(launch.local_size)}; "
                "tune the model for this device"
            )


def _warn_if_foreign(plan: NetworkPlan, spec: DeviceSpec) -> None:
    if plan.device.fingerprint == spec.fingerprint:
        return
    warnings.warn(
        f"module {plan.name} was tuned for {plan.device.fingerprint}; this is {spec.fingerprint}: "
        "it gives the same results, but tuning it here may make it faster",
        BundleWarning,
        stacklevel=3,
    )


def _profile(
    launch: PlanLaunch, seconds: float, total: float, ceilings: Ceilings | None
) -> LaunchProfile:
    per_second = 1e-9 / seconds if seconds else 0.0
    least = ceilings.least_s(launch.flops, launch.bytes) if ceilings else None
    return LaunchProfile(
        label=launch.label,
        kernel=launch.kernel,
        median_s=seconds,
        share=seconds / total if total else 0.0,
        gflops=launch.flops * per_second,
        gbytes_per_s=launch.bytes * per_second,
        roofline=least / seconds if least is not None and seconds else None,
    )


def _type(dtype: str, shape: tuple[int, ...]) -> TensorType:
    return TensorType(shape, cast("DType", dtype))

"""Module: a bundle, loaded on a device and ready to run.

Read `Module.run`. All that can be done once is done at load: kernels are built, weights uploaded,
temporaries laid out, and every launch gets its arguments. A run copies inputs in, enqueues the
prepared launches in order, and copies outputs out.

Decided by measurement (PoCL 3.0, two cores):
- One in-order queue, no events: a launch costs 2 to 3 us; waiting after each one costs ten times
  that. The blocking read of the outputs is the only wait.
- Temporaries are sub-buffers of one allocation, which costs nothing per launch.
- Inputs and outputs are copied: about 40 us a run more than sharing the host's memory, which OpenCL
  allows only through mapping, and mapping is slower than the copy.
- All kernels are one program: what a build costs before the first kernel (90 ms, four fifths of a
  small kernel's cost) is paid once, and the driver's disk cache makes the next load quick.
"""

import time
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from statistics import median
from typing import cast

import numpy as np

from retune.bundle.format import read_bundle
from retune.bundle.memory import MemoryPlan, plan_memory
from retune.bundle.plan import NetworkPlan, PlanLaunch, storage_roles, storage_roots, verify_plan
from retune.core.dtypes import DType, TensorType
from retune.core.errors import InputError
from retune.core.target import DeviceSpec
from retune.device.inputs import random_array
from retune.device.runtime import Buffer, Device, Launch, open_device


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


class Module:
    """A network on a device. Not for use by two threads at once."""

    def __init__(self, plan: NetworkPlan, device: Device) -> None:
        """Every kernel is compiled, and has run once, when the call returns.

        Raises: VerifyError if the plan is not valid. InputError if the device cannot run it.
        """
        verify_plan(plan)
        _check_device(plan, device.spec)
        self._device = device
        self._memory = plan_memory(plan)
        self._types = {entry.name: _type(entry.dtype, entry.shape) for entry in plan.buffers}
        self._buffers = _allocate(plan, self._memory, device)
        self._launches = _prepare(plan, self._buffers, device)
        # The arrays are on the device now; letting go of them frees the file or zip behind them.
        self.plan = replace(plan, weights={})
        device.enqueue(self._launches)
        device.finish()

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
    def memory(self) -> MemoryPlan:
        """Sizes of the arena, the weights, and the inputs and outputs."""
        return self._memory

    @property
    def peak_bytes(self) -> int:
        """Device memory that the module holds."""
        return self._memory.peak_bytes

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Every output by name, in arrays of their own.

        Raises: InputError if an input is missing, unknown, or of another shape or type.
        """
        arrays = _checked(self.plan.name, self.inputs, inputs)
        device, buffers = self._device, self._buffers
        for name, array in arrays.items():
            device.write(buffers[name], array)
        device.enqueue(self._launches)
        return {name: device.read(buffers[name], self._types[name]) for name in self.plan.outputs}

    __call__ = run

    def run_kernels(self, kernels: Collection[str]) -> None:
        """Runs the launches of these kernels alone, on whatever the buffers hold; for timing."""
        chosen = zip(self._launches, self.plan.launches, strict=True)
        self._device.enqueue([launch for launch, plan in chosen if plan.kernel in kernels])
        self._device.finish()

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
        self, repeat: int = 10, inputs: Mapping[str, np.ndarray] | None = None
    ) -> tuple[LaunchProfile, ...]:
        """The time of each launch in order, as the median of `repeat` runs (at least one)."""
        self.run(self.random_inputs() if inputs is None else inputs)
        rounds = [self._device.profile(self._launches) for _ in range(max(1, repeat))]
        medians = [median(times) for times in zip(*rounds, strict=True)]
        total = sum(medians)
        return tuple(
            _profile(launch, seconds, total)
            for launch, seconds in zip(self.plan.launches, medians, strict=True)
        )

    def random_inputs(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Random inputs by type; equal seeds give equal arrays."""
        return random_inputs(self.inputs, seed)


def random_inputs(types: Mapping[str, TensorType], seed: int = 0) -> dict[str, np.ndarray]:
    """A random array of each type, none equal to another; equal seeds give equal arrays."""
    seeds = np.random.SeedSequence(seed).generate_state(len(types))
    return {
        name: random_array(kind, seed=int(own))
        for (name, kind), own in zip(types.items(), seeds, strict=True)
    }


def _allocate(plan: NetworkPlan, memory: MemoryPlan, device: Device) -> dict[str, Buffer]:
    """The buffer of every value that has memory; values of one alias chain share it."""
    arena = device.allocate(memory.arena_bytes) if memory.arena_bytes else None
    sizes = {entry.name: entry.bytes for entry in plan.buffers}
    held: dict[str, Buffer] = {}
    for root, role in storage_roles(plan).items():
        if role == "weight":
            held[root] = device.upload(plan.weights[root])
        elif role != "temp":
            held[root] = device.allocate(sizes[root])
        elif arena is not None and root in memory.offsets:
            held[root] = device.part(arena, memory.offsets[root], sizes[root])
    return {name: held[root] for name, root in storage_roots(plan).items() if root in held}


def _prepare(
    plan: NetworkPlan, buffers: Mapping[str, Buffer], device: Device
) -> tuple[Launch, ...]:
    texts = dict.fromkeys(plan.kernels.values())
    if not plan.launches:
        return ()
    program = device.build("\n".join(texts), options=plan.options)
    return tuple(
        device.prepare(
            program,
            launch.kernel,
            [buffers[name] for name in launch.args],
            launch.global_size,
            launch.local_size,
        )
        for launch in plan.launches
    )


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


def _checked(
    name: str, types: Mapping[str, TensorType], inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The inputs as arrays in the module's order."""
    missing = [f"no {key}" for key in types if key not in inputs]
    unknown = [f"an unknown {key}" for key in inputs if key not in types]
    if missing or unknown:
        got = " and ".join(missing + unknown)
        raise InputError(f"module {name}: expected the inputs {', '.join(types)}; got {got}")
    arrays = {key: np.asarray(inputs[key]) for key in types}
    for key, array in arrays.items():
        expected = types[key]
        if array.shape != expected.shape or array.dtype != expected.dtype:
            raise InputError(
                f"module {name}: input {key}: expected {expected}; got "
                f"{array.dtype}[{', '.join(map(str, array.shape))}]; {_remedy(array, expected)}"
            )
    return arrays


def _remedy(array: np.ndarray, expected: TensorType) -> str:
    if array.dtype != expected.dtype:
        return f"convert it with .astype({expected.dtype!r})"
    if array.size == expected.elements:
        return f"bring it into that layout, with .reshape{expected.shape} or a transpose"
    return "compile the model for this shape with --shape"


def _profile(launch: PlanLaunch, seconds: float, total: float) -> LaunchProfile:
    per_second = 1e-9 / seconds if seconds else 0.0
    return LaunchProfile(
        label=launch.label,
        kernel=launch.kernel,
        median_s=seconds,
        share=seconds / total if total else 0.0,
        gflops=launch.flops * per_second,
        gbytes_per_s=launch.bytes * per_second,
    )


def _type(dtype: str, shape: tuple[int, ...]) -> TensorType:
    return TensorType(shape, cast("DType", dtype))

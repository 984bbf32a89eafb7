"""Module: a bundle, loaded on a device and ready to run.

Read `Module.run`. All that can be done once is done at load: kernels are built, weights uploaded,
temporaries laid out, every launch gets its arguments, and every input and output its copy. A run
copies inputs in, enqueues what the executor prepared, and copies outputs out; the read of the
outputs is the only wait. Where host and device share memory (PoCL) the copies are plain ones, not
commands of 20 us each, and large inputs and outputs are not copied, see `lending`. A network with
host steps runs in parts, see `hosting`.

Where extents depend on sizes, memory is there for the largest ones. What a run of some sizes needs
is prepared when they come, see `runs`, and kept for the next runs of the same; nothing is compiled
for it, and nothing allocated but memory of large outputs. Where a host step finds a size, what runs
behind it is prepared then. A network with states has sessions as well, see `session`.
"""

import logging
import operator
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from statistics import median
from threading import RLock
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from retune.bundle.format import OpenBundle, open_bundle
from retune.bundle.invariants import verify_plan
from retune.bundle.memory import MemoryPlan
from retune.bundle.plan import Form, NetworkPlan, PlanHost
from retune.bundle.runtime.allocations import allocated
from retune.bundle.runtime.executor import make_program, may_lend, settle
from retune.bundle.runtime.hosting import HostRun, launches_at
from retune.bundle.runtime.inputs import InputCheck, Inputs
from retune.bundle.runtime.placement import lent_roots
from retune.bundle.runtime.runs import AtSizes, Loaded, Runs
from retune.bundle.runtime.session import Session
from retune.codegen.source import KernelLaunch
from retune.core.config import programs_root
from retune.core.decoding import IDS, following
from retune.core.dims import SizeValues, at
from retune.core.dtypes import TensorType
from retune.core.errors import InputError
from retune.core.target import DeviceSpec
from retune.device.measure.inputs import random_array
from retune.device.opencl.binaries import Binaries
from retune.device.opencl.runtime import Device
from retune.device.opening import open_device
from retune.device.profiles import plays

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from retune.device.measure.ceilings import Lower, Roofline


_LOG = logging.getLogger(__name__)


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
    in_16_bits: float | None = None
    """The time that the ceilings allow with 16-bit floats over that with float32; None where none
    were given."""
    in_8_bits: float | None = None
    """The same with int8."""
    times: int = 1
    """How often a call runs it, such as once for each micro-batch; all are counted above."""
    host: bool = False
    """True for a host step."""


class Outputs(dict[str, np.ndarray]):
    """The outputs of a run by name, in the model's order; `outputs[0]` is the first of them."""

    def __getitem__(self, key: str | int) -> np.ndarray:
        if isinstance(key, str) and key in self:
            return super().__getitem__(key)
        if isinstance(key, int) and -len(self) <= key < len(self):
            return list(self.values())[key]
        raise KeyError(f"{key!r}: expected one of {', '.join(self)}, or a number below {len(self)}")


PROFILE_S = 20.0
"""No run of a profile begins later: those of a decoder's long prompts take seconds, and more where
others use the processor, too."""

_OPEN = ("_runs", "_executor", "_bind", "_loaded", "_held", "_now")
"""What a module has until it is closed."""


class Module:
    """A network on a device. Calls of `run` by several threads take turns.

    With a `with` statement, the device's memory is free when its block ends.
    """

    def __init__(
        self,
        source: NetworkPlan | OpenBundle,
        device: Device,
        *,
        binaries: Binaries | None = None,
    ) -> None:
        """Every kernel is compiled when the call returns.

        Programs come from `binaries`, by default the plan's and the user's cache, where these have
        them; where one was compiled now, every kernel has run once.
        Raises: VerifyError if the plan is not valid. InputError if the device cannot run it.
        RecordError for an open bundle with damaged weights.
        """
        if isinstance(source, OpenBundle):
            plan = source.plan
        else:
            plan = source
            verify_plan(plan)
        _check_device(plan, device.spec)
        self._device = device
        self._lock = RLock()
        self._thread: ThreadPoolExecutor | None = None
        self._form: Form
        self._form, self._host = settle(plan, device)
        binaries = binaries or Binaries(given=plan.binaries, folder=programs_root())
        with self._host.compiled(binaries):
            self._place(plan)
            if isinstance(source, OpenBundle):
                source.require_sound()
            self.programs = binaries.report()
            """Where its programs came from, and why compiled ones were not used."""
            if self.programs.compiled or binaries.collects:
                self._run_once()
        _LOG.debug(
            "%s: loaded on %s, %s form, %d bytes on the device, %s",
            *(plan.name, device.spec.name, self._form, self.peak_bytes, self.programs),
        )

    def _place(self, plan: NetworkPlan) -> None:
        """Memory and launches are there, for the largest sizes."""
        lent = lent_roots(plan) if may_lend(self._form, self._host) else ()
        with allocated(plan, self._host, lent) as held:
            bind = self._bind = make_program(self._form, plan, held.placement, self._host)
        self._held = held
        loaded = self._loaded = Loaded(plan, self._host)
        self.plan, self._types = loaded.plan, loaded.types
        self._check = InputCheck(plan)
        self._executor = bind(held)
        self._runs = Runs(loaded, self._executor, held, plan.inputs, plan.outputs)
        self._values: SizeValues = plan.corners[-1]
        self._now = self._runs.at(self._values)
        self._runs.set_sizes(self._now)

    def _run_once(self) -> None:
        """Every kernel has run: drivers compile at first launches (PoCL: for small and for large
        ranges), and compiled programs that are kept have what was launched."""
        for values in self.plan.corners if self._form == "queued" else self.plan.corners[-1:]:
            self._now = self._runs.at(values)
            self._runs.set_sizes(self._now)
            self._host.enqueue(self._now.whole)
        self._host.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The device's memory is free, and the module cannot run any more; twice is as once."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        for name in _OPEN:
            vars(self).pop(name, None)

    def __getattr__(self, name: str) -> Any:
        if name in _OPEN and "plan" in vars(self):
            raise InputError(
                f"bundle {self.plan.name}: expected an open module, got one that was closed; "
                "load it again"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _wanted(self, inputs: Inputs) -> tuple[AtSizes, Sequence[np.ndarray]]:
        """What a run on these inputs needs, and the inputs in order. Raises: InputError."""
        arrays = self._check.arrays(self._check.named(inputs))
        key = self._check.key(arrays)
        wanted = self._runs.prepared(key) or self._runs.keep(key, self._check.sizes(arrays))
        self._check.indices(arrays, wanted.values)
        self._now, self._values = wanted, wanted.values
        return wanted, arrays

    def session(self, sizes: SizeValues | None = None) -> Session:
        """A sequence of calls whose states stay on the device; they are zeros or empty at first.

        `sizes` are those that no input but states says, such as a batch.
        Raises: InputError if the bundle has no states, or a session cannot have them.
        """
        return Session(self._loaded, self._bind, self._held, sizes)

    @classmethod
    def load(
        cls,
        path: Path | str,
        device: Device | str | None = None,
        binaries: Binaries | None = None,
    ) -> "Module":
        """The bundle at `path` (folder or zip) on that device, or on the kind it was tuned for.

        `binaries` are as `Module` takes them.
        Warns with BundleWarning if it was tuned for another device.
        Raises: RecordError if the bundle is damaged. InputError if there is no such device.
        """
        with open_bundle(Path(path)) as opened:
            if device is None or isinstance(device, str):
                device = open_device(device or opened.plan.device.name)
            warn_if_foreign(opened.plan, device.spec)
            return cls(opened, device, binaries=binaries)

    @property
    def inputs(self) -> dict[str, TensorType]:
        """What `run` takes, in the model's order; extents may depend on sizes."""
        return {name: self.plan.type_of(name) for name in self.plan.inputs}

    @property
    def outputs(self) -> dict[str, TensorType]:
        """What `run` returns, in the model's order; UNKNOWN extents depend on the inputs."""
        return {name: self.plan.type_of(name) for name in self.plan.outputs}

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
        return self._held.memory

    @property
    def peak_bytes(self) -> int:
        """Device memory that the module holds from loading on: without that of large outputs, see
        `lending`."""
        return self.memory.peak_bytes

    def run(self, inputs: Inputs) -> Outputs:
        """Every output by name, in arrays of their own of the types that `outputs` states.

        Inputs may change once it returns. Later runs leave the arrays as they are; their memory may
        be the module's, which uses it again when they are gone.

        A network with one input takes its array alone, any other one a sequence in the model's
        order, too. Calls of several threads run one after the other.

        Raises: InputError if an input is missing, unknown, or of another shape or type, if a size
        is out of its range, an index outside, or if a host step cannot work with what it gets.
        """
        with self._lock:
            if self.plan.hosts:
                return Outputs(self.observe(inputs)[0])
            wanted, arrays = self._wanted(inputs)
            return Outputs(self._runs.run(wanted, arrays))

    __call__ = run

    def submit(self, inputs: Inputs) -> "Future[Outputs]":
        """A run in a thread of the module, after those submitted before it: `result()` waits.

        The arrays must not change until then. `close` waits for what was submitted.
        Raises: in `result()`, as `run`.
        """
        with self._lock:
            if self._thread is None:
                from concurrent.futures import ThreadPoolExecutor

                self._runs  # noqa: B018  raises for a module that was closed
                self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"retune {self.plan.name}")
            return self._thread.submit(self.run, inputs)

    def shared(self, name: str) -> np.ndarray:
        """The memory of an input or output itself, where host and device share it, as on PoCL.

        Write inputs there, call `run_launches`, and read outputs there: nothing is copied.
        Raises: InputError for an unknown name; for a bundle of ranges or with host steps; and for
        a device with memory of its own.
        """
        where = f"bundle {self.plan.name}: shared {name!r}"
        known = [*self.plan.inputs, *self.plan.outputs]
        if name not in known:
            raise InputError(f"{where}: expected one of {', '.join(known)}, got another name")
        if self.plan.hosts or self.plan.sizes:
            raise InputError(
                f"{where}: expected fixed shapes and no host steps, got a bundle with them; use run"
            )
        array = self._runs.shared_array(name)
        if array is None:
            raise InputError(
                f"{where}: expected memory that host and device share, got a device with its own; "
                "use run"
            )
        return array

    def observe(self, inputs: Inputs) -> tuple[dict[str, np.ndarray], tuple[HostRun, ...]]:
        """What `run` returns, and what each host step read and made, in order."""
        outputs, runs, self._values = self._runs.observe(*self._wanted(inputs))
        return outputs, runs

    def watch(
        self, inputs: Inputs, read: Mapping[int, Sequence[str]]
    ) -> tuple[dict[str, np.ndarray], dict[int, list[np.ndarray]]]:
        """What `run` returns, and what launches `read`: of each number the buffers of those names,
        as they are before the launch runs. For networks without host steps."""
        return self._runs.watch(*self._wanted(inputs), read)

    def runner(self, first: int, end: int, rounds: int = 1) -> Callable[[], None]:
        """A call that runs the launches from `first` to before `end`, `rounds` times over.

        They work on whatever the buffers hold, for the sizes of the last run; for timing. Host
        steps between them do not run.
        """
        launches = launches_at(self._executor.part(first, end, rounds), self._values)

        def run() -> None:
            self._runs.set_sizes(self._now)
            self._host.enqueue(launches)
            self._host.finish()

        return run

    def run_launches(self) -> None:
        """All launches run, on whatever the buffers hold, for the sizes of the last run; steps
        between them do not. For timing."""
        whole = (
            self._now.whole
            if self._values is self._now.values
            else self._runs.at(self._values).whole
        )
        self._runs.set_sizes(self._now)
        self._host.enqueue(whole)
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
        ceilings: "Roofline | None" = None,
    ) -> tuple[LaunchProfile, ...]:
        """The time of each step in order, as the median of `repeat` runs (at least one), or of
        those that begin within PROFILE_S.

        The steps are those for the sizes of the inputs, the largest ones if none are given.
        A launch in a loop is timed once, and counted as often as it runs. With the ceilings of the
        device, also each launch's share of its roofline.
        """
        feeds, count = self.random_inputs() if inputs is None else inputs, max(1, repeat)
        self.run(feeds)
        values = self._values
        variant, plan = self.plan.variant_at(values), self.plan.at(values)
        steps = [
            launches_at(self._executor.part(i, i + 1, 1), values)
            for i in range(variant.first, variant.end)
        ]
        busy = [launch for each in steps for launch in each]
        alone = _medians(_rounds(lambda: self._host.profile(busy), count))
        each_s = (sum(next(alone) for _ in launches) for launches in steps)
        launched = map(operator.mul, each_s, plan.repeats)
        hosted = iter(self._host_medians(feeds, count))
        medians = [
            next(hosted) if isinstance(step, PlanHost) else next(launched) for step in plan.steps
        ]
        return profile_rows(plan, medians, ceilings)

    def _host_medians(self, feeds: Mapping[str, np.ndarray], count: int) -> Iterator[float]:
        """Seconds of each host step in order."""
        if not self.plan.hosts:
            return iter(())
        return _medians(_rounds(lambda: [r.seconds for r in self.observe(feeds)[1]], count))

    def plan_for(self, inputs: Mapping[str, np.ndarray] | None = None) -> NetworkPlan:
        """The plan for the sizes of these inputs alone, or for the largest ones.

        Raises: InputError as `run`.
        """
        if inputs is None:
            return self.plan.at(self.plan.largest)
        return self.plan.at(self._check.sizes(self._check.arrays(inputs)))

    def random_inputs(
        self, seed: int = 0, sizes: SizeValues | None = None
    ) -> dict[str, np.ndarray]:
        """A random array of the right type for each input, by name; equal seeds, equal arrays.

        They are for these sizes, or the largest ones. Inputs that hold indices get valid ones.
        """
        return sample_inputs(self.plan, seed, sizes)


def profile_rows(
    plan: NetworkPlan, seconds: Sequence[float], ceilings: "Roofline | None"
) -> tuple[LaunchProfile, ...]:
    """The profile of a plan's steps that take these seconds, in order, all times that they run."""
    total, repeats = sum(seconds), iter(plan.repeats)
    return tuple(
        _profile(step, 1 if isinstance(step, PlanHost) else next(repeats), s, total, ceilings)
        for step, s in zip(plan.steps, seconds, strict=True)
    )


def sample_inputs(
    plan: NetworkPlan, seed: int = 0, sizes: SizeValues | None = None
) -> dict[str, np.ndarray]:
    """An array for each input of the plan, by name; equal seeds give equal arrays.

    They are the samples that the user gave, in turns, or else random. Where there are sizes, they
    are random ones for these, and otherwise for the largest ones. What follows from the length of
    a cache, such as a mask, is that of a text.
    """
    if plan.samples and not sizes:
        return sample_of(plan.samples, seed)
    values = sizes or plan.largest
    types = {name: plan.type_of(name).at(values) for name in plan.inputs}
    stated = {n: [at(element, values) for element in row] for n, row in plan.values.items()}
    grown = next((state for state in plan.states if state.axis is not None), None)
    held = at(plan.buffer(grown.input).shape[0], values) if grown else None
    return random_inputs(types, seed, plan.counts, plan.least, stated, held)


def sample_of(samples: Mapping[str, np.ndarray], number: int) -> dict[str, np.ndarray]:
    """The inputs of that number, counted round and round."""
    return {name: np.array(arrays[number % len(arrays)]) for name, arrays in samples.items()}


def random_inputs(
    types: Mapping[str, TensorType],
    seed: int = 0,
    counts: Mapping[str, int] | None = None,
    least: Mapping[str, int] | None = None,
    values: Mapping[str, Sequence[int]] | None = None,
    held: int | None = None,
) -> dict[str, np.ndarray]:
    """A random array of each type, none equal to another; equal seeds give equal arrays.

    Inputs among `counts` have values from 0, or from their `least`, to before their count; those
    among `values` have these elements. Where so many tokens are `held` in a cache, what follows
    from that, such as a mask, is that of a text.
    """
    counts, least = counts or {}, least or {}
    seeds = np.random.SeedSequence(seed).generate_state(len(types))
    arrays: dict[str, np.ndarray] = {}
    for (name, kind), own in zip(types.items(), seeds, strict=True):
        low = least.get(name, 0) if name in counts else least.get(name)
        high = counts[name] - 1 if name in counts else None
        arrays[name] = random_array(kind, low, high, seed=int(own))
    if held is not None:
        arrays |= _of_text(arrays, held, counts)
    for name, elements in (values or {}).items():
        arrays[name].reshape(-1)[:] = elements
    return arrays


def _of_text(
    arrays: Mapping[str, np.ndarray], held: int, counts: Mapping[str, int]
) -> dict[str, np.ndarray]:
    """The inputs that follow from the length of a cache, where these arrays have their shapes."""
    ids, found = arrays.get(IDS), dict[str, np.ndarray]()
    if ids is None or ids.ndim != 2:
        return found
    for name, array in following(held, ids.shape[1], len(ids)).items():
        if name in arrays and arrays[name].shape == array.shape:
            end = counts.get(name, 0)  # tables of positions may end before the longest cache
            kept = array.clip(max=end - 1) if end else array
            found[name] = kept.astype(arrays[name].dtype)
    return found


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


def _rounds(measure: Callable[[], list[float]], count: int) -> list[list[float]]:
    """What `measure` returns, so many times, or as often as it begins within PROFILE_S."""
    end = time.perf_counter() + PROFILE_S
    rounds = [measure()]
    while len(rounds) < count and time.perf_counter() < end:
        rounds.append(measure())
    return rounds


def _medians(rounds: Sequence[Sequence[float]]) -> Iterator[float]:
    return (median(times) for times in zip(*rounds, strict=True))


def _profile(
    step: KernelLaunch | PlanHost,
    times: int,
    seconds: float,
    total: float,
    ceilings: "Roofline | None",
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
    flops, traffic = step.flops * times, step.bytes * times
    least = ceilings.least_s(flops, traffic) if ceilings else None

    def part(bits: "Lower") -> float | None:
        """Of the least time, with values of so many bits."""
        if ceilings is None or not least:
            return None
        return ceilings.least_lower_s(bits, flops, traffic) / least

    return LaunchProfile(
        label=step.label,
        kernel=step.kernel,
        median_s=seconds,
        share=share,
        flops=flops,
        bytes=traffic,
        times=times,
        gflops=flops * per_second,
        gbytes_per_s=traffic * per_second,
        roofline=least / seconds if least is not None and seconds else None,
        in_16_bits=part(16),
        in_8_bits=part(8),
    )

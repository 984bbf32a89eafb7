"""The measuring interface: Workload, MeasureOptions and the Runner protocol."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from retune.codegen.source import ProgramBuffer, ProgramSource
from retune.core.errors import InputError
from retune.core.target import DeviceSpec
from retune.device.measure.gate import HOST
from retune.records.conditions import Conditions, constants_from
from retune.records.schema import Measurement


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """A task with data: what its candidates read, and what they must compute from it."""

    key: str
    inputs: Mapping[str, np.ndarray]
    """Every input and constant buffer of the candidates, by name; constants are not packed, inputs
    lie as the candidates read them."""
    outputs: Mapping[str, np.ndarray]
    """The reference result of every output buffer, by name."""
    positions: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    """Of outputs that do not lie row by row: where in its buffer each element does. int64"""
    rtol: float = 1e-4
    """Allowed deviation as a share of the largest reference value of that output."""
    atol: float = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOptions:
    """How long to measure, and when to give up."""

    number: int = 1
    """Calls of one repeat, at least."""
    repeat: int = 5
    min_repeat_ms: float = 5.0
    """`number` grows until a repeat lasts this long. Medians of repeats twice as long are no closer
    to each other (`benchmarks.measuring`): what disturbs them lasts longer than both."""
    cooldown_s: float = 0.0
    """Pause before each repeat."""
    cache_flush: bool = False
    """Empty the caches before each repeat; a repeat is then one call."""
    spread_bytes: int = 0
    """Constants that a network reads between two calls of this kernel, its own included: successive
    calls read from successive addresses of as many bytes, out of those caches that are smaller.
    Where persistent workers run it; 0: each call reads the same."""
    give_up_factor: float | None = 5.0
    """One repeat is enough for a candidate this many times slower than the workload's best."""
    disturbed_ratio: float = 1.15
    """Reference times before and after that differ by more mark a disturbed moment."""
    disturbed_retries: int = 2
    build_deadline_s: float = 30.0
    """For compilation, and again for the first launch of one work-group."""
    run_deadline_s: float = 10.0
    """Allowance for a launch, besides the time that its arithmetic may take."""
    worst_gflops: float = 0.2
    """Speed below which a candidate's first run is taken for a hang."""
    deadline_factor: float = 4.0
    """Timing may last this many times what the first run promises."""

    def __post_init__(self) -> None:
        for name in ("number", "repeat", "build_deadline_s", "run_deadline_s", "worst_gflops"):
            if getattr(self, name) <= 0:
                raise InputError(f"{name}: expected a positive number, got {getattr(self, name)}")


def measuring_conditions(spec: DeviceSpec, options: MeasureOptions) -> Conditions:
    """The conditions under which a runner of that device times candidates with these options."""
    timed = spec.device_class == "cpu" and not spec.accelerator
    spread = options.spread_bytes if timed else 0  # queues read the same, and so do simulators
    return Conditions(
        device=spec.fingerprint,
        instance=spec.name,
        host=spec.host,
        compute_units=1 if spec.accelerator else spec.compute_units,
        affinity=spec.affinity,
        spread_bytes=spread,
        constants=constants_from(spec, spread),
        flush=options.cache_flush,
    )


def handed_in(
    measure: Callable[[str, Sequence[ProgramSource], MeasureOptions], list[Measurement]],
    workload_key: str,
    candidates: Sequence[ProgramSource],
    options: MeasureOptions,
) -> Future[list[Measurement]]:
    """What `Runner.submit` returns where the caller's own thread measures: the future is done.

    Only an interrupt is raised here; whatever else `measure` raises, the future does.
    """
    future: Future[list[Measurement]] = Future()
    try:
        future.set_result(measure(workload_key, candidates, options))
    except Exception as error:  # noqa: BLE001  the thread that gathers the rows gets it
        future.set_exception(error)
    return future


class Runner(Protocol):
    """Measures candidates of workloads on a device, or on several of one kind. For any threads.

    Devices of this machine, simulated and recorded ones, several together, and boards elsewhere
    (`remote.runner`) are Runners. A batch is handed in by `submit` and its rows are gathered from
    the future: programs, options and arrays in, rows out, all of it plain data that can travel
    (`remote.batches`). Each row says which device took it, and what failed by the device or by the
    way to it is not a row: the runner tries it again, and raises DeviceError in the end.
    """

    @property
    def spec(self) -> DeviceSpec:
        """The device that is measured."""
        ...

    @property
    def capacity(self) -> int:
        """Batches that are measured at the same time: the number of devices, which may change."""
        ...

    @property
    def slots(self) -> int:
        """Batches that the devices take in at the same time: measured, or ready to be next."""
        ...

    def working(self) -> AbstractContextManager[None]:
        """A context for the caller's own work, which then disturbs no measurement.

        Where it could, it begins after the measurement in progress, and the next one waits for it.
        """
        ...

    def prepare(self, workload: Workload) -> None:
        """Makes the workload known; its candidates can be measured from then on."""
        ...

    def forget(self, workload_key: str) -> None:
        """Its arrays are not held any longer; it may be prepared again."""
        ...

    def submit(
        self,
        workload_key: str,
        candidates: Sequence[ProgramSource],
        options: MeasureOptions,
    ) -> Future[list[Measurement]]:
        """Hands a batch in. The future has one measurement for each candidate, in their order.

        A candidate's failure is a row, not an error. The call lasts until a device has taken the
        batch in: where the device is this machine's, until it is measured.
        """
        ...

    def close(self) -> None:
        """Releases the device; the runner is not used afterwards."""
        ...


class DirectRunner(ABC):
    """Base of Runners that measure in the thread of the caller.

    They are of one device of this machine, unless they say otherwise.
    """

    def __init__(self, spec: DeviceSpec | None = None) -> None:
        """`spec` is the device, where that is known beforehand."""
        self._spec = spec
        self._workloads: dict[str, Workload] = {}
        """Those that are prepared, by key."""

    @property
    def spec(self) -> DeviceSpec:
        """The device."""
        assert self._spec is not None, "a runner that opens its device later says what it is"
        return self._spec

    @property
    def capacity(self) -> int:
        """One device."""
        return 1

    @property
    def slots(self) -> int:
        """A batch, and another one that is built meanwhile where that disturbs nothing."""
        return 1 if self.spec.device_class == "cpu" else 2

    def working(self) -> AbstractContextManager[None]:
        """Nothing is measured on this machine's processor during the context."""
        return HOST.working()

    def prepare(self, workload: Workload) -> None:
        """Makes the workload known; an earlier one of the same key is replaced."""
        self._workloads[workload.key] = workload

    def forget(self, workload_key: str) -> None:
        """Its arrays are not held any longer; it may be prepared again."""
        self._workloads.pop(workload_key, None)

    def submit(
        self, workload_key: str, candidates: Sequence[ProgramSource], options: MeasureOptions
    ) -> Future[list[Measurement]]:
        """What `measure` returns or raises, taken in the caller's thread."""
        return handed_in(self.measure, workload_key, candidates, options)

    @abstractmethod
    def measure(
        self, workload_key: str, candidates: Sequence[ProgramSource], options: MeasureOptions
    ) -> list[Measurement]:
        """One measurement for each candidate, in their order."""
        ...

    def _workload(self, key: str) -> Workload:
        return prepared(self._workloads, key)


def prepared(workloads: Mapping[str, Workload], key: str) -> Workload:
    """The workload of that key. Raises: InputError naming those that were prepared."""
    if key not in workloads:
        known = ", ".join(sorted(workloads)) or "none"
        raise InputError(f"workload {key!r} was not prepared; prepared are: {known}")
    return workloads[key]


def check_fits(workload: Workload, source: ProgramSource) -> None:
    """Raises: InputError if the program does not fit the workload's arrays."""
    for buffer in source.buffers:
        given = workload.outputs if buffer.role == "output" else workload.inputs
        if buffer.role == "temp":
            continue
        packing = source.packing(buffer.name)
        for name in packing.sources:
            if name not in given:
                raise InputError(
                    f"workload {workload.key}: candidate reads or writes {buffer.role} {name!r}, "
                    f"the workload has {', '.join(sorted(given)) or 'none'}"
                )
        if (positions := workload.positions.get(buffer.name)) is not None:
            if positions.max(initial=0) >= buffer.elements:
                raise InputError(
                    f"buffer {buffer.name!r}: the candidate expects {buffer.elements} elements, "
                    f"and the workload has one at position {positions.max()}"
                )
        elif packing.pack is None:
            _check_size(buffer, given[buffer.name].size, "the workload has")


def packed_weights(workload: Workload, source: ProgramSource) -> dict[str, np.ndarray]:
    """The arrays of the weights that the program wants re-ordered, packed, by name.

    Each is flat: [elements of its buffer]. Raises: InputError if a pack makes another number.
    """
    packed: dict[str, np.ndarray] = {}
    for name, packing in source.packings.items():
        if packing.pack is not None:
            arrays = (workload.inputs[of] for of in packing.sources)
            array = np.ascontiguousarray(packing.pack.apply(*arrays))
            _check_size(source.buffer(name), array.size, "its packed array has")
            packed[name] = array
    return packed


def _check_size(buffer: ProgramBuffer, found: int, what: str) -> None:
    if found != buffer.elements:
        raise InputError(
            f"buffer {buffer.name!r}: the candidate expects {buffer.elements} elements, "
            f"{what} {found}"
        )

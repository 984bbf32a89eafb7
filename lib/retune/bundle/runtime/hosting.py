"""Host steps of a module, and the copies between host and device around them.

Read `HostCall`. Values that cross lie with the inputs and outputs, where the host reads and writes
in place if it can; what no launch reads stays on the host. A module runs its parts in turns: it
enqueues a part's launches and then calls its host steps, whose reads wait for the launches. Steps
may find sizes, on which the parts behind them depend.
"""

import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from retune.bundle.plan import (
    NetworkPlan,
    PlanHost,
    PlanPart,
    made_by_hosts,
)
from retune.bundle.runtime.allocations import Allocations
from retune.bundle.runtime.executor import Executor
from retune.bundle.sizes import PlanSize, PlanVariant
from retune.core.dims import SizeValues, at, counts_of, sizes_of
from retune.core.dtypes import TensorType
from retune.core.errors import InputError
from retune.device.opencl.runtime import Device, DeviceMemory, PreparedKernel
from retune.search.alternatives import looks_at_all

Values = MutableMapping[str, np.ndarray]
"""What the host has of a run, by storage root: inputs, sizes, and what host steps have made."""
Types = Mapping[str, TensorType]
"""Of the plan's buffers, for the sizes of a run."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostRun:
    """A host step that has run."""

    step: PlanHost
    inputs: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]
    """All of its model's, whether somebody reads them or not."""
    seconds: float
    """From when the device was done with what came before; the ways to and fro are part of it. Of
    an accelerator's step what it takes there."""
    counts: Mapping[str, int]
    """The sizes that it found, by name."""


class HostCall:
    """A host step, prepared for values of these types."""

    def __init__(
        self, step: PlanHost, plan: NetworkPlan, types: Types, held: Allocations, device: Device
    ) -> None:
        self.step = step
        self._device = device
        self._model = step.opened
        self._plan = plan
        self._counts = [
            (each, step.outputs.index(each.input))
            for each in plan.sizes
            if each.counted and each.input in step.outputs
        ]
        self._takes = [_taker(name, plan, types[name], held, device) for name in step.inputs]
        self._writers = [
            _writer(types.get(name), held.interface(name, device), device)
            if name in held.placement.memory
            else None
            for name in step.outputs
        ]

    def __call__(self, values: Values) -> HostRun:
        """`values` has what the step makes, and so has the device where it reads it.

        Raises: ModelError if the step cannot work with what it reads; InputError if it makes more
        than there may be.
        """
        self._device.finish()
        start = time.perf_counter()
        arrays = tuple(take(values) for take in self._takes)
        made = self._model.run(arrays)
        counts = {each.size.name: self._count(each, made[n]) for each, n in self._counts}
        for name, write, array in zip(self.step.outputs, self._writers, made, strict=True):
            if write is not None:
                write(array)
            if name:
                values[name] = array
        taken = time.perf_counter() - start
        seconds = taken if self.step.simulated_s is None else self.step.simulated_s
        return HostRun(step=self.step, inputs=arrays, outputs=made, seconds=seconds, counts=counts)

    def _count(self, each: PlanSize, made: np.ndarray) -> int:
        assert each.axis is not None, "counts are extents"
        found, size = made.shape[each.axis], each.size
        if size.least <= found <= size.most:
            return found
        raise InputError(
            f"bundle {self._plan.name}: host step {self.step.label}: expected {size.name} from "
            f"{size.least} to {size.most}; it found {found} for these inputs; give other inputs"
        )


def _writer(
    kind: TensorType | None, memory: DeviceMemory, device: Device
) -> Callable[[np.ndarray], None]:
    """What puts an array there; None: how large it is, is found with it."""
    if kind is not None:
        return device.writer(memory, kind)
    return lambda array: device.write(memory, array)


def _taker(
    name: str, plan: NetworkPlan, kind: TensorType, held: Allocations, device: Device
) -> Callable[[Values], np.ndarray]:
    """What gives the value, in an array of its own."""
    root = plan.roots[name]
    if root in plan.weights:
        stored = plan.weights[root].reshape(kind.shape)
        return lambda values: stored.copy()
    sizes = {each.buffer for each in plan.sizes}
    states = {state.input for state in plan.states}
    given = root in plan.inputs and root not in states
    if root in sizes or given or root in made_by_hosts(plan):
        return lambda values: values[root].reshape(kind.shape).copy()
    read = device.reader(held.interface(name, device), kind)
    return lambda values: read()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunPart:
    """A part of the plan, ready to run."""

    launches: tuple[PreparedKernel, ...]
    sizes: frozenset[str]
    """Those on which these launches depend; what their kernels read of sizes is not among them."""
    hosts: tuple[HostCall, ...]


def launches_at(
    launches: Sequence[PreparedKernel], values: SizeValues
) -> tuple[PreparedKernel, ...]:
    """The launches for these sizes, without those that have nothing to do."""
    if not values:
        return tuple(launches)
    made = (launch.at(values) for launch in launches)
    return tuple(launch for launch in made if all(launch.global_size))


def prepare_parts(
    plan: NetworkPlan,
    values: SizeValues,
    types: Types,
    executor: Executor,
    held: Allocations,
    device: Device,
    first: int = 0,
) -> tuple[RunPart, ...]:
    """The parts in order of the variant for these sizes, with launches of the executor's form.

    From that of number `first` on, up to the one that finds a size that is not among these: host
    steps behind it are a part of their own.
    """
    unknown = {each.input for each in plan.sizes if each.size.name not in values}
    found: list[RunPart] = []
    for part in _counting_apart(plan, plan.variant_at(values))[first:]:
        every = executor.segments(part.first, part.end, values)
        sizes = sizes_of(chain.from_iterable(launch.global_size for launch in every))
        hosts = tuple(HostCall(step, plan, types, held, device) for step in part.hosts)
        names = frozenset(size.name for size in sizes)
        found.append(RunPart(launches=launches_at(every, values), sizes=names, hosts=hosts))
        if any(name in unknown for step in part.hosts for name in step.outputs):
            break
    return tuple(found)


@dataclass(frozen=True, slots=True)
class CountedValue:
    """A value that some of several launches make, by counts."""

    label: str
    elements: int
    ranges: tuple[tuple[int, ...], ...]
    """Of the launches that make it, for all sizes."""

    def is_made(self, values: SizeValues) -> bool:
        """Whether one of them does for these sizes, or it has no elements, or not all are known."""
        if any(s.name not in values for s in sizes_of([self.elements, *chain(*self.ranges)])):
            return True
        busy = (all(at(extent, values) for extent in each) for each in self.ranges)
        return not at(self.elements, values) or any(busy)


def counted_values(plan: NetworkPlan) -> list[CountedValue]:
    """Values all of whose launches depend on counts, not each of which was looked at when they were
    made."""
    if not any(each.counted for each in plan.sizes):
        return []
    roots, made = plan.roots, dict[tuple[str, str], list[tuple[int, ...]]]()
    read = {roots[name] for step in plan.hosts for name in step.read}
    read |= {roots[name] for name in plan.outputs}
    own: dict[str, set[str]] = {}
    for launch in plan.launches:
        for name in launch.read:
            own.setdefault(roots[name], set()).add(launch.label)
        for name in launch.writes:
            made.setdefault((launch.label, roots[name]), []).append(launch.global_size)
    return [
        CountedValue(label, plan.buffer(root).elements, tuple(ranges))
        for (label, root), ranges in made.items()
        if (root in read or own.get(root, {label}) - {label})
        and all(counts_of(each) for each in ranges)
        and not looks_at_all(counts_of([*chain(*ranges)]))
    ]


def _counting_apart(plan: NetworkPlan, variant: PlanVariant) -> list[PlanPart]:
    """The parts of the variant, none of which has host steps behind one that finds a size."""
    counted = {each.input for each in plan.sizes if each.counted}
    found: list[PlanPart] = []
    for part in plan.parts_of(variant):
        ends = [n + 1 for n, step in enumerate(part.hosts) if counted & {*step.outputs}]
        ends = sorted({*ends, len(part.hosts)})
        for begin, end in zip([0, *ends], ends, strict=False):
            first = part.end if begin else part.first
            found.append(PlanPart(first=first, end=part.end, hosts=part.hosts[begin:end]))
    return found

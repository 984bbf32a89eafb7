"""Runs of a plan on some memory: what is prepared for them, and how one is done.

Read `Runs.run`. A module has runs on its own memory, and each of its sessions on memory in which
the states are the session's. All of them share kernels, weights, temporaries, and the buffers of
inputs, outputs and sizes: `Loaded` is what they share.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import numpy as np

from retune.bundle.plan import NetworkPlan, host_roots, made_by_hosts
from retune.bundle.runtime.allocations import Allocations
from retune.bundle.runtime.executor import Executor
from retune.bundle.runtime.hosting import (
    HostRun,
    RunPart,
    counted_values,
    launches_at,
    prepare_parts,
)
from retune.bundle.runtime.inputs import Key
from retune.bundle.runtime.lending import Lending
from retune.bundle.sizes import PlanVariant
from retune.bundle.states import outputs_of
from retune.core.dims import SizeValues, sizes_of
from retune.core.dtypes import INT32, DType, TensorType
from retune.core.errors import InputError
from retune.core.states import State
from retune.device.opencl.runtime import Device, PreparedKernel

_OWN = -1, TensorType(())
"""In the stead of number and type of what may lie elsewhere."""
_MOST_KEPT = 64
"""Sizes for which runs are prepared at once: some tens of kB each."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AtSizes:
    """What a run for some sizes needs."""

    values: SizeValues
    variant: PlanVariant
    first: int
    """Number of its first part."""
    decisive: frozenset[str]
    """The sizes on which all of it depends but `values` and `sizes`."""
    parts: tuple[RunPart, ...]
    """Up to the one that finds further sizes."""
    whole: tuple[PreparedKernel, ...]
    """The launches of all of them."""
    types: Mapping[str, TensorType]
    """Of inputs, outputs, and what host steps read and make."""
    writers: Sequence[Callable[[np.ndarray], None]]
    """Of each input that is given."""
    readers: Sequence[tuple[str, Callable[[], np.ndarray]]]
    """Of each output that is returned and on the device."""
    lent: Mapping[str, tuple[int, TensorType]]
    """Of those that may lie elsewhere, the number of their allocation, and their type."""
    made: Sequence[tuple[str, str]]
    """The others, and the buffers that are them."""
    sizes: Sequence[tuple[str, np.ndarray]]
    """What buffers of sizes hold."""


class Loaded:
    """A plan on a device, as all runs of it share it."""

    def __init__(self, plan: NetworkPlan, host: Device) -> None:
        crossing = host_roots(plan)
        kept = {name: np.array(a) for name, a in plan.weights.items() if name in crossing}
        self.host = host
        # The arrays are on the device: letting go of them frees the file or zip behind them.
        self.plan = replace(plan, weights={}, binaries={})
        self.source = replace(self.plan, weights=kept)
        """The plan with those weights that host steps read."""
        self.types = {
            entry.name: TensorType(entry.shape, DType(entry.dtype)) for entry in plan.buffers
        }
        self.roots, self.elsewhere = plan.roots, made_by_hosts(plan)
        outputs = [name for v in plan.alternatives for name in v.outputs or plan.outputs]
        read = [name for name in outputs if self.roots[name] not in self.elsewhere]
        sizes = [each.buffer for each in plan.sizes]
        self.names = tuple(dict.fromkeys([*plan.inputs, *read, *sizes]))
        """Inputs, sizes, and outputs on the device."""
        self.counted = counted_values(plan)
        grown = [state for state in plan.states if state.axis is not None]
        self.grown = {name: state for state in grown for name in (state.input, state.output)}
        """States that lie in another order than the model has them, by inputs and outputs."""
        self.sizes_there: SizeValues | None = None
        """What the buffers of sizes hold, but for those that a host step found."""

    def check_served(self, values: SizeValues) -> None:
        """Raises: InputError if no kernel of some group is for the counts."""
        for value in self.counted:
            if not value.is_made(values):
                given = ", ".join(f"{name}={count}" for name, count in values.items())
                raise InputError(
                    f"bundle {self.plan.name}: {value.label}: expected counts for which it has a "
                    f"kernel; got {given}; compile the model again, and report it"
                )


class Runs:
    """Runs on some memory. Not for two threads at once, nor are two of one module."""

    def __init__(
        self,
        loaded: Loaded,
        executor: Executor,
        held: Allocations,
        given: Sequence[str],
        taken: Sequence[str],
    ) -> None:
        """Of inputs those that are `given` are written, of outputs those `taken` are returned."""
        self._loaded, self._executor, self._held = loaded, executor, held
        self._given, self._taken = tuple(given), frozenset(taken)
        self._memory = {name: held.interface(name, loaded.host) for name in loaded.names}
        steps = [name for step in loaded.plan.hosts for name in (*step.read, *step.writes)]
        made = [own for n in taken for own in outputs_of(loaded.plan, n)]
        self._crossing = {name: loaded.types[name] for name in [*given, *made, *steps]}
        self._prepared: dict[Key, AtSizes] = {}
        self._last: AtSizes | None = None
        self._lending = Lending(held, loaded.roots, loaded.host) if held.placement.lent else None
        self._has_inputs = False
        one = TensorType((1,), INT32)
        self._size_writers = {
            each.buffer: loaded.host.writer(self._memory[each.buffer], one)
            for each in loaded.plan.sizes
        }

    def shared_array(self, name: str) -> np.ndarray | None:
        """The memory of an input or output of a fixed shape; None where the host has none."""
        loaded = self._loaded
        return loaded.host.shared_array(self._memory[name], loaded.types[name])

    def prepared(self, key: Key) -> AtSizes | None:
        """What was prepared and kept under that key."""
        return self._prepared.get(key)

    def keep(self, key: Key, values: SizeValues, first: int = 0) -> AtSizes:
        """What runs for these sizes need, kept under that key."""
        found = self.at(values, first)
        if len(self._prepared) == _MOST_KEPT:
            del self._prepared[next(iter(self._prepared))]
        self._prepared[key] = found
        return found

    def at(self, values: SizeValues, first: int = 0) -> AtSizes:
        """What a run for these sizes needs, from its part of that number on.

        A cache's length is another one in each call of a session: what does not depend on it is
        that of the last call.
        """
        variant, last = self._loaded.plan.variant_at(values), self._last
        alike = last is not None and last.variant is variant and last.first == first
        if last is None or not alike or not _same(last, values):
            self._last = self._prepare(variant, values, first)
            return self._last
        return replace(last, values=values, sizes=self._sizes(values))

    def _prepare(self, variant: PlanVariant, values: SizeValues, first: int) -> AtSizes:
        loaded, memory = self._loaded, self._memory
        plan, host = loaded.plan, loaded.host
        types = {
            name: kind.at(values)
            for name, kind in self._crossing.items()
            if all(size.name in values for size in sizes_of(kind.shape))
        }
        parts = prepare_parts(loaded.source, values, types, self._executor, self._held, host, first)
        outputs = variant.outputs or plan.outputs
        pairs = [p for p in zip(plan.outputs, outputs, strict=True) if p[0] in self._taken]
        extents = chain.from_iterable(kind.shape for kind in self._crossing.values())
        named = frozenset(size.name for size in sizes_of(extents))
        return AtSizes(
            values=values,
            variant=variant,
            first=first,
            decisive=named.union(*(part.sizes for part in parts)),
            parts=parts,
            whole=tuple(launch for part in parts for launch in part.launches),
            types=types,
            writers=[
                _writer(loaded.grown.get(name), host.writer(memory[name], types[name]))
                for name in self._given
            ],
            readers=[
                (name, _reader(loaded.grown.get(name), host.reader(memory[own], types[own])))
                for name, own in pairs
                if own in memory and own in types
            ],
            lent={
                name: (self._lending.bases[own], types[own])
                for name, own in pairs
                if self._lending and own in self._lending.bases
            },
            made=[(name, own) for name, own in pairs if own not in memory],
            sizes=self._sizes(values),
        )

    def _sizes(self, values: SizeValues) -> Sequence[tuple[str, np.ndarray]]:
        """What the buffers of these sizes hold."""
        return [
            (each.buffer, np.array([values[each.size.name]], np.int32))
            for each in self._loaded.plan.sizes
            if each.size.name in values
        ]

    def set_sizes(self, wanted: AtSizes) -> None:
        """The sizes of a run are on the device."""
        loaded = self._loaded
        if wanted.values != loaded.sizes_there:
            for name, array in wanted.sizes:
                self._size_writers[name](array)
            loaded.sizes_there = wanted.values

    def _start(self, wanted: AtSizes, arrays: Sequence[np.ndarray]) -> None:
        """The inputs that are given, in order, and the sizes are on the device."""
        self.set_sizes(wanted)
        for write, array in zip(wanted.writers, arrays, strict=True):
            write(array)

    def run(self, wanted: AtSizes, arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs that are taken, by name, of a plan without host steps."""
        if self._lending and self._has_inputs:
            return self._run_lent(self._lending, wanted, arrays)
        self._start(wanted, arrays)
        self._has_inputs = True
        self._loaded.host.enqueue(wanted.whole)
        return {name: read() for name, read in wanted.readers}

    def _run_lent(
        self, lending: Lending, wanted: AtSizes, arrays: Sequence[np.ndarray]
    ) -> dict[str, np.ndarray]:
        """The same, with inputs and outputs where the caller has them."""
        self.set_sizes(wanted)
        host, inputs = self._loaded.host, dict(zip(self._given, arrays, strict=True))
        memories = lending.memories(inputs, {number for number, _ in wanted.lent.values()})
        for (name, array), write in zip(inputs.items(), wanted.writers, strict=True):
            if lending.bases.get(name) not in memories:
                write(array)
        with host.bound(wanted.whole, memories):
            host.enqueue(wanted.whole)
        outputs, given = dict[str, np.ndarray](), set[int]()
        for name, read in wanted.readers:
            number, kind = wanted.lent.get(name, _OWN)
            if (memory := memories.get(number)) is None:
                outputs[name] = read()
                continue
            array = host.shared_array(memory, kind)
            assert array is not None, "host and device share memory"
            outputs[name] = array.copy() if number in given else array
            given.add(number)
        return outputs

    def watch(
        self, wanted: AtSizes, arrays: Sequence[np.ndarray], read: Mapping[int, Sequence[str]]
    ) -> tuple[dict[str, np.ndarray], dict[int, list[np.ndarray]]]:
        """The outputs that are taken, of a plan without host steps; and what launches `read`: of
        each number the buffers of those names, as they are before the launch runs."""
        self._start(wanted, arrays)
        loaded, host = self._loaded, self._loaded.host
        variant = loaded.plan.variant_at(wanted.values)
        ends = [number for number in sorted(read) if variant.first <= number < variant.end]
        found: dict[int, list[np.ndarray]] = {}
        for first, end in pairwise([variant.first, *ends, variant.end]):
            if first in read:
                found[first] = [
                    host.read(
                        self._held.interface(name, host), loaded.types[name].at(wanted.values)
                    )
                    for name in read[first]
                ]
            launches = self._executor.segments(first, end, wanted.values)
            host.enqueue(launches_at(launches, wanted.values))
        return {name: take() for name, take in wanted.readers}, found

    def observe(
        self, wanted: AtSizes, arrays: Sequence[np.ndarray]
    ) -> tuple[dict[str, np.ndarray], tuple[HostRun, ...], SizeValues]:
        """The outputs that are taken, what each host step read and made, and all sizes."""
        self._start(wanted, arrays)
        loaded, now, runs, done = self._loaded, wanted, list[HostRun](), 0
        values = dict(zip(self._given, arrays, strict=True))
        while True:
            values.update(now.sizes)
            for part in now.parts:
                loaded.host.enqueue(part.launches)
                runs += [call(values) for call in part.hosts]
            if len(now.values) == len(loaded.plan.sizes):
                break
            now, done = self._behind(now, runs[done:]), len(runs)
        outputs = {name: read() for name, read in now.readers}
        for name, own in now.made:
            root = loaded.roots[own]
            array, shape = values[root], now.types[own].shape
            outputs[name] = array if own == root else array.reshape(shape).copy()
        ordered = {name: outputs[name] for name in loaded.plan.outputs if name in self._taken}
        return ordered, tuple(runs), now.values

    def _behind(self, now: AtSizes, runs: Sequence[HostRun]) -> AtSizes:
        """What runs behind these steps; the sizes that they found are on the device."""
        counts = {name: count for run in runs for name, count in run.counts.items()}
        values = {**now.values, **counts}
        key: Key = ("behind", *now.values.items(), *counts.items())
        found = self._prepared.get(key)
        if found is None:
            self._loaded.check_served(values)
            found = self.keep(key, values, now.first + len(now.parts))
        for name, array in found.sizes[len(now.sizes) :]:
            self._size_writers[name](array)
        return found


def _same(last: AtSizes, values: SizeValues) -> bool:
    """Whether the same sizes are known, and those that decide are the same."""
    known = last.values.keys() == values.keys()
    return known and all(last.values[n] == values[n] for n in last.decisive if n in values)


def stored(state: State, array: np.ndarray) -> np.ndarray:
    """The values of a state in the order in which they lie: what grows does so at the end."""
    return array if state.axis is None else np.moveaxis(array, state.axis, 0)


def shown(state: State, array: np.ndarray) -> np.ndarray:
    """The values of a state in the model's order of axes, from that in which they lie."""
    if state.axis is None:
        return array
    return np.ascontiguousarray(np.moveaxis(array, 0, state.axis))


def _writer(
    state: State | None, write: Callable[[np.ndarray], None]
) -> Callable[[np.ndarray], None]:
    """What writes an input as the model has it."""
    return write if state is None else lambda array: write(stored(state, array))


def _reader(state: State | None, read: Callable[[], np.ndarray]) -> Callable[[], np.ndarray]:
    """What returns an output as the model has it."""
    return read if state is None else lambda: shown(state, read())

"""NetworkPlan: everything that a bundle holds, as plain data, and the invariants it keeps.

Read NetworkPlan first, then `verify_plan`. Every value of the network is one ProgramBuffer; an
Alias says that a value lies in the memory of another one. What runs is launches of kernels and,
between them, host steps in numpy. This file knows no device and no file.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from retune.bundle.sizes import PlanSize, PlanVariant, choose, corners
from retune.codegen.source import (
    GIVEN,
    MOST_LINKS,
    KernelLaunch,
    KernelText,
    Launched,
    ProgramBuffer,
    Role,
)
from retune.core.dims import SizeValues, at, is_fixed, least, values_text
from retune.core.dtypes import DType, TensorType
from retune.core.errors import InputError, VerifyError
from retune.core.states import State, shape_in_model
from retune.core.target import DeviceSpec
from retune.ir.storage import Storage

if TYPE_CHECKING:
    from retune.frontend.host.step import HostModel
    from retune.targets.vta.step import OffloadedStep

MAX_ERROR_NOTE = "max_error"
"""The note that says what error of a layer the user allowed, as a part of its output's range."""
PRECISION_NOTE = "precision"
"""Note on what the float32 of the network is stored as; bundles in float32 have none."""
RECIPE_NOTE = "recipe"
"""What made integers of the network, see `graph.quantize.recipe`; not there for floats."""
LABELS_NOTE = "labels"
"""JSON: output -> the strings that its numbers are, or that its columns are for; there where the
model returns strings or maps (`proto.labels`)."""
INTEGERS_NOTE = "integers"
"""There where parts of the network compute with quantized values, by a recipe or as its file has
them: numpy's integers are then the same, and other runtimes round elsewhere."""
ROWS_NOTE = "rows"
"""There where products round rows to int8 while the network runs, and onnxruntime does not."""
LARGEST_ERROR_NOTE = "largest_error"
"""The note that says the largest error of the strategies that the plan uses; 0: all are direct."""

_LONE_BYTES, _LONE_FLOPS = 1 << 18, 1 << 18
"""Of the launches of a loop, at most, for one worker to run it: two steps of an LSTM of 64 units,
which take two workers longer (0.32 ms for 512 steps, and not 0.28), of 96 units not so."""
REFUSED_NOTE = "refused"
"""How many tasks have a tuned schedule that is not one for all sizes, and so use another one."""

Engine = Literal["onnx", "vta"]
"""What runs a step aside from the kernels."""

Form = Literal["persistent", "inline", "queued"]
"""How the launches get onto the device: as one launch of a persistent kernel, in a row in the
thread that calls, or one by one through a queue. Where host steps stand between the launches, each
part of them gets onto it in that way: one persistent kernel for each part, in turns with the
host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanHost:
    """One step aside from the device's kernels, on some buffers: an ONNX model in numpy, on the
    host (`frontend.host.step`), or a module of an accelerator (`targets.vta.step`)."""

    label: str
    """Name of the group that the step is."""
    model: bytes
    """Serialised; its inputs and outputs are those of the step, in order."""
    inputs: tuple[str, ...]
    """Buffer names."""
    outputs: tuple[str, ...]
    """Buffer names; '' for what nobody reads."""
    after: int
    """Launches that run before it."""
    engine: Engine = "onnx"
    """What runs it."""

    @property
    def read(self) -> tuple[str, ...]:
        """Its inputs."""
        return self.inputs

    @property
    def writes(self) -> tuple[str, ...]:
        """Its outputs that somebody reads."""
        return tuple(name for name in self.outputs if name)

    @property
    def opened(self) -> "HostModel | OffloadedStep":
        """The step, ready to run. Raises: ModelError if it is not a host step."""
        # Most bundles have no such steps: what runs them is loaded for those that have.
        if self.engine == "onnx":
            from retune.frontend.host.step import open_host

            return open_host(self.model)
        from retune.targets.vta.step import open_offloaded

        return open_offloaded(self.model)

    @property
    def simulated_s(self) -> float | None:
        """Seconds of a run on the accelerator; None for a step that the host takes time for."""
        if self.engine == "onnx":
            return None
        from retune.targets.vta.step import open_offloaded

        return open_offloaded(self.model).seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPart:
    """Launches, and the host steps that run when they are done; there may be none of either."""

    first: int
    """Number of the first launch."""
    end: int
    """Of the launch after the last one."""
    hosts: tuple[PlanHost, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLoop:
    """Launches that run several times over, without host steps among them.

    Loops lie in each other or apart. What a launch reads that a later one of the loop writes has a
    value from before the loop, and then that of the time before.
    """

    first: int
    """Number of the first launch."""
    end: int
    """Of the launch after the last one."""
    times: int
    """May depend on sizes, and be 0 for some of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Launches that run so many times over, one after the other."""

    first: int
    end: int
    times: int = 1

    def at(self, values: SizeValues) -> "Segment":
        """The same for these sizes."""
        return self if is_fixed(self.times) else replace(self, times=at(self.times, values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """`value` is the memory of `of` under another shape; both are buffers of the plan."""

    value: str
    of: str
    storage: Storage | None = None
    """How it lies in the memory of `of`, such as columns of its rows; None: all of it, in order."""


@dataclass(frozen=True, kw_only=True)
class NetworkPlan(Launched):
    """A compiled network: kernels, buffers, launches in order, and packed weights."""

    name: str
    model_key: str
    """Content key of the model that it was compiled from."""
    kernels: tuple[KernelText, ...]
    """Those that are launched, each once; some may share a text."""
    options: tuple[str, ...]
    """Build options of every kernel."""
    buffers: tuple[ProgramBuffer, ...]
    launches: tuple[KernelLaunch, ...]
    inputs: tuple[str, ...]
    """Buffers of role `input`, in the model's order."""
    outputs: tuple[str, ...]
    """Buffers of role `output`, in the model's order."""
    weights: Mapping[str, np.ndarray]
    """Arrays of the buffers of role `weight`, already packed."""
    device: DeviceSpec
    """The device that the kernels were tuned for."""
    notes: Mapping[str, str]
    """Free text for people and reports, such as where the records came from."""
    aliases: tuple[Alias, ...] = ()
    form: Form = "persistent"
    """The form to run it in; a device that lacks it takes another, and the results are the same."""
    hosts: tuple[PlanHost, ...] = ()
    """Host steps in the order in which they run."""
    loops: tuple[PlanLoop, ...] = ()
    """In the order of their first launches, outer ones before those in them."""
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    """Input -> how many values it may have, from 0 on: it holds indices. Of random data, that is
    valid; a run looks at `indices` alone."""
    indices: Mapping[str, int] = field(default_factory=dict[str, int])
    """Input -> the extent of an axis that all of its elements index, from its negative to before
    it; a run refuses others."""
    least: Mapping[str, int] = field(default_factory=dict[str, int])
    """Input of integers -> the least value that it may have, where that is not 0."""
    samples: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    """Input -> the samples that the user gave, along a first axis; without any, they are random."""
    binaries: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """Compiled programs that a packed bundle brings along, by key, see `device.opencl.binaries`."""
    sizes: tuple[PlanSize, ...] = ()
    """What extents and counts of work depend on; without any, the plan is for fixed shapes."""
    values: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    """Input of integers -> what its elements are, in terms of sizes."""
    states: tuple[State, ...] = ()
    """Inputs that are outputs in the next call of a session. What grows along an axis does so along
    its first one here."""
    variants: tuple[PlanVariant, ...] = ()
    """A decision list: the first one whose conditions hold runs. Their launches and host steps are
    those of the plan, in order. Without any, all of the plan runs."""

    @cached_property
    def alternatives(self) -> tuple[PlanVariant, ...]:
        """The variants, or the one that is all of the plan."""
        whole = PlanVariant(first=0, end=len(self.launches), end_host=len(self.hosts))
        return self.variants or (whole,)

    def variant_at(self, values: SizeValues) -> PlanVariant:
        """The variant that runs for these sizes. Raises: InputError if there is none."""
        number = choose(self.alternatives, values)
        if number is None:
            given = values_text(values)
            raise InputError(
                f"bundle {self.name}: expected sizes for which it was compiled: "
                f"{'; or '.join(map(str, self.alternatives))}; got {given}; compile the model for "
                "these sizes, too"
            )
        return self.alternatives[number]

    @property
    def corners(self) -> tuple[dict[str, int], ...]:
        """About the least and the largest sizes of each variant; one of none if it has no sizes.

        The last ones are the largest ones of all. Raises: VerifyError if a variant is for none.
        """
        if not self.sizes:
            return ({},)
        least, largest = (self._corners(largest=largest) for largest in (False, True))
        first, last = next(iter(least.values())), next(iter(largest.values()))
        found = [own[n] for n in range(len(self.alternatives)) for own in (least, largest)]
        unique = {tuple(values.values()): values for values in reversed([*found, first, last])}
        return tuple(reversed(unique.values()))

    def _corners(self, *, largest: bool) -> dict[int, dict[str, int]]:
        """About the largest or the least sizes of each variant, by its number; those of all first.

        Raises: VerifyError if a variant is for none.
        """
        sizes = [each.size for each in self.sizes]
        found = dict(corners(sizes, self.alternatives, largest=largest))
        for number, variant in enumerate(self.alternatives):
            if number not in found:
                raise self._without_sizes(f"variant {variant}")
        return found

    @property
    def largest(self) -> dict[str, int]:
        """About the largest sizes. Raises: VerifyError if no variant is for any sizes."""
        sizes = [each.size for each in self.sizes]
        if not sizes:
            return {}
        for _, values in corners(sizes, self.alternatives, largest=True):
            return values
        raise self._without_sizes("variants")

    def _without_sizes(self, where: str) -> VerifyError:
        ranges = ", ".join(str(each.size) for each in self.sizes)
        return broken_plan(self, where, f"some of {ranges}", "none for which it runs")

    def at(self, values: SizeValues) -> "NetworkPlan":
        """The plan for these sizes alone: the steps of one variant, with fixed extents.

        Counts without a value are the largest ones. Raises: InputError if no variant is for them.
        """
        if not self.sizes:
            return self
        counts = {each.size.name: each.size.most for each in self.sizes if each.counted}
        return _plan_at(self, {**counts, **values})

    @property
    def parts(self) -> tuple[PlanPart, ...]:
        """The parts of all variants, on the device or the host, in order."""
        return tuple(part for variant in self.alternatives for part in self.parts_of(variant))

    def parts_of(self, variant: PlanVariant) -> tuple[PlanPart, ...]:
        """The parts that run on the device or the host, in order."""
        hosts = self.hosts[variant.first_host : variant.end_host]
        ends = sorted({*(host.after for host in hosts), variant.end})
        return tuple(
            PlanPart(first=first, end=end, hosts=tuple(h for h in hosts if h.after == end))
            for first, end in zip([variant.first, *ends], ends, strict=False)
        )

    def segments(self, first: int, end: int) -> tuple[Segment, ...]:
        """The launches from `first` to before `end`, each as often as loops say.

        No loop is cut by these ends.
        """
        inside = [loop for loop in self.loops if first <= loop.first and loop.end <= end]
        return tuple(_segments(first, end, inside))

    @property
    def innermost(self) -> tuple[PlanLoop, ...]:
        """The loops that no other one lies in."""
        after = [*(loop.first for loop in self.loops[1:]), len(self.launches)]
        pairs = zip(self.loops, after, strict=False)
        return tuple(loop for loop, following in pairs if following >= loop.end)

    @property
    def lone_loops(self) -> tuple[PlanLoop, ...]:
        """The loops of a few launches with little work, apart from others: one worker runs all of
        such a loop sooner than several do that wait for each other in every step."""
        inner = self.innermost
        around = [loop for loop in self.loops if loop not in inner]
        return tuple(
            loop
            for loop in inner
            if is_fixed(loop.times)
            and loop.end - loop.first <= MOST_LINKS
            and sum(n.bytes for n in self.launches[loop.first : loop.end]) <= _LONE_BYTES
            and sum(n.flops for n in self.launches[loop.first : loop.end]) <= _LONE_FLOPS
            and not any(o.first <= loop.first and loop.end <= o.end for o in around)
        )

    @property
    def repeats(self) -> tuple[int, ...]:
        """The number of runs of each launch."""
        found = [1] * len(self.launches)
        for loop in self.loops:
            for number in range(loop.first, loop.end):
                found[number] *= loop.times
        return tuple(found)

    @property
    def steps(self) -> tuple["KernelLaunch | PlanHost", ...]:
        """The launches and the host steps in the order in which they run."""
        return tuple(
            step
            for part in self.parts
            for step in (*self.launches[part.first : part.end], *part.hosts)
        )

    @property
    def simulated_s(self) -> float:
        """Seconds of a run that are counted on an accelerator, and not measured."""
        return sum(host.simulated_s or 0.0 for host in self.hosts)

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each input, in the model's order."""
        return {name: self.type_of(name).shape for name in self.inputs}

    @property
    def has_sessions(self) -> bool:
        """Whether calls may follow each other: there are states, and those that grow may be
        empty."""
        growing = [self.buffer(s.input).shape[0] for s in self.states if s.axis is not None]
        return bool(self.states) and all(not is_fixed(n) and not least(n) for n in growing)

    def type_of(self, name: str) -> TensorType:
        """The type of an input or output as the model has it: states that grow lie in another
        order of axes."""
        entry = self.buffer(name)
        return TensorType(shape_in_model(self.states, name, entry.shape), DType(entry.dtype))

    @cached_property
    def roots(self) -> Mapping[str, str]:
        """Every buffer -> the buffer at the end of its alias chain, whose memory it shares.

        Raises: VerifyError if the aliases form a cycle.
        """
        parents = {alias.value: alias.of for alias in self.aliases}
        ends: dict[str, str] = {}
        """Of every name that some chain led through."""
        for entry in self.buffers:
            chain, last = {entry.name: None}, entry.name
            while last not in ends and (parent := parents.get(last)) is not None:
                if parent in chain:
                    path = " -> ".join([*chain, parent])
                    raise broken_plan(self, "aliases", "chains that end", f"a cycle: {path}")
                chain[parent] = None
                last = parent
            ends.update(dict.fromkeys(chain, ends.get(last, last)))
        return {entry.name: ends[entry.name] for entry in self.buffers}

    @cached_property
    def roles(self) -> Mapping[str, Role]:
        """Every storage root -> what its memory is for.

        An input, weight or size keeps its role. Memory of which any alias is an output is an
        output.
        """
        roles: dict[str, Role] = {}
        for entry in self.buffers:
            root = self.roots[entry.name]
            if root == entry.name and entry.role in GIVEN:
                roles[root] = entry.role
            elif entry.role == "output":
                roles.setdefault(root, "output")
        return {root: roles.get(root, "temp") for root in dict.fromkeys(self.roots.values())}

    @property
    def text(self) -> str:
        """The kernels as one text."""
        return "\n".join(dict.fromkeys(kernel.text for kernel in self.kernels))

    @property
    def intrinsics(self) -> frozenset[str]:
        """Full names of the implementations of intrinsics that a device must offer."""
        return frozenset(way for kernel in self.kernels for way in kernel.intrinsics)


def _segments(first: int, end: int, loops: Sequence[PlanLoop]) -> Iterator[Segment]:
    while loops:
        loop = loops[0]
        inner = [other for other in loops[1:] if other.end <= loop.end]
        loops = loops[1 + len(inner) :]
        if first < loop.first:
            yield Segment(first=first, end=loop.first)
        if inner:
            for _ in range(loop.times):
                yield from _segments(loop.first, loop.end, inner)
        else:
            yield Segment(first=loop.first, end=loop.end, times=loop.times)
        first = loop.end
    if first < end:
        yield Segment(first=first, end=end)


def _plan_at(plan: NetworkPlan, values: SizeValues) -> NetworkPlan:
    variant = plan.variant_at(values)
    first, end = variant.first, variant.end
    launches = tuple(launch.at(values) for launch in plan.launches[first:end])
    hosts = plan.hosts[variant.first_host : variant.end_host]
    used = used_by(plan, variant)
    called = {launch.kernel for launch in launches}
    made = replace(
        plan,
        kernels=tuple(kernel for kernel in plan.kernels if kernel.name in called),
        buffers=tuple(b.at(values) for b in plan.buffers if b.name in used),
        launches=launches,
        weights={name: array for name, array in plan.weights.items() if name in used},
        aliases=tuple(_alias_at(a, values) for a in plan.aliases if a.value in used),
        hosts=tuple(replace(host, after=host.after - first) for host in hosts),
        loops=tuple(
            replace(
                loop,
                first=loop.first - first,
                end=loop.end - first,
                times=at(loop.times, values),
            )
            for loop in plan.loops
            if first <= loop.first and loop.end <= end
        ),
        samples=_samples_at(plan, values),
        values={n: tuple(at(e, values) for e in row) for n, row in plan.values.items()},
        indices={n: at(extent, values) for n, extent in plan.indices.items()},
        sizes=tuple(each.at(values) for each in plan.sizes),
        variants=(),
    )
    own = dict(zip(variant.outputs, plan.outputs, strict=False))
    return renamed(made, own, {}) if own else made


def used_by(plan: NetworkPlan, variant: PlanVariant) -> set[str]:
    """The buffers that the variant is in need of."""
    used = {*plan.inputs, *(variant.outputs or plan.outputs), *(s.buffer for s in plan.sizes)}
    launches = plan.launches[variant.first : variant.end]
    hosts = plan.hosts[variant.first_host : variant.end_host]
    used |= {name for step in (*launches, *hosts) for name in (*step.read, *step.writes)}
    parents = {alias.value: alias.of for alias in plan.aliases}
    for name in [*used]:
        while (name := parents.get(name, "")) and name not in used:
            used.add(name)
    return used


def renamed(plan: NetworkPlan, names: Mapping[str, str], kernels: Mapping[str, str]) -> NetworkPlan:
    """The plan with other names for buffers and kernels; inputs and outputs keep theirs."""

    def of(values: Sequence[str]) -> tuple[str, ...]:
        return tuple(names.get(value, value) for value in values)

    return replace(
        plan,
        kernels=tuple(kernel.renamed(kernels.get(kernel.name, "")) for kernel in plan.kernels),
        buffers=tuple({n: replace(b, name=n) for b in plan.buffers for n in of([b.name])}.values()),
        launches=tuple(
            replace(
                launch,
                kernel=kernels.get(launch.kernel, launch.kernel),
                args=of(launch.args),
                writes=of(launch.writes),
            )
            for launch in plan.launches
        ),
        weights={names.get(name, name): array for name, array in plan.weights.items()},
        aliases=tuple(
            replace(alias, value=value, of=base)
            for alias in plan.aliases
            for value, base in [of((alias.value, alias.of))]
        ),
        hosts=tuple(
            replace(host, inputs=of(host.inputs), outputs=of(host.outputs)) for host in plan.hosts
        ),
    )


def _samples_at(plan: NetworkPlan, values: SizeValues) -> dict[str, np.ndarray]:
    """The samples, if they are for these sizes."""
    for name, array in plan.samples.items():
        if array.shape[1:] != tuple(at(extent, values) for extent in plan.type_of(name).shape):
            return {}
        elements = [at(element, values) for element in plan.values.get(name, ())]
        if elements and any(row.reshape(-1).tolist() != elements for row in array):
            return {}
    return dict(plan.samples)


def _alias_at(alias: Alias, values: SizeValues) -> Alias:
    return replace(alias, storage=alias.storage and alias.storage.at(values))


def host_roots(plan: NetworkPlan) -> frozenset[str]:
    """Storage roots that host steps read or write."""
    roots = plan.roots
    return frozenset(roots[v] for host in plan.hosts for v in (*host.read, *host.writes))


def made_by_hosts(plan: NetworkPlan) -> frozenset[str]:
    """Storage roots that host steps write."""
    return frozenset(value for host in plan.hosts for value in host.writes)


def roots_off_device(plan: NetworkPlan) -> frozenset[str]:
    """Storage roots that exist on the host only: what host steps make and no launch reads."""
    roots = plan.roots
    read = {roots[value] for launch in plan.launches for value in launch.args}
    return made_by_hosts(plan) - read


def broken_plan(plan: NetworkPlan, where: str, expected: str, got: str) -> VerifyError:
    """The error for a plan that breaks an invariant."""
    return VerifyError(f"plan {plan.name}: {where}: expected {expected}; got {got}")

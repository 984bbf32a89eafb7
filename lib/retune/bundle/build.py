"""Building a NetworkPlan from a partitioned network and the chosen candidates.

Each group becomes the launches of its task's program, with the program's buffers bound to the
network's values; constants are packed here, once for each way in which they are read. A host step
stays the model that it is.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import prod
from typing import TypeAlias, cast

import numpy as np

from retune.bundle.plan import (
    INTEGERS_NOTE,
    LARGEST_ERROR_NOTE,
    REFUSED_NOTE,
    ROWS_NOTE,
    Alias,
    NetworkPlan,
    PlanHost,
    PlanLoop,
)
from retune.bundle.sizes import PlanSize
from retune.bundle.weights import forget_pages
from retune.codegen.lower import lower
from retune.codegen.source import (
    KernelLaunch,
    KernelText,
    Packing,
    ProgramBuffer,
    ProgramSource,
    Run,
)
from retune.core.dims import SizeValues, always_empty, dim_of, example, sizes_of
from retune.core.dtypes import INT8, INT32, DType
from retune.core.errors import InputError, ScheduleError, VerifyError
from retune.core.keys import content_key
from retune.core.target import DeviceSpec
from retune.device.opencl.resident import way_of
from retune.graph.batch_loop import BATCH_LOOP
from retune.graph.fuse import APPEND, Group
from retune.graph.graph import Graph, Node
from retune.graph.passes.indices import index_counts, index_extents, least_values
from retune.graph.passes.joins import inclusions_of
from retune.graph.scan import SCAN, Scan, StepGraph, StoredRow
from retune.ir.stmt import Program
from retune.ir.storage import Storage, row_major
from retune.ir.views import stacked, view
from retune.ops.quantized import RESCALING
from retune.ops.registry import HOST
from retune.schedule.space import Candidate, Space
from retune.search.alternatives import Alternative, covering_counts
from retune.search.extract import LoopPart, Network, PlacedGroup
from retune.search.layout.layouts import bound_values, task_storages
from retune.search.layout.views import View, find_views, is_in_place, own_name
from retune.search.task import Task
from retune.targets.cost.estimate import default_candidate
from retune.targets.devices import target_of
from retune.targets.vta.lower import lower as lower_packed
from retune.targets.vta.packed import work_of

ROW_NUMBER = "row_number"
"""Input of kernels that write one of several rows: which one."""


Finalists: TypeAlias = "list[tuple[Alternative[ProgramSource], ...]]"
"""The programs of each finalist of a task: one, or several where extents are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A group of the network with those that may serve it."""

    task_key: str
    label: str
    """Name of the group."""
    finalists: tuple[range, ...]
    """The plan's launches of each finalist of the task, in their order; none is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalistsPlan:
    """A plan whose launches are those of all finalists: one of each slot runs in an iteration.

    Host steps have no finalists, and no part in an iteration: what they make stays as it is.
    """

    plan: NetworkPlan
    slots: tuple[Slot, ...]
    """In the network's order. Groups without launches are left out."""

    def at(self, values: SizeValues) -> "FinalistsPlan":
        """The same for these sizes alone."""
        return replace(self, plan=self.plan.at(values))


def build_plan(
    network: Network,
    chosen: Mapping[str, Candidate],
    spec: DeviceSpec,
    *,
    model_key: str,
    notes: Mapping[str, str],
    ranges: Mapping[str, tuple[int, int]] | None = None,
    shared: bool = False,
) -> NetworkPlan:
    """The plan of a network; tasks without a chosen candidate get the default schedule.

    `ranges` are the least and the greatest values of inputs whose values the graph does not limit.
    Weights that are `shared` with plans of other schedules are stored in one order for all.

    Raises: InputError if the device has no arithmetic for an element type of the network.
    """
    alone = {key: (candidate,) for key, candidate in chosen.items()}
    plan = build_finalists(
        network, alone, spec, model_key=model_key, notes=notes, shared=shared
    ).plan
    counts = {name: high + 1 for name, (_, high) in (ranges or {}).items()}
    least = {name: low for name, (low, _) in (ranges or {}).items() if low}
    return replace(plan, counts={**plan.counts, **counts}, least={**plan.least, **least})


def build_finalists(
    network: Network,
    finalists: Mapping[str, Sequence[Candidate]],
    spec: DeviceSpec,
    *,
    model_key: str,
    notes: Mapping[str, str],
    shared: bool = False,
) -> FinalistsPlan:
    """The plan of a network with some finalists for each task; without any, the default schedule.

    `shared` as in `build_plan`.
    Raises: InputError if the device has no arithmetic for an element type of the network.
    """
    graph = network.graph
    check_types(graph, spec)
    sources = _Sources(finalists, spec, _sizes_at_hand(graph), shared=shared)
    parts = _PlanBuilder(
        network=network, tasks=network.tasks, sources=sources, views=find_views(network, spec)
    )
    parts.groups()
    parts.interface()
    sizes = tuple(parts.sizes())
    plan = NetworkPlan(
        name=graph.name,
        model_key=model_key,
        kernels=tuple(parts.kernels.values()),
        options=target_of(spec).options,
        buffers=tuple(parts.buffers.values()),
        launches=tuple(parts.launches),
        loops=tuple(sorted(parts.loops, key=lambda loop: (loop.first, -loop.end))),
        inputs=graph.inputs,
        outputs=graph.outputs,
        weights=parts.weights,
        device=spec,
        notes={**notes, **sources.notes(), **_integers(graph)},
        aliases=tuple(parts.aliases.values()),
        form="queued" if way_of(spec) else "persistent",
        hosts=tuple(parts.hosts),
        counts=index_counts(graph),
        indices=index_extents(graph),
        least=least_values(graph),
        sizes=sizes,
        values=dict(graph.values),
        states=graph.states,
    )
    return FinalistsPlan(plan=plan, slots=tuple(parts.slots))


def _sizes_at_hand(graph: Graph) -> dict[str, int]:
    elements = [element for row in graph.values.values() for element in row]
    return {size.name: example(dim_of(size)) for size in {*graph.sizes, *sizes_of(elements)}}


def check_types(graph: Graph, spec: DeviceSpec) -> None:
    """Raises: InputError if the device cannot compute with an element type of the graph.

    What only host steps read and make is of any type.
    """
    for node in graph.nodes:
        if node.op == HOST:
            continue
        if node.op == SCAN:
            check_types(Scan.of(node.attrs).body, spec)
        for value in filter(None, (*node.inputs, *node.outputs)):
            kind = graph.types[value]
            extension = spec.lacking(kind.dtype)
            if extension and not always_empty(kind.shape):
                raise InputError(
                    f"{graph.name}: value '{value}' is {kind}; expected types that {spec.name} "
                    f"computes with, and it has no {extension}; convert the model to float32, or "
                    "choose another device"
                )


class _Sources:
    """OpenCL programs of tasks' finalists, made once for all groups with the same layouts."""

    def __init__(
        self,
        finalists: Mapping[str, Sequence[Candidate]],
        spec: DeviceSpec,
        values: SizeValues,
        *,
        shared: bool,
    ) -> None:
        """Tasks whose extents depend on sizes have the finalists for these."""
        self._shared = shared
        self._finalists = finalists
        self._values = values
        self.spec = spec
        self._target = target_of(spec)
        self._programs: dict[str, list[Program]] = {}
        self._errors: dict[str, float] = {}
        self._refused: dict[str, Candidate] = {}
        """By task: a finalist for fixed extents that is not one for all sizes."""
        self._made: dict[tuple[str, frozenset[tuple[object, ...]]], Finalists] = {}

    def notes(self) -> dict[str, str]:
        """Notes on the programs made so far, for `verify` and for people."""
        refused = {REFUSED_NOTE: f"{len(self._refused)} tasks"} if self._refused else {}
        return {LARGEST_ERROR_NOTE: _largest(tuple(self._errors.values())), **refused}

    def of(
        self, task: Task, storages: Mapping[str, Storage], rows: Mapping[str, StoredRow]
    ) -> Finalists:
        """The programs of its finalists, with these storages of inputs and outputs.

        What is among `rows` lies among others, from the number on that `ROW_NUMBER` holds.
        """
        stored = ((name, row.count, row.images) for name, row in rows.items())
        key = (task.key, frozenset([*storages.items(), *stored]))
        if key not in self._made:
            self._made[key] = self._covered(task, storages, rows)
        return self._made[key]

    def _covered(
        self, task: Task, storages: Mapping[str, Storage], rows: Mapping[str, StoredRow]
    ) -> Finalists:
        """The same for all counts; by the default schedule where too many would be needed."""
        numbers = count()

        def make() -> list[ProgramSource]:
            return self._lowered(task, storages, rows, next(numbers))

        try:
            return covering_counts(task.counts, _elements(task), make)
        except InputError:
            own = task.at(self._values).key
            if own not in self._finalists:
                raise
            self._finalists = {k: c for k, c in self._finalists.items() if k != own}
            return covering_counts(task.counts, _elements(task), make)

    def _lowered(
        self,
        task: Task,
        storages: Mapping[str, Storage],
        rows: Mapping[str, StoredRow],
        number: int,
    ) -> list[ProgramSource]:
        """The programs of its finalists for the counts at hand, the alternative of that number."""
        programs = [view(program, storages) for program in self._programs_of(task, number)]
        for name, row in rows.items():
            given = name, row.count, ROW_NUMBER, row.images
            programs = [stacked(program, *given) for program in programs]
        return [lower(program, self._target, panels=self._shared) for program in programs]

    def first(self, task: Task) -> Candidate:
        """The first finalist, or the default schedule."""
        given = self._finalists.get(task.key)
        return given[0] if given else default_candidate(task.space(self.spec), self.spec)

    def _instantiated(self, task: Task, space: Space) -> list[tuple[Candidate, Program]]:
        """The finalists for the sizes at hand, or the default schedule.

        Finalists for fixed extents may not be for all sizes; those that are not are left out.
        """
        given = self._finalists.get(task.at(self._values).key, ())
        if task.at(self._values) is task:
            chosen = given or [default_candidate(space, self.spec)]
            return [(candidate, space.instantiate(candidate)) for candidate in chosen]
        found: list[tuple[Candidate, Program]] = []
        for candidate in given:
            try:
                found.append((candidate, space.instantiate(candidate)))
            except ScheduleError:
                self._refused.setdefault(task.key, candidate)
        default = [default_candidate(space, self.spec)] if not found else []
        return [*found, *((candidate, space.instantiate(candidate)) for candidate in default)]

    def _programs_of(self, task: Task, alternative: int) -> list[Program]:
        """Programs under different names, from which those of their kernels derive."""
        key = f"{task.key} {alternative}"
        if key not in self._programs:
            space = task.space(self.spec)
            made = self._instantiated(task, space)
            self._programs[key] = [
                replace(program, name=_numbered(program.name, number, alternative))
                for number, (_, program) in enumerate(made)
            ]
            error = max(space.sketch(c.sketch).error for c, _ in made)
            self._errors[task.key] = max(error, self._errors.get(task.key, 0.0))
        return self._programs[key]


def _stored(step: StepGraph, names: Mapping[str, str]) -> dict[str, StoredRow]:
    """The rows of a step under other names."""
    rows = step.rows.items()
    return {names[v]: replace(row, counter=names[row.counter]) for v, row in rows}


def _elements(task: Task) -> int:
    """Elements of all its outputs."""
    return sum(prod(tensor.shape) for tensor in task.dag.outputs)


def _numbered(name: str, finalist: int, alternative: int) -> str:
    name = f"{name}_{finalist}" if finalist else name
    return f"{name}_or{alternative}" if alternative else name


def _integers(graph: Graph) -> dict[str, str]:
    count = sum(node.op in RESCALING for node in graph.nodes)
    found = {INTEGERS_NOTE: f"rescaled {count} times"} if count else {}
    rows = sum(_rounds_rows(graph, node) for node in graph.nodes)
    return found | ({ROWS_NOTE: f"rounded to int8 by {rows} products"} if rows else {})


def _rounds_rows(graph: Graph, node: Node) -> bool:
    """Whether it rounds rows to int8 where onnxruntime, for zero points of floats, does not."""
    zeros = node.inputs[3:] if node.attrs.get("rows") == INT8 else ()
    return any(graph.types[value].dtype.is_float for value in zeros)


def _largest(errors: Sequence[float]) -> str:
    """The largest error, and in how many tasks it is."""
    largest = max(errors, default=0.0)
    count = errors.count(largest)
    return f"{largest:.0e} in {count} task{'s' * (count > 1)}" if largest else "0"


@dataclass(slots=True, kw_only=True)
class _PlanBuilder:
    """The plan as it grows, by the groups of one network: the whole one, or what is in a loop."""

    network: Network
    tasks: Mapping[str, Task]
    sources: _Sources
    views: Mapping[str, View]
    prefix: str = ""
    """Begins the names of what is the network's own."""
    rows: Mapping[str, StoredRow] = field(default_factory=dict[str, StoredRow])
    """Values that lie among those of all steps of a loop."""
    slots: list[Slot] = field(default_factory=list[Slot])
    kernels: dict[str, KernelText] = field(default_factory=dict[str, KernelText])
    buffers: dict[str, ProgramBuffer] = field(default_factory=dict[str, ProgramBuffer])
    launches: list[KernelLaunch] = field(default_factory=list[KernelLaunch])
    loops: list[PlanLoop] = field(default_factory=list[PlanLoop])
    aliases: dict[str, Alias] = field(default_factory=dict[str, Alias])
    """Of each value that is one: steps of a loop may be in the plan more than once."""
    hosts: list[PlanHost] = field(default_factory=list[PlanHost])
    weights: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    stored: dict[str, str] = field(default_factory=dict[str, str])
    """Of each weight that was asked for, by name, the one that holds it: contents are there once.
    """
    contents: dict[tuple[object, ...], str] = field(default_factory=dict[tuple[object, ...], str])
    """The weights that are there, by what they hold."""

    @property
    def graph(self) -> Graph:
        """The graph of the network."""
        return self.network.graph

    def groups(self) -> None:
        """Everything that the network's groups need is in the plan."""
        for placed in self.network.groups:
            if placed.group.kind == SCAN:
                self._loop(placed.group)
            elif placed.group.kind == BATCH_LOOP:
                self._batch_loop(placed.group)
            elif placed.task_key is None:
                self.without_kernel(placed.group)
            elif placed.group.offloaded:
                task = self.tasks[placed.task_key]
                self.offload(placed.group, task, self.sources.first(task))
            else:
                self._launch_all(placed)

    def _launch_all(self, placed: PlacedGroup) -> None:
        """The launches of all finalists of a group."""
        task, key = placed.task_among(self.tasks), placed.task_key
        assert key is not None, "it has a kernel"
        bound = bound_values(placed, task).items()
        rows = {name: self.rows[value] for name, value in bound if value in self.rows}
        made = self.sources.of(task, self.storages(placed, task), rows)
        ranges = tuple(self.launch(placed, task, source, i) for i, source in enumerate(made))
        if all(ranges):
            label = f"{self.prefix}{placed.group.name}"
            self.slots.append(Slot(task_key=key, label=label, finalists=ranges))

    def _loop(self, group: Group) -> None:
        """Steps in turns: states lie in one of two buffers, and each step leaves them in the other.

        The last one of an odd number of steps comes after the loop.
        """
        loop, prefix = self.network.loops[group.name], f"{self.prefix}{group.name}/"
        (part,), count = loop.parts, loop.carried
        steps = int(part.times)  # which depends on no size: a plan is for so many
        states = [self._state(part, value, prefix) for value in part.step.graph.inputs[:count]]
        around = {value: value for value in loop.start.graph.types if value in self.graph.types}
        first = dict(zip(loop.start.graph.outputs, (pair[0] for pair in states), strict=True))
        self._inner(loop.start, around | first, f"{prefix}start/").groups()
        read = map(self._value, group.anchor.inputs[loop.states :])
        made = map(self._value, group.anchor.outputs[loop.states :])
        names = dict(zip(part.step.graph.inputs[count:], read, strict=True))
        names |= zip(part.step.graph.outputs[count:], made, strict=True)
        begin = len(self.launches)
        for turn in range(min(2, steps)):
            self._step(part, states, names, turn, prefix)
        if steps > 3:
            times = steps // 2
            self.loops.append(PlanLoop(first=begin, end=len(self.launches), times=times))
        if steps > 2 and steps % 2:
            self._step(part, states, names, 0, prefix)
        used = {*self.graph.uses(), *self.graph.outputs}
        last = (pair[steps % 2] for pair in states[count - loop.states :])
        for value, of in zip(group.anchor.outputs, last, strict=False):
            if value in used:
                self._value(value)
                self.aliases[value] = Alias(value=value, of=of)

    def _batch_loop(self, group: Group) -> None:
        """Steps that count on in place: none reads what another one computes."""
        loop, prefix = self.network.loops[group.name], f"{self.prefix}{group.name}/"
        whole = [self._value(value) for value in (*group.anchor.inputs, *group.anchor.outputs)]
        counter = f"{prefix}image"
        self.buffers[counter] = ProgramBuffer(
            name=counter, dtype=INT32, elements=1, role="temp", shape=()
        )
        self._inner(loop.start, {loop.start.graph.outputs[0]: counter}, f"{prefix}start/").groups()
        for number, part in enumerate(loop.parts):
            graph, begin = part.step.graph, len(self.launches)
            own = {value: f"{prefix}{value}" for value in graph.constants}
            own |= dict.fromkeys((graph.inputs[0], graph.outputs[0]), counter)
            own |= zip((*graph.inputs[1:], *graph.outputs[1:]), whole, strict=True)
            inner = f"{prefix}each{number or ''}/"
            self._inner(part.each, own, inner, _stored(part.step, own)).groups()
            self.loops.append(PlanLoop(first=begin, end=len(self.launches), times=part.times))

    def _state(self, part: LoopPart, value: str, prefix: str) -> tuple[str, str]:
        """The two buffers of a state."""
        kind = part.step.graph.types[value]
        pair = (f"{prefix}{value}@0", f"{prefix}{value}@1")
        for name in pair:
            self.buffers[name] = ProgramBuffer(
                name=name, dtype=kind.dtype, elements=kind.elements, role="temp", shape=kind.shape
            )
        return pair

    def _step(
        self,
        part: LoopPart,
        states: Sequence[tuple[str, str]],
        names: Mapping[str, str],
        turn: int,
        prefix: str,
    ) -> None:
        """Add one step to the plan: it reads the states from their buffers number `turn`."""
        graph, count = part.step.graph, len(states)
        own = {v: f"{prefix}{v}@{turn}" for v in graph.types if v not in graph.constants}
        own |= {value: f"{prefix}{value}" for value in graph.constants}
        own |= zip(graph.inputs[:count], (pair[turn] for pair in states), strict=True)
        own |= zip(graph.outputs[:count], (pair[1 - turn] for pair in states), strict=True)
        own |= names
        self._inner(part.each, own, prefix, _stored(part.step, own)).groups()

    def _inner(
        self,
        network: Network,
        names: Mapping[str, str],
        prefix: str,
        rows: Mapping[str, StoredRow] | None = None,
    ) -> "_PlanBuilder":
        """The builder of what is in a loop, for the same plan; its inputs and outputs are there."""
        every = {value: names.get(value, f"{prefix}{value}") for value in network.graph.types}
        inner = network.renamed(every)
        views = find_views(inner, self.sources.spec)
        return replace(self, network=inner, views=views, prefix=prefix, rows=rows or {})

    def interface(self) -> None:
        """Inputs that no kernel reads and outputs that no kernel writes exist all the same.

        An output that is a constant shares the buffer of that constant.
        """
        for value in self.graph.outputs:
            array = self.graph.constants.get(value)
            if array is not None and array.size:
                self._value(value)
                self.aliases[value] = Alias(value=value, of=self._stored(value, array))
        for value in (*self.graph.inputs, *self.graph.outputs):
            self._value(value)

    def sizes(self) -> Iterator[PlanSize]:
        """Each size of the network has a buffer, whether a kernel reads it or not."""
        for size, (value, axis) in self.graph.sizes.items():
            name = self._size(size.name)
            yield PlanSize(size=size, buffer=name, input=value, axis=axis)
        found = {*self.graph.sizes}
        for value, elements in self.graph.values.items():
            for size in sorted(sizes_of(elements) - found, key=str):
                found.add(size)
                yield PlanSize(size=size, buffer=self._size(size.name), input=value)

    def _size(self, size: str) -> str:
        name = own_name(size, self.graph)
        self.buffers[name] = ProgramBuffer(name=name, dtype=INT32, elements=1, role="size")
        return name

    def without_kernel(self, group: Group) -> None:
        """A host step, an output in the memory of the input, or a state that grows."""
        if group.kind == HOST:
            self._host(group)
            return
        if group.kind == APPEND:
            self._append(group)
            return
        (value,), (of,) = group.outputs, group.inputs
        self._value(of)
        self._value(value)
        self.aliases[value] = Alias(value=value, of=of)

    def _append(self, group: Group) -> None:
        """A state is the first part of what it becomes; what is new is a view of it already."""
        (past, new), (made,) = group.anchor.inputs, group.outputs
        for value in (made, new, past):
            self._value(value)
        whole, before = row_major(self.graph.types[made].shape), self.graph.types[past].shape[0]
        self.aliases[past] = Alias(value=past, of=made, storage=whole.section(0, 0, before))

    def _host(self, group: Group) -> None:
        node, read = group.anchor, {*self.graph.uses(), *self.graph.outputs}
        self.hosts.append(
            PlanHost(
                label=group.name,
                model=cast("bytes", node.attrs["model"]),
                inputs=tuple(self._value(value) for value in node.inputs),
                outputs=tuple(self._value(v) if v in read else "" for v in node.outputs),
                after=len(self.launches),
            )
        )

    def offload(self, group: Group, task: Task, candidate: Candidate) -> None:
        """A step of the accelerator, with the node's own shifts and limits.

        Raises: ScheduleError if the candidate is not one for the node.
        """
        assert task.packed is not None, "the task is an accelerator's"
        node = group.anchor
        module = lower_packed(
            work_of(self.graph, node), dict(candidate.decisions), task.packed.config
        )
        self.hosts.append(
            PlanHost(
                label=group.name,
                model=module.to_bytes(),
                inputs=tuple(self._value(value) for value in node.inputs),
                outputs=tuple(self._value(value) for value in node.outputs),
                after=len(self.launches),
                engine="vta",
            )
        )

    def _keep(self, kernel: KernelText) -> None:
        """The kernel is in the plan. Raises: VerifyError if another one has its name."""
        if self.kernels.setdefault(kernel.name, kernel).text != kernel.text:
            raise VerifyError(
                f"network {self.graph.name}: kernel {kernel.name}: expected one text of that name; "
                "got two; report it with the model"
            )

    def launch(
        self,
        placed: PlacedGroup,
        task: Task,
        alternatives: Sequence[Alternative[ProgramSource]],
        finalist: int,
    ) -> range:
        """The launches of one finalist of a group are added; their numbers."""
        group, first = placed.group, len(self.launches)
        label = f"{self.prefix}{group.name}"
        own = f"{label}#{finalist}" if finalist else label
        bound = bound_values(placed, task)
        for value in self.rows.keys() & {*group.inputs, *group.outputs}:
            bound[ROW_NUMBER] = self.rows[value].counter
        for number, each in enumerate(alternatives):
            part = f"{own}|{number}" if number else own
            names = {
                buffer.name: self._bind(buffer, each.made.packing(buffer.name), bound, part)
                for buffer in each.made.buffers
            }
            for kernel, launch in self._needed(placed, each.made):
                self._keep(replace(kernel, text=kernel.text + kernel.called, called=""))
                self.launches.append(
                    replace(
                        each.launch(launch),
                        args=tuple(names[name] for name in launch.args),
                        writes=tuple(names[name] for name in launch.writes),
                        label=label,
                    )
                )
        return range(first, len(self.launches))

    def storages(self, group: PlacedGroup, task: Task) -> dict[str, Storage]:
        """The storage of each of the task's inputs and outputs that is a view, by name."""
        views = {name: self.views.get(value) for name, value in bound_values(group, task).items()}
        storages = {name: each.storage for name, each in views.items() if each is not None}
        found = task_storages(task, storages)
        if found is None:
            what = ", ".join(f"{name} as {storage}" for name, storage in storages.items())
            raise InputError(
                f"group {group.group.name}: expected layouts that its kernel can read and "
                f"write; got {what}, and NHWC for the rest; plan the layouts of this network again"
            )
        return found

    def _needed(self, placed: PlacedGroup, source: ProgramSource) -> Sequence[Run]:
        """All launches, without the copies of values that are views of the result already."""
        moved = inclusions_of(placed.group, self.graph)
        if len(moved) != len(source.launches):
            return source.runs
        pairs = zip(source.runs, moved, strict=True)
        return [k for k, part in pairs if not is_in_place(*part, self.views, self.graph)]

    def _bind(
        self, buffer: ProgramBuffer, packing: Packing, bound: Mapping[str, str], group: str
    ) -> str:
        if buffer.role == "size":
            return self._size(buffer.name)
        if buffer.role == "temp":
            name = own_name(f"{group}/{buffer.name}", self.graph)
            self.buffers[name] = replace(buffer, name=name, shape=(buffer.elements,))
            return name
        values = [bound[name] for name in packing.sources]
        if all(value in self.graph.constants for value in values):
            return self._weight(values, buffer, packing)
        return self._value(values[0])

    def _weight(self, values: Sequence[str], buffer: ProgramBuffer, packing: Packing) -> str:
        arrays = [self.graph.constants[value] for value in values]
        if packing.pack is None:
            return self._stored(values[0], arrays[0])
        name = own_name(f"{'+'.join(values)}@{content_key(packing.pack)[:8]}", self.graph)
        if name not in self.stored:
            packed = packing.pack.apply(*arrays)
            for array in arrays:
                forget_pages(array)
            computed = packing.sources != (buffer.name,)
            self._store(name, packed, packed.shape if computed else arrays[0].shape, buffer.image)
        return self.stored[name]

    def _stored(self, value: str, array: np.ndarray) -> str:
        """Name of the weight that holds an unpacked constant: the constant's, but for outputs."""
        name = own_name(f"{value}@stored", self.graph) if value in self.graph.ends else value
        if name not in self.stored:
            self._store(name, np.ascontiguousarray(array), array.shape)
        return self.stored[name]

    def _store(self, name: str, array: np.ndarray, shape: tuple[int, ...], image: int = 0) -> None:
        content = shape, image, content_key(array)
        forget_pages(array)
        self.stored[name] = self.contents.setdefault(content, name)
        if self.stored[name] != name:
            return
        self.weights[name] = array
        self.buffers[name] = ProgramBuffer(
            name=name,
            dtype=str(array.dtype),
            elements=array.size,
            role="weight",
            shape=shape,
            image=image,
        )

    def _value(self, value: str) -> str:
        if value in self.buffers:
            return value
        if value in self.views:
            view = self.views[value]
            of = self._rows(view, self.graph.types[value].dtype)
            self.aliases[value] = Alias(value=value, of=of, storage=view.storage)
        graph, kind = self.graph, self.graph.types[value]
        if value in graph.inputs:
            role = "input"
        elif value in graph.ends:
            role = "output"
        elif value in graph.constants:
            return self._stored(value, graph.constants[value])
        else:
            role = "temp"
        elements = kind.elements if kind.known else 0
        self.buffers[value] = ProgramBuffer(
            name=value, dtype=kind.dtype, elements=elements, role=role, shape=kind.shape
        )
        return value

    def _rows(self, view: View, dtype: DType) -> str:
        """The value or buffer that it is a view of."""
        if view.of in self.graph.types:
            return self._value(view.of)
        self.buffers[view.of] = ProgramBuffer(
            name=view.of,
            dtype=dtype,
            elements=view.storage.elements,
            role="temp",
            shape=tuple(part.room for part in view.storage.parts),
        )
        return view.of

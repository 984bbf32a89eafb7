"""Extraction of tuning tasks from an optimised graph: groups, de-duplicated by content."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from retune.core.dims import always_empty, example, most
from retune.core.keys import short_key
from retune.frontend.host.step import step_of
from retune.graph.batch_loop import BATCH_LOOP, BatchLoop, batch_step
from retune.graph.fuse import ALIAS, APPEND, Group, group_graph, group_renamed, partition
from retune.graph.graph import Graph, GraphBuilder
from retune.graph.lower import group_tensors
from retune.graph.passes.joins import inclusions, inclusions_of
from retune.graph.passes.storage import computed_wide
from retune.graph.rewrite import renamed
from retune.graph.scan import SCAN, Scan, StepGraph, step_graph
from retune.ir.merge import merge_axes
from retune.ir.moved import moved_as_stored
from retune.ir.order import made_as_read
from retune.ir.patches import split_patches
from retune.ir.storage import Storage
from retune.ops.blocked import BLOCKED_CONV
from retune.ops.registry import HOST, ints
from retune.ops.shapes import CHANNELS_LAST
from retune.search.defaults import DEFAULT_MAX_ERROR
from retune.search.task import Task
from retune.targets.vta.config import VtaConfig
from retune.targets.vta.expression import SUMS, expression
from retune.targets.vta.packed import INPUTS, Packed, canonical, shape_of, work_of


@dataclass(frozen=True, slots=True)
class PlacedGroup:
    """A group of the network, and the task that it is an instance of.

    None for an alias, what is appended to a state, and a host step: these have no kernel.
    """

    group: Group
    task_key: str | None
    counted: Task | None = None
    """The group's own task, where extents of it are counts: what is tuned is that for the largest
    ones."""

    def task_among(self, tasks: Mapping[str, Task]) -> Task:
        """The group's task, for all counts, with what is allowed of the one that is tuned."""
        assert self.task_key is not None, f"{self.group.name} has a kernel"
        task = tasks[self.task_key]
        if self.counted is None:
            return task
        return replace(self.counted, max_error=task.max_error)


@dataclass(frozen=True, slots=True)
class Network:
    """An optimised graph cut into groups, and the distinct tasks among them."""

    graph: Graph
    groups: tuple[PlacedGroup, ...]
    tasks: Mapping[str, Task]
    """Those of loops included: each counts as often as its group runs."""
    layouts: Mapping[str, Storage] = field(default_factory=dict[str, Storage])
    """Values that lie otherwise than in rows, in memory of their own."""
    loops: "Mapping[str, Loop]" = field(default_factory=dict[str, "Loop"])
    """Group of a loop -> what runs in it."""

    def task_of(self, placed: PlacedGroup) -> Task:
        """The task of a group that has one, for all counts."""
        return placed.task_among(self.tasks)

    def renamed(self, names: Mapping[str, str]) -> "Network":
        """The network with other names of some of its values."""
        groups = (replace(p, group=group_renamed(p.group, names)) for p in self.groups)
        loops = self.loops.items()
        return replace(
            self,
            graph=renamed(self.graph, names),
            groups=tuple(groups),
            loops={g: replace(own, start=own.start.renamed(names)) for g, own in loops},
        )

    @property
    def task_keys(self) -> dict[str, str]:
        """The task of each group that has one, by the group's name; of what is in loops, too."""
        own = {p.group.name: p.task_key for p in self.groups if p.task_key is not None}
        for name, loop in self.loops.items():
            steps = {f"each{n or ''}": part.each for n, part in enumerate(loop.parts)}
            for part, network in {"start": loop.start, **steps}.items():
                own |= {f"{name}/{part}/{g}": key for g, key in network.task_keys.items()}
        return own

    @property
    def host_steps(self) -> tuple[str, ...]:
        """The ops of each step on the host, in order."""
        groups = (placed.group for placed in self.groups)
        return tuple(step_of(g.anchor.attrs).title for g in groups if g.kind == HOST)


@dataclass(frozen=True, slots=True)
class LoopPart:
    """A step of a loop that runs so many times over."""

    step: StepGraph
    each: Network
    """One step."""
    times: int


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop of the network: its states are set, and then it runs step after step."""

    start: Network
    """Sets the counters and states, in the order of the steps' inputs. What it reads has the names
    that it has around the loop."""
    parts: tuple[LoopPart, ...]
    """What runs one after the other; several have one counter."""
    states: int = 0

    @property
    def carried(self) -> int:
        """How many counters and states there are: the first inputs and outputs of a step."""
        return len(self.parts[0].step.counters) + self.states


def extract(
    graph: Graph,
    *,
    max_error: float = DEFAULT_MAX_ERROR,
    accelerator: VtaConfig | None = None,
    step: bool = False,
) -> Network:
    """The network's groups in execution order; equal groups share a task, with their number.

    `max_error` is what its tasks may use, see `Task`. Beside an accelerator, only its tasks are
    tuned. The graph may be a `step` of a loop. Raises: ScheduleError if something packed does
    not fit the accelerator.
    """
    tasks: dict[str, Task] = {}
    placed: list[PlacedGroup] = []
    loops: dict[str, Loop] = {}
    made: dict[tuple[str, ...], tuple[Task, Task]] = {}
    groups = partition(graph, joined=step)
    offloaded = packed_tasks(graph, groups, accelerator) if accelerator else {}
    parts = {value for node in graph.nodes for value, _, _ in inclusions(node, graph)}
    for group in groups:
        if group.kind in (SCAN, BATCH_LOOP):
            found = _loop if group.kind == SCAN else _batch_loop
            loops[group.name] = loop = found(graph, group, max_error)
            _count(tasks, loop.start.tasks, 1)
            for part in loop.parts:
                _count(tasks, part.each.tasks, max(1, example(part.times)))
        if group.kind in (ALIAS, APPEND, HOST, SCAN, BATCH_LOOP):
            placed.append(PlacedGroup(group, None))
            continue
        form = _form(graph, group, parts)
        if form not in made:
            task = offloaded.get(group.name) or replace(
                make_task(graph, group, parts), max_error=max_error, searched=accelerator is None
            )
            made[form] = task, _for_largest_counts(task)
        task, fixed = made[form]
        _count(tasks, {fixed.key: fixed}, 1)
        placed.append(PlacedGroup(group, fixed.key, None if fixed is task else task))
    return Network(graph, tuple(placed), tasks, loops=loops)


def _form(graph: Graph, group: Group, parts: Collection[str]) -> tuple[str, ...]:
    """What the group's task follows from: groups of equal forms are instances of one.

    Values by their number, type and contents, and whether they are among `parts`.
    """
    read = (*group.inputs, *group.params)
    values = dict.fromkeys((*read, *(v for node in group.nodes for v in node.outputs)))
    number = {value: str(at) for at, value in enumerate(values)} | {"": ""}
    return (
        f"{group.kind} {len(group.inputs)} {len(read)} {group.conversions}",
        *(f"{graph.types[v]} {graph.values.get(v)} {v in parts}" for v in values),
        *(
            f"{node.op}({[number[v] for v in node.inputs]}, {sorted(node.attrs.items())})"
            for node in group.nodes
        ),
        *(number[v] for v in group.outputs),
    )


def _for_largest_counts(task: Task) -> Task:
    """The task for the largest counts; itself if it depends on none, or on other sizes as well."""
    counts = task.counts
    if not counts or counts != task.sizes:
        return task
    return task.at({size.name: size.most for size in counts})


def _count(tasks: dict[str, Task], more: Mapping[str, Task], times: int) -> None:
    """The tasks are among `tasks`, so many times each."""
    for key, task in more.items():
        found = tasks.get(key)
        before = found.weight if found else 0
        tasks[key] = replace(found or task, weight=before + times * task.weight)


def _loop(graph: Graph, group: Group, max_error: float) -> Loop:
    """What runs in the loop that a group is."""
    scan = Scan.of(group.anchor.attrs)
    step = step_graph(scan)
    start, states = GraphBuilder("start", reserved=graph.types), list[str]()
    for name, first in step.counters.items():
        states.append(start.constant(start.fresh(name), np.asarray(first, np.int32)))
    for value in group.anchor.inputs[: scan.states]:
        if value not in start.types and value in graph.constants:
            start.constant(value, graph.constants[value], graph.types[value].dtype)
        elif value not in start.types:
            start.input(value, graph.types[value])
        states.append(value)
    copies = [start.add("identity", [value], name=f"{value}.start") for value in states]
    each = extract(step.graph, max_error=max_error, step=True)
    return Loop(
        start=extract(start.finish(copies), max_error=max_error),
        parts=(LoopPart(step, each, scan.steps),),
        states=scan.states,
    )


def _batch_loop(graph: Graph, group: Group, max_error: float) -> Loop:
    """What runs in the loop over a batch that a group is."""
    loop = BatchLoop.of(group.anchor.attrs)
    batch = graph.types[group.anchor.inputs[0]].shape[0]
    start = GraphBuilder("start", reserved=graph.types)
    first = start.constant("image", np.asarray(0, np.int32))
    first = start.add("identity", [first], name="image.start")
    parts: list[LoopPart] = []
    for body, times in loop.runs(batch):
        if not always_empty([times]):
            step = batch_step(body, loop.images, batch)
            parts.append(LoopPart(step, extract(step.graph, max_error=max_error), times))
    return Loop(extract(start.finish([first]), max_error=max_error), tuple(parts))


def make_task(graph: Graph, group: Group, parts: Collection[str] = ()) -> Task:
    """The task of one group, with weight one.

    Its kernels find rows of `parts` wherever these lie: such values may be columns of another one.
    What only joins or cuts channels does so in blocks of them, too, whatever the batch.
    """
    alone = computed_wide(group_graph(graph, group))
    tensors = group_tensors(alone, group.params)
    ends = {**tensors.inputs, **tensors.outputs}
    rows = {tensor.buffer for value, tensor in ends.items() if value in parts}
    moves = inclusions_of(group, graph)
    batches = [tensor.buffer for tensor in ends.values() if moves and most(tensor.shape[0]) > 1]
    narrow = moved_as_stored(made_as_read(tensors.dag))
    merged = merge_axes(split_patches(narrow), rows=rows, batches=batches)
    key = merged.key
    strides = group.anchor.attrs.get("strides")
    return Task(
        key=key,
        name=_task_name(graph, group, key),
        op=_op_name(graph, group),
        weight=1,
        graph=alone,
        dag=merged,
        text=str(tensors.dag),
        inputs=tuple(t.name for t in tensors.inputs.values()),
        outputs=tuple(t.name for t in tensors.outputs.values()),
        input_shapes=tuple(t.shape for t in tensors.inputs.values()),
        output_shape=tuple(graph.types[group.outputs[0]].shape),
        epilogue=tuple(f"T_{node.op}" for node in group.epilogue),
        stride=int(strides[0]) if isinstance(strides, tuple) else None,
    )


def packed_tasks(graph: Graph, groups: Iterable[Group], config: VtaConfig) -> dict[str, Task]:
    """The task of each group that the accelerator runs, by the group's name.

    Groups of one shape have one task, which takes in another image if one of them does.
    """
    alike: dict[tuple[object, ...], list[Group]] = {}
    for group in groups:
        if group.offloaded:
            alike.setdefault(shape_of(graph, group.anchor), []).append(group)
    found: dict[str, Task] = {}
    for same in alike.values():
        summed = any(len(group.anchor.inputs) == len(INPUTS) for group in same)
        task = _packed_task(canonical(graph, same[0].anchor, summed=summed), config)
        found.update((group.name, task) for group in same)
    return found


def _packed_task(alone: Graph, config: VtaConfig) -> Task:
    (node,), (made,) = alone.nodes, alone.outputs
    work = work_of(alone, node)
    dag = expression(work, config)
    kind = f"{BLOCKED_CONV}_transpose" if work.transposed else BLOCKED_CONV
    return Task(
        key=dag.key,
        name="_".join(
            [
                f"{kind}_{work.c * config.block}x{work.h}x{work.w}_{work.o * config.block}",
                "x".join(map(str, work.kernel)),
                short_key(dag.key),
            ]
        ),
        op=SUMS,
        weight=1,
        graph=alone,
        dag=dag,
        text=str(dag),
        inputs=alone.inputs,
        outputs=alone.outputs,
        input_shapes=tuple(alone.types[value].shape for value in alone.inputs),
        output_shape=alone.types[made].shape,
        epilogue=tuple(f"vta_{step.op}" for step in work.steps),
        stride=work.strides[0],
        packed=Packed(work=work, config=config),
    )


def _task_name(graph: Graph, group: Group, key: str) -> str:
    """The group's ops, the extents of its window, and what tells it from all other tasks.

    Such as `conv2d_add_relu_3x3_4f2a90c1`.
    """
    ops = group.name.rpartition("_")[0]  # what follows is its number in the graph
    window = "x".join(map(str, _window(graph, group)))
    return "_".join(part for part in (ops, window, short_key(key)) if part)


def _window(graph: Graph, group: Group) -> tuple[int, ...]:
    """The spatial extents of a convolution's kernel or of a pooling window; none for other ops."""
    node = group.anchor
    layout = node.attrs.get("layout")
    if "strides" not in node.attrs or not isinstance(layout, str):
        return ()
    if "kernel" in node.attrs:
        return ints(node.attrs, "kernel")
    shape = graph.types[node.inputs[1]].shape
    return shape[:-2] if layout in CHANNELS_LAST else shape[2:]


def _op_name(graph: Graph, group: Group) -> str:
    """The kind of the group, with depth-wise convolutions and their layouts told apart."""
    node = group.anchor
    layout = node.attrs.get("layout")
    if not isinstance(layout, str) or node.op.startswith("global_"):
        return group.kind
    shape = graph.types[node.inputs[0]].shape
    channels = shape[-1] if layout == "NHWC" else shape[1]
    depthwise = node.op == "conv2d" and node.attrs.get("groups") == channels > 1
    return f"{'depthwise_' if depthwise else ''}{node.op}_{layout.lower()}"

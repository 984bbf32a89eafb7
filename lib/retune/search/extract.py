"""From an optimised graph to tuning tasks: groups, de-duplicated by what they compute."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from retune.graph.fuse import ALIAS, Group, group_graph, partition
from retune.graph.graph import Graph
from retune.graph.lower import group_tensors
from retune.graph.ops.host import HOST, step_of
from retune.ir.merge import merge_axes
from retune.ir.order import made_as_read
from retune.ir.patches import split_patches
from retune.ir.storage import Storage
from retune.search.defaults import DEFAULT_MAX_ERROR
from retune.search.task import Task


@dataclass(frozen=True, slots=True)
class PlacedGroup:
    """A group of the network, and the task that it is an instance of.

    None for an alias and for a host step: neither has a kernel.
    """

    group: Group
    task_key: str | None


@dataclass(frozen=True, slots=True)
class Network:
    """An optimised graph cut into groups, and the distinct tasks among them."""

    graph: Graph
    groups: tuple[PlacedGroup, ...]
    tasks: Mapping[str, Task]
    layouts: Mapping[str, Storage] = field(default_factory=dict[str, Storage])
    """Values that lie otherwise than in rows, in memory of their own."""

    @property
    def host_steps(self) -> tuple[str, ...]:
        """The ops of each step on the host, in order."""
        groups = (placed.group for placed in self.groups)
        return tuple(step_of(g.anchor.attrs).title for g in groups if g.kind == HOST)


def extract(graph: Graph, *, max_error: float = DEFAULT_MAX_ERROR) -> Network:
    """The network's groups in execution order; equal groups share a task, with their number.

    `max_error` is what its tasks may use, see `Task`.
    """
    tasks: dict[str, Task] = {}
    placed: list[PlacedGroup] = []
    for group in partition(graph):
        if group.kind in (ALIAS, HOST):
            placed.append(PlacedGroup(group, None))
            continue
        task = replace(make_task(graph, group), max_error=max_error)
        found = tasks.get(task.key)
        tasks[task.key] = replace(found, weight=found.weight + 1) if found else task
        placed.append(PlacedGroup(group, task.key))
    return Network(graph, tuple(placed), tasks)


def make_task(graph: Graph, group: Group) -> Task:
    """The task of one group, with weight one."""
    alone = group_graph(graph, group)
    tensors = group_tensors(alone, group.params)
    merged = merge_axes(split_patches(made_as_read(tensors.dag)))
    anchor = group.anchor
    strides = anchor.attrs.get("strides")
    return Task(
        key=merged.key,
        name=group.name,
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

"""A layout assignment, applied to a network: storages of activations, and layout transforms.

Whatever is not a kernel reads and makes NHWC. Read `with_layouts`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from retune.core.errors import InputError
from retune.core.layouts import NHWC, ActivationLayout, IOLayouts, KeptLayouts, LayoutAssignment
from retune.graph.fuse import ALIAS, partition
from retune.graph.graph import Graph, Node
from retune.search.extract import Network, PlacedGroup
from retune.search.layout.aliases import AliasGroup, alias_groups, can_have, moves_channels
from retune.search.layout.layouts import (
    TRANSFORM,
    activations_of,
    bound_values,
    layout_storage,
    may_be_blocked,
    placed_shapes,
    supports,
    task_storages,
    transform_task,
)


def is_nhwc_only(placed: PlacedGroup, graph: Graph) -> bool:
    """Whether the group reads and makes NHWC, whatever is assigned: it has no kernel, or one that
    joins or cuts something else than channels of activations, or depends on counts."""
    group = placed.group
    moves = any(node.op in ("concat", "slice") for node in group.nodes)
    bound = group.aside or placed.task_key is None or group.kind == ALIAS or placed.counted
    return bool(bound) or (moves and not moves_channels(placed, graph))


def group_activations(network: Network, placed: PlacedGroup) -> list[tuple[str, bool]]:
    """The activations that a group's task reads and makes, in the task's order: is it made?"""
    if placed.task_key is None or placed.group.aside:
        return []
    task = network.task_of(placed)
    bound, shapes = bound_values(placed, task), placed_shapes(placed, task, network.graph)
    return [(bound[name], made) for name, made in activations_of(task, shapes).items()]


def copy_name(value: str, layout: ActivationLayout) -> str:
    """The name of an activation's copy in that layout."""
    return f"{value}@{layout}"


def with_layouts(network: Network, assigned: LayoutAssignment) -> Network:
    """The network in these layouts, with a group for each copy.

    Raises: InputError for an assignment of another network.
    """
    groups = {placed.group.name for placed in network.groups}
    foreign = [
        *(assigned.activations.keys() - network.graph.types.keys()),
        *(assigned.kernels.keys() - groups),
    ]
    if foreign:
        raise InputError(
            f"network {network.graph.name}: expected layouts of its activations and groups; got "
            f"{min(foreign)!r}, and {len(foreign) - 1} more that it lacks; plan its layouts anew"
        )
    made = _Assigned(network, assigned)
    made.add_copies(network.graph.inputs)
    for placed in network.groups:
        made.add(placed)
    return made.network


class _Assigned:
    """The network as it grows."""

    def __init__(self, network: Network, assigned: LayoutAssignment) -> None:
        self._old = network
        self._assigned = assigned
        self._types = dict(network.graph.types)
        self._groups: list[PlacedGroup] = []
        self._tasks = dict(network.tasks)
        self._storages = dict(network.layouts)
        self._loops = dict(network.loops)
        self._copied: dict[str, list[Node]] = {}
        """Activation -> the nodes that copy it."""
        self._renamed: dict[str, Mapping[str, str]] = {}
        """First output of a node -> names of what it reads instead."""

    def add(self, placed: PlacedGroup) -> None:
        """One more group, reading the copies that its kernel wants, and copies of what it makes."""
        group = placed.group
        names = {
            value: copy_name(value, layout)
            for value, layout in self._wanted(placed).items()
            if layout in self._kept(value).copies
        }
        self._renamed |= {node.outputs[0]: names for node in group.nodes}
        reading = replace(
            group,
            nodes=tuple(_renamed(node, names) for node in group.nodes),
            inputs=tuple(names.get(value, value) for value in group.inputs),
        )
        self._groups.append(replace(placed, group=reading))
        if loop := self._loops.get(group.name):
            self._loops[group.name] = replace(loop, start=loop.start.renamed(names))
        for value in group.outputs:
            self._place(value, self._kept(value).made)
        self.add_copies(group.outputs)

    def add_copies(self, values: Sequence[str]) -> None:
        """The copies of these activations."""
        for value in values:
            for layout in self._kept(value).copies:
                self._copy(value, layout)

    @property
    def network(self) -> Network:
        """What came of it."""
        nodes = [copy for value in self._old.graph.inputs for copy in self._copied.get(value, ())]
        for node in self._old.graph.nodes:
            nodes.append(_renamed(node, self._renamed.get(node.outputs[0], {})))
            nodes += [copy for value in node.outputs for copy in self._copied.get(value, ())]
        graph = replace(self._old.graph, nodes=tuple(nodes), types=self._types)
        return replace(
            self._old,
            graph=graph,
            groups=tuple(self._groups),
            tasks=self._tasks,
            layouts=self._storages,
            loops=self._loops,
        )

    def _kept(self, value: str) -> KeptLayouts:
        return self._assigned.activations.get(value, KeptLayouts())

    def _wanted(self, placed: PlacedGroup) -> dict[str, ActivationLayout]:
        """The layouts that the group wants for what it reads."""
        if is_nhwc_only(placed, self._old.graph):
            return dict.fromkeys(placed.group.inputs, NHWC)
        io = self._assigned.of_kernel(placed.group.name)
        read = [value for value, made in group_activations(self._old, placed) if not made]
        return dict.fromkeys(read[1:], io.output) | dict.fromkeys(read[:1], io.input)

    def _place(self, value: str, layout: ActivationLayout) -> None:
        if layout != NHWC:
            self._storages[value] = layout_storage(layout, self._types[value].shape)

    def _copy(self, value: str, layout: ActivationLayout) -> None:
        name, kind = copy_name(value, layout), self._types[value]
        self._types[name] = kind
        self._place(name, layout)
        task = transform_task(kind)
        found = self._tasks.get(task.key)
        self._tasks[task.key] = replace(found, weight=found.weight + 1) if found else task
        node = Node(op="identity", name=name, inputs=(value,), outputs=(name,))
        types = {value: kind, name: kind}
        alone = Graph(name=TRANSFORM, inputs=(value,), outputs=(name,), nodes=(node,), types=types)
        (group,) = partition(alone)
        own = replace(group, name=f"{TRANSFORM}_{len(self._groups)}")
        self._groups.append(PlacedGroup(own, task.key))
        self._copied.setdefault(value, []).append(node)


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    return replace(node, inputs=tuple(names.get(value, value) for value in node.inputs))


def uniform_layout(network: Network, layout: ActivationLayout) -> LayoutAssignment:
    """That layout for every activation that can have it, and no copies.

    Those between kernels can: not an input or output of the network, nor what something that is not
    a kernel reads, nor one of fewer channels than a block has, nor where a kernel would not find it
    so beside its other activations. Those of an alias group have one layout.
    """
    able = _able_alone(network, layout) if layout != NHWC else set[str]()
    groups = [(group, can_have(group, layout, network)) for group in alias_groups(network)]
    while stuck := _stuck(network, layout, groups, able):
        able -= stuck
    made = (value for placed in network.groups for value in placed.group.outputs)
    kept = {value: KeptLayouts(layout) for value in made if value in able}
    kernels: dict[str, IOLayouts] = {}
    for placed in network.groups:
        values = [value for value, _ in group_activations(network, placed)]
        found = [kept.get(value, KeptLayouts()).made for value in values]
        if found and not is_nhwc_only(placed, network.graph) and set(found) != {NHWC}:
            kernels[placed.group.name] = IOLayouts(found[0], found[-1])
    return LayoutAssignment(activations=kept, kernels=kernels)


def _stuck(
    network: Network,
    layout: ActivationLayout,
    groups: Sequence[tuple[AliasGroup, bool]],
    able: set[str],
) -> set[str]:
    """Those that cannot have the layout if no others do; of an alias group all can, or none."""
    found: set[str] = set()
    for placed in network.groups:
        if not _finds(network, placed, layout, able):
            found |= able.intersection((*placed.group.inputs, *placed.group.outputs))
    for group, free in groups:
        together = {*group.made, *group.read}
        if not (free and together <= able):
            found |= together & able
    return found


def _able_alone(network: Network, layout: ActivationLayout) -> set[str]:
    """The activations that can have the layout, as far as only they matter."""
    graph = network.graph
    fixed = {*graph.inputs, *graph.outputs, *graph.constants}
    for placed in network.groups:
        if is_nhwc_only(placed, graph):
            fixed |= {*placed.group.inputs, *placed.group.outputs}
    every = {value for placed in network.groups for value, _ in group_activations(network, placed)}
    return {value for value in every - fixed if may_be_blocked(graph.types[value], layout)}


def _finds(network: Network, placed: PlacedGroup, layout: ActivationLayout, able: set[str]) -> bool:
    """Whether the group's kernel finds these activations in the layout, all others in NHWC."""
    if placed.task_key is None or placed.group.aside:
        return True
    task, graph = network.task_of(placed), network.graph
    shapes, bound = placed_shapes(placed, task, graph), bound_values(placed, task)
    storages = {n: layout_storage(layout, shapes[n]) for n, value in bound.items() if value in able}
    measured = not storages or supports(task, IOLayouts(layout, layout), shapes)
    return measured and task_storages(task, storages) is not None

"""A choice of layouts, applied to a network: where its images lie, and which of them are copied.

An image is made in one layout, and may be copied to others for those who read it faster there.
Whoever is no kernel finds it in rows. Read `laid_out`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from retune.core.errors import InputError
from retune.core.layouts import ROWS
from retune.graph.fuse import ALIAS, Group, partition
from retune.graph.graph import Graph, Node
from retune.ir.storage import Storage
from retune.search.extract import Network, PlacedGroup
from retune.search.layout.joints import Joint, joints, may_lie, moves_channels
from retune.search.layout.layouts import (
    IN_ROWS,
    TRANSFORM,
    Ends,
    bound_values,
    found_so,
    image_storage,
    images_of,
    least_channels,
    may_have,
    may_lie_in_blocks,
    placed_shapes,
    transform_task,
)
from retune.search.task import Task


@dataclass(frozen=True, slots=True)
class Kept:
    """In which layouts an image is kept."""

    made: str = ROWS
    copies: tuple[str, ...] = ()
    """What it is copied to, in order of their names."""

    @property
    def layouts(self) -> tuple[str, ...]:
        """All of them."""
        return (self.made, *self.copies)

    def __str__(self) -> str:
        return "+".join(self.layouts)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutChoice:
    """What is not in rows: image -> how it is kept, and group -> the ends of its kernel."""

    kept: Mapping[str, Kept]
    ends: Mapping[str, Ends]


def lays_rows(placed: PlacedGroup, graph: Graph) -> bool:
    """Whether the group finds and leaves its values in rows, whatever is chosen: it has no kernel,
    or one that joins or cuts something else than channels of images.
    """
    group = placed.group
    moves = any(node.op in ("concat", "slice") for node in group.nodes)
    bound = group.aside or placed.task_key is None or group.kind == ALIAS
    return bound or (moves and not moves_channels(placed, graph))


def group_images(network: Network, placed: PlacedGroup) -> list[tuple[str, bool]]:
    """The images that a group's task reads and makes, in the task's order: is it made?"""
    if placed.task_key is None or placed.group.aside:
        return []
    task = network.tasks[placed.task_key]
    bound, shapes = bound_values(placed, task), placed_shapes(placed, task, network.graph)
    return [(bound[name], made) for name, made in images_of(task, shapes).items()]


def laid_out(network: Network, choice: LayoutChoice) -> Network:
    """The network with its images lying as chosen, and a copy for each layout that one is copied
    to.

    Raises: InputError for a choice of another network.
    """
    groups = {placed.group.name for placed in network.groups}
    foreign = [*(choice.kept.keys() - network.graph.types.keys()), *(choice.ends.keys() - groups)]
    if foreign:
        raise InputError(
            f"network {network.graph.name}: expected layouts of its images and groups; got "
            f"{min(foreign)!r}, and {len(foreign) - 1} more that it lacks; plan its layouts anew"
        )
    laying = _Laying(network, choice)
    for placed in network.groups:
        laying.add(placed)
    return laying.network()


def uniform(network: Network, layout: str) -> LayoutChoice:
    """Every image in that layout wherever it can lie so, and no copies.

    It can between kernels: not as an input or output of the network, nor where whoever is no kernel
    reads it, nor where blocks have more channels than it has, nor where a kernel would not find it
    so beside its other images. What is joined, or cut, lies alike.
    """
    able = _may_lie_alone(network, layout) if layout != ROWS else set[str]()
    joined = [(joint, may_lie(joint, layout, network)) for joint in joints(network)]
    while stuck := _stuck(network, layout, joined, able):
        able -= stuck
    made = (value for placed in network.groups for value in placed.group.outputs)
    kept = {value: Kept(layout) for value in made if value in able}
    return LayoutChoice(kept=kept, ends=_ends_of(network, kept))


def _stuck(
    network: Network, layout: str, joined: Sequence[tuple[Joint, bool]], able: set[str]
) -> set[str]:
    """Those of these images that cannot lie so if no others do; of a joint all do, or none."""
    found: set[str] = set()
    for placed in network.groups:
        if not _finds(network, placed, layout, able):
            found |= able.intersection((*placed.group.inputs, *placed.group.outputs))
    for joint, free in joined:
        together = {*joint.made, *joint.read}
        if not (free and together <= able):
            found |= together & able
    return found


def _may_lie_alone(network: Network, layout: str) -> set[str]:
    """The images that may lie so, as far as only they matter."""
    graph = network.graph
    fixed = {*graph.inputs, *graph.outputs, *graph.constants}
    for placed in network.groups:
        if lays_rows(placed, graph):
            fixed |= {*placed.group.inputs, *placed.group.outputs}
    images = {value for placed in network.groups for value, _ in group_images(network, placed)}
    return {
        value
        for value in images - fixed
        if graph.types[value].shape[-1] >= least_channels(layout)
        and may_lie_in_blocks(graph.types[value].dtype)
    }


def _finds(network: Network, placed: PlacedGroup, layout: str, able: set[str]) -> bool:
    """Whether the group's kernel finds its images: these in the layout, all others in rows."""
    if placed.task_key is None or placed.group.aside:
        return True
    task, graph = network.tasks[placed.task_key], network.graph
    shapes, bound = placed_shapes(placed, task, graph), bound_values(placed, task)
    laid = {n: image_storage(layout, shapes[n]) for n, value in bound.items() if value in able}
    measured = not laid or may_have(task, Ends(layout, layout), shapes)
    return measured and found_so(task, laid) is not None


def _ends_of(network: Network, kept: Mapping[str, Kept]) -> dict[str, Ends]:
    """The ends of each group where nothing is copied."""
    found: dict[str, Ends] = {}
    for placed in network.groups:
        images = group_images(network, placed)
        layouts = [kept.get(value, Kept()).made for value, _ in images]
        if layouts and not lays_rows(placed, network.graph) and set(layouts) != {ROWS}:
            found[placed.group.name] = Ends(layouts[0], layouts[-1])
    return found


class _Laying:
    """The network as it grows."""

    def __init__(self, network: Network, choice: LayoutChoice) -> None:
        self._old = network
        self._choice = choice
        self._types = dict(network.graph.types)
        self._groups: list[PlacedGroup] = []
        self._tasks: dict[str, Task] = dict(network.tasks)
        self._layouts: dict[str, Storage] = {}
        self._made: list[tuple[str, Node]] = []
        """Copies: what is copied, and by which node."""
        self._renamed: dict[str, dict[str, str]] = {}
        """First output of a node -> names of what it reads instead."""
        self._copies(network.graph.inputs)

    def add(self, placed: PlacedGroup) -> None:
        """One more group, and the copies of what it makes."""
        group = self._reading(placed)
        self._groups.append(replace(placed, group=group))
        for value in group.outputs:
            self._lay(value, self._choice.kept.get(value, Kept()).made)
        self._copies(group.outputs)

    def network(self) -> Network:
        """What came of it."""
        copies: dict[str, list[Node]] = {}
        for value, node in self._made:
            copies.setdefault(value, []).append(node)
        nodes = [copy for value in self._old.graph.inputs for copy in copies.get(value, ())]
        for node in self._old.graph.nodes:
            nodes.append(_renamed(node, self._renamed.get(node.outputs[0], {})))
            nodes += [copy for value in node.outputs for copy in copies.get(value, ())]
        graph = replace(self._old.graph, nodes=tuple(nodes), types=self._types)
        return Network(graph, tuple(self._groups), self._tasks, self._layouts)

    def _reading(self, placed: PlacedGroup) -> Group:
        """The group, reading the copies that its kernel wants."""
        group = placed.group
        names = {
            value: copy_name(value, layout)
            for value, layout in self._wanted(placed)
            if layout in self._choice.kept.get(value, Kept()).copies
        }
        if not names:
            return group
        for node in group.nodes:
            self._renamed[node.outputs[0]] = names
        return replace(
            group,
            nodes=tuple(_renamed(node, names) for node in group.nodes),
            inputs=tuple(names.get(value, value) for value in group.inputs),
        )

    def _wanted(self, placed: PlacedGroup) -> list[tuple[str, str]]:
        """The images that the group reads, each with the layout that it wants."""
        if lays_rows(placed, self._old.graph):
            return [(value, ROWS) for value in placed.group.inputs]
        ends = self._choice.ends.get(placed.group.name, IN_ROWS)
        images = [value for value, made in group_images(self._old, placed) if not made]
        return [(value, ends.made if n else ends.read) for n, value in enumerate(images)]

    def _lay(self, value: str, layout: str) -> None:
        if layout != ROWS:
            self._layouts[value] = image_storage(layout, self._types[value].shape)

    def _copies(self, values: Sequence[str]) -> None:
        for value in values:
            for layout in self._choice.kept.get(value, Kept()).copies:
                self._copy(value, layout)

    def _copy(self, value: str, layout: str) -> None:
        name, kind = copy_name(value, layout), self._types[value]
        self._types[name] = kind
        self._lay(name, layout)
        task = transform_task(kind)
        found = self._tasks.get(task.key)
        self._tasks[task.key] = replace(found, weight=found.weight + 1) if found else task
        node = Node(op="identity", name=name, inputs=(value,), outputs=(name,))
        (group,) = partition(
            Graph(name=TRANSFORM, inputs=(value,), outputs=(name,), nodes=(node,),
                  types={value: kind, name: kind})
        )  # fmt: skip
        own = replace(group, name=f"{TRANSFORM}_{len(self._groups)}")
        self._groups.append(PlacedGroup(own, task.key))
        self._made.append((value, node))


def copy_name(value: str, layout: str) -> str:
    """The name of an image's copy in that layout."""
    return f"{value}@{layout}"


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    return replace(node, inputs=tuple(names.get(value, value) for value in node.inputs))

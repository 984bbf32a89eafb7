"""Which values of a network are columns of others, so that nobody has to copy them.

What a concatenation along the last axis joins lies in its result, and a slice along that axis in
what it is cut from. Producers write their columns and readers read them in place, both row by row:
a wider row costs them nothing. So rows that crowd a few sets of a processor's cache are columns of
longer ones, whose rest is never touched. Read `find_views`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from retune.core.dtypes import itemsize
from retune.core.target import DeviceSpec
from retune.graph.fuse import ALIAS
from retune.graph.graph import Graph, Node
from retune.graph.ops.registry import ints
from retune.ir.storage import Storage, row_major
from retune.search.extract import Network, PlacedGroup
from retune.search.layouts import CROWDED_BYTES


@dataclass(frozen=True, slots=True)
class View:
    """A value that is columns of another one, or lies in memory that is no value."""

    of: str
    storage: Storage


def find_views(network: Network, spec: DeviceSpec) -> dict[str, View]:
    """The values that need no memory of their own, by name.

    Holds after the call: each of them equals its columns of the other value, and every group that
    makes or reads it does so row by row; or the network's layouts say how it lies in memory that is
    there for it alone. Neither inputs nor outputs of the network are among them.
    """
    forest = _Forest(network)
    for value, wider, offset in _inclusions(network):
        forest.join(value, wider, offset)
    if spec.device_class == "cpu":
        for value in _crowded(network):
            forest.widen(value, spec.cache_line_bytes)
    laid = {v: View(own_name(f"{v}@{s}", network.graph), s) for v, s in network.layouts.items()}
    return forest.views() | laid


def is_in_place(
    value: str, wider: str, offset: int, views: Mapping[str, View], graph: Graph
) -> bool:
    """Whether the columns of `wider` from `offset` on are the memory of `value`."""
    place, around = (_placed(name, views, graph) for name in (value, wider))
    return place.of == around.of and place.storage.offset == around.storage.offset + offset


def starts(node: Node, graph: Graph) -> list[int]:
    """First column of each input of a concatenation along the last axis."""
    widths = (graph.types[value].shape[-1] for value in node.inputs)
    return list(accumulate(widths, initial=0))[:-1]


def joins_columns(node: Node, graph: Graph) -> bool:
    """Whether the node is a concatenation along the last axis."""
    rank = len(graph.types[node.outputs[0]].shape)
    return node.op == "concat" and node.attrs["axis"] == rank - 1


def cut_at(node: Node, graph: Graph) -> int | None:
    """First column of a slice that takes whole rows of some columns; None for any other node."""
    if node.op != "slice":
        return None
    shape = graph.types[node.inputs[0]].shape
    begins, extents, steps = (ints(node.attrs, key) for key in ("begins", "extents", "steps"))
    if not shape or extents[:-1] != shape[:-1] or any(steps[d] != 1 for d in range(len(shape))):
        return None
    return begins[-1]


def own_name(name: str, graph: Graph) -> str:
    """The name of memory that is no value of the network: always the same, and none of its."""
    while name in graph.types:
        name += "@"
    return name


def _placed(value: str, views: Mapping[str, View], graph: Graph) -> View:
    return views.get(value) or View(value, row_major(graph.types[value].shape))


def _inclusions(network: Network) -> Iterator[tuple[str, str, int]]:
    """Values that equal columns of another one, and the first of these columns.

    What spares most comes first: a value has one place.
    """
    graph = network.graph
    nodes = [placed.group.anchor for placed in network.groups if placed.task_key is not None]
    joins = [node for node in nodes if joins_columns(node, graph)]
    cuts = {n.outputs[0]: n for n in nodes if cut_at(n, graph) is not None}
    for position, node in enumerate(joins):
        for other in joins[position + 1 :]:  # a longer list of the same values, as dense nets have
            first = _within(node.inputs, other.inputs)
            if first is not None:
                yield node.outputs[0], other.outputs[0], starts(other, graph)[first]
                break
        for source, offset in _whole_sources(node, cuts, graph):
            yield source, node.outputs[0], offset
    for value, node in cuts.items():
        yield value, node.inputs[0], cut_at(node, graph) or 0
    for node in joins:
        for value, offset in zip(node.inputs, starts(node, graph), strict=True):
            if node.inputs.count(value) == 1:
                yield value, node.outputs[0], offset


def _whole_sources(node: Node, cuts: Mapping[str, Node], graph: Graph) -> Iterator[tuple[str, int]]:
    """Values whose slices stand side by side in a concatenation as they do in the value."""
    covered: dict[tuple[str, int], int] = {}
    for value, offset in zip(node.inputs, starts(node, graph), strict=True):
        if value in cuts:
            source = cuts[value].inputs[0]
            place = source, offset - (cut_at(cuts[value], graph) or 0)
            covered[place] = covered.get(place, 0) + graph.types[value].shape[-1]
    for (source, offset), count in covered.items():
        if count == graph.types[source].shape[-1]:
            yield source, offset


def _crowded(network: Network) -> Iterator[str]:
    """Values around depthwise convolutions whose pixels lie in few sets of the first cache."""
    for placed in network.groups:
        if placed.group.anchor.op != "depthwise_conv2d":
            continue
        for value in (*placed.group.inputs, *placed.group.outputs):
            kind = network.graph.types[value]
            row = kind.shape[-1] * itemsize(kind.dtype) if kind.shape else 0
            if row and row % CROWDED_BYTES == 0 and kind.elements > kind.shape[-1]:
                yield value


def _within(some: tuple[str, ...], others: tuple[str, ...]) -> int | None:
    """Where `some` stands in a row in the longer `others`."""
    if len(some) >= len(others):
        return None
    spans = range(len(others) - len(some) + 1)
    return next((i for i in spans if others[i : i + len(some)] == some), None)


@dataclass(slots=True)
class _Forest:
    """Trees of values, each of which lies in its parent; the roots have memory of their own."""

    network: Network
    parents: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    wide: dict[str, int] = field(default_factory=dict[str, int])
    """Rows that are no value of the network, and how wide they are."""
    makers: dict[str, PlacedGroup] = field(init=False)
    readers: dict[str, list[PlacedGroup]] = field(init=False)

    def __post_init__(self) -> None:
        groups = self.network.groups
        self.makers = {v: placed for placed in groups for v in placed.group.outputs}
        self.readers = {}
        for placed in groups:
            for value in placed.group.inputs:
                self.readers.setdefault(value, []).append(placed)

    def join(self, value: str, wider: str, offset: int) -> None:
        """Puts the value into the wider one if it, and all that lies in it, may lie in a row."""
        graph = self.network.graph
        fixed = wider in graph.constants or wider in self.network.layouts
        if value in self.parents or value == self._root(wider)[0] or fixed:
            return
        if graph.types[value].elements and self._may_lie_in_rows(value):
            self.parents[value] = (wider, offset)

    def widen(self, value: str, more_bytes: int) -> None:
        """Puts the value into longer rows, which nothing else lies in, if it may lie in a row."""
        graph = self.network.graph
        if value in self.parents or not self._may_lie_in_rows(value):
            return
        rows = own_name(f"{value}@rows", graph)
        self.parents[value] = (rows, 0)
        self.wide[rows] = self._width(value) + more_bytes // itemsize(graph.types[value].dtype)

    def views(self) -> dict[str, View]:
        """What came of it."""
        found: dict[str, View] = {}
        for value in self.parents:
            root, offset = self._root(value)
            rows = row_major(self.network.graph.types[value].shape)
            found[value] = View(root, rows.columns(offset, self._width(root)))
        return found

    def _root(self, value: str) -> tuple[str, int]:
        offset = 0
        while value in self.parents:
            value, more = self.parents[value]
            offset += more
        return value, offset

    def _width(self, value: str) -> int:
        return self.wide.get(value) or self.network.graph.types[value].shape[-1]

    def _may_lie_in_rows(self, value: str) -> bool:
        """Whether whoever makes or reads the value does so row by row."""
        graph = self.network.graph
        if value in self.network.layouts or value not in self.makers:
            return False
        if value in graph.outputs or value in graph.constants:
            return False
        around = [self.makers[value], *self.readers.get(value, [])]
        return all(self._by_rows(placed, value) for placed in around)

    def _by_rows(self, placed: PlacedGroup, value: str) -> bool:
        """Whether the value's last axis is still an axis of its own after axes were merged."""
        group = placed.group
        if placed.task_key is None or group.aside or group.kind == ALIAS:
            return False
        task = self.network.tasks[placed.task_key]
        names = dict(zip((*group.inputs, *group.params), task.inputs, strict=True))
        names |= dict(zip(group.outputs, task.outputs, strict=True))
        tensors = {t.name: t for t in (*task.dag.placeholders, *task.dag.outputs)}
        shape = tensors[names[value]].shape if names[value] in tensors else ()
        return bool(shape) and shape[-1] == self._width(value)

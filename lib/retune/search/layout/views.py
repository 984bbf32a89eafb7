"""Values that are views of others, so that no kernel copies them.

The inputs of a concatenation along the last axis are views of its result, and a slice along that
axis is a view of its source. In NHWC a view is a range of channels of each pixel, and in blocked
layouts a range of blocks. Producers write to the view and readers read from it, at no extra cost.
Pixels that map to a few cache sets of a CPU become views of padded ones: the padding is never
accessed. Read `find_views`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from retune.core.dims import always_empty
from retune.core.errors import InputError
from retune.core.target import DeviceSpec
from retune.graph.fuse import ALIAS, APPEND
from retune.graph.graph import Graph, Node
from retune.graph.passes.joins import inclusions, inclusions_of, joins_columns, starts
from retune.graph.passes.moves import cut_at
from retune.graph.passes.wide import MOST_PARTS
from retune.ir.storage import Storage, row_major
from retune.search.extract import Network, PlacedGroup
from retune.search.layout.layouts import CROWDED_BYTES, bound_values, channels_of

_MOST_VIEWS = MOST_PARTS + 1
"""In the memory of one value, itself included. A kernel's text says where a view lies, so that each
has kernels of its own."""


@dataclass(frozen=True, slots=True)
class View:
    """A value stored in the channels of another value, or in a buffer that is not a value."""

    of: str
    storage: Storage


def find_views(network: Network, spec: DeviceSpec) -> dict[str, View]:
    """The values that need no memory of their own, by name.

    Holds after the call: each of them equals its channels of the other value, and every group that
    makes or reads it can do so there. Or it has a buffer that is not a value: in the layout that
    the network assigns to it, or with padded pixels. Inputs and outputs of the network have no
    views.
    """
    appended = appended_views(network)
    forest = _Forest(network, appended.keys())
    for value, view in appended.items():
        forest.check_found(value, view.storage)
    found = list(_inclusions(network))
    kept = _kept_apart(found)
    for value, wider, offset in found:
        if value not in kept:
            forest.join(value, wider, offset)
    if spec.device_class == "cpu":
        for value in _crowded(network):
            forest.widen(value, spec.cache_line_bytes)
    return forest.views() | appended


def appended_views(network: Network) -> dict[str, View]:
    """What is appended to states, by name: it lies behind what they had, in their memory."""
    found: dict[str, View] = {}
    for placed in network.groups:
        if placed.group.kind == APPEND:
            (past, new), (made,) = placed.group.anchor.inputs, placed.group.outputs
            before, count = (network.graph.types[value].shape[0] for value in (past, new))
            whole = row_major(network.graph.types[made].shape)
            found[new] = View(made, whole.section(0, before, count))
    return found


def is_in_place(
    value: str, wider: str, offset: int, views: Mapping[str, View], graph: Graph
) -> bool:
    """Whether the channels of `wider` from `offset` on are the memory of `value`."""
    own, around = (_placed(name, views, graph) for name in (value, wider))
    there = channels_of(around.storage, offset, graph.types[value].shape[-1])
    return own.of == around.of and own.storage == there


def own_name(name: str, graph: Graph) -> str:
    """A name for a buffer that differs from those of the network's values: always the same one."""
    while name in graph.types:
        name += "@"
    return name


def _placed(value: str, views: Mapping[str, View], graph: Graph) -> View:
    return views.get(value) or View(value, row_major(graph.types[value].shape))


def _inclusions(network: Network) -> Iterator[tuple[str, str, int]]:
    """Values that equal channels of another one, and the first of these channels.

    What spares most comes first: a value lies in one buffer only.
    """
    graph = network.graph
    nodes, joins = _moves(network), _joins(network)
    cuts = {n.outputs[0]: n for n in nodes if cut_at(n, graph) is not None}
    holders: dict[str, list[int]] = {}
    for position, node in enumerate(joins):
        for value in {*node.inputs}:
            holders.setdefault(value, []).append(position)
    for position, node in enumerate(joins):
        for number in holders[node.inputs[0]]:  # a longer list of the same values, as in dense nets
            other = joins[number]
            if number <= position:
                continue
            first = _within(node.inputs, other.inputs)
            if first is not None:
                yield node.outputs[0], other.outputs[0], starts(other, graph)[first]
                break
        for source, offset in _whole_sources(node, cuts, graph):
            yield source, node.outputs[0], offset
    for node in (*cuts.values(), *joins):
        for value, wider, first in inclusions(node, graph):
            if node.inputs.count(value) <= 1:
                yield value, wider, first


def _kept_apart(found: Iterable[tuple[str, str, int]]) -> set[str]:
    """Values that others lie in, where more than _MOST_VIEWS might lie together.

    Each has memory of its own then, so that the same kernels serve all of them.
    """
    groups: dict[str, set[str]] = {}
    for value, wider, _ in found:
        less, more = sorted((groups.get(v, {v}) for v in (value, wider)), key=len)
        if less is not more:
            more |= less
            groups.update(dict.fromkeys(less, more))
            groups.update(dict.fromkeys((value, wider), more))
    return {wider for _, wider, _ in found if len(groups[wider]) > _MOST_VIEWS}


def _moves(network: Network) -> list[Node]:
    """The concatenations and slices of columns that are groups of their own."""
    groups = (placed.group for placed in network.groups if placed.task_key is not None)
    return [group.anchor for group in groups if inclusions_of(group, network.graph)]


def _joins(network: Network) -> list[Node]:
    return [node for node in _moves(network) if joins_columns(node, network.graph)]


def _whole_sources(node: Node, cuts: Mapping[str, Node], graph: Graph) -> Iterator[tuple[str, int]]:
    """Values whose slices stand side by side in a concatenation as they do in the value."""
    covered: dict[tuple[str, int], int] = {}
    for value, offset in zip(node.inputs, starts(node, graph), strict=True):
        if value in cuts:
            source = cuts[value].inputs[0]
            start = source, offset - (cut_at(cuts[value], graph) or 0)
            covered[start] = covered.get(start, 0) + graph.types[value].shape[-1]
    for (source, offset), count in covered.items():
        if count == graph.types[source].shape[-1]:
            yield source, offset


def _crowded(network: Network) -> Iterator[str]:
    """Activations of depthwise convolutions whose pixels map to few sets of the L1 cache."""
    for placed in network.groups:
        if placed.group.anchor.op != "depthwise_conv2d":
            continue
        for value in (*placed.group.inputs, *placed.group.outputs):
            kind = network.graph.types[value]
            pixel = kind.shape[-1] * kind.dtype.itemsize if kind.shape else 0
            if pixel and pixel % CROWDED_BYTES == 0 and kind.elements > kind.shape[-1]:
                yield value


def _within(some: tuple[str, ...], others: tuple[str, ...]) -> int | None:
    """The index at which the longer `others` contains `some` as a contiguous run; else None."""
    if len(some) >= len(others):
        return None
    spans = range(len(others) - len(some) + 1)
    return next((i for i in spans if others[i : i + len(some)] == some), None)


@dataclass(slots=True)
class _Forest:
    """Trees of values, each of which is a view of its parent; the roots have their own buffers."""

    network: Network
    fixed: Collection[str] = ()
    """Values that lie elsewhere."""
    parents: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    wide: dict[str, int] = field(default_factory=dict[str, int])
    """Buffers of padded pixels, which are not values of the network, and elements of a pixel."""
    makers: dict[str, PlacedGroup] = field(init=False)
    readers: dict[str, list[PlacedGroup]] = field(init=False)
    joins: dict[str, list[tuple[str, str, int]]] = field(init=False)
    """Of values in concatenations, as parts or wholes: the part, the whole, its first column there.
    """
    inside: dict[str, list[str]] = field(init=False)
    """The views of a root, itself included; roots without views are left out."""

    def __post_init__(self) -> None:
        groups = self.network.groups
        self.makers = {v: placed for placed in groups for v in placed.group.outputs}
        graph = self.network.graph
        self.joins, self.inside = {}, {}
        for node in _joins(self.network):
            for value, first in zip(node.inputs, starts(node, graph), strict=True):
                for end in {value, node.outputs[0]}:
                    self.joins.setdefault(end, []).append((value, node.outputs[0], first))
        self.readers = {}
        for placed in groups:
            for value in placed.group.inputs:
                self.readers.setdefault(value, []).append(placed)

    def join(self, value: str, wider: str, offset: int) -> None:
        """Makes the value a view of the wider one, if it and all of its own views may be."""
        if value in self.parents or value == self._root(wider)[0]:
            return
        if wider in self.network.graph.constants or not self._may_lie_beside_others(value):
            return
        own = self._alone(value)
        there = channels_of(self._alone(wider), offset, own.shape[-1])
        if there is None or _digits(there) != _digits(own):
            return
        self.parents[value] = (wider, offset)
        moved, root = self.inside.get(value, [value]), self._root(value)[0]
        many = len(self.inside.get(root, ())) + len(moved) > _MOST_VIEWS
        if many or any(
            self._copied_within(root, join) for v in moved for join in self.joins.get(v, ())
        ):
            del self.parents[value]
            return
        self.inside.setdefault(root, [root]).extend(moved)

    def widen(self, value: str, more_bytes: int) -> None:
        """Makes the value a view of a padded buffer of its own, if it may be a view."""
        graph, assigned = self.network.graph, value in self.network.layouts
        if assigned or value in self.parents or not self._may_lie_beside_others(value):
            return
        padded, kind = own_name(f"{value}@padded", graph), graph.types[value]
        self.parents[value] = (padded, 0)
        self.wide[padded] = kind.shape[-1] + more_bytes // kind.dtype.itemsize

    def _copied_within(self, root: str, join: tuple[str, str, int]) -> bool:
        """Whether a concatenation would copy a part to there from elsewhere in the same memory.

        It would copy a value that the concatenation has twice, once through another one: the value
        is a view at one of the two offsets only.
        """
        part, whole, first = join
        (of, at), (around, begin) = self._root(part), self._root(whole)
        return of == around == root and at != begin + first

    def views(self) -> dict[str, View]:
        """The views of all values that have one, by name."""
        found: dict[str, View] = {}
        for value in (*self.parents, *self.network.layouts):
            root, offset = self._root(value)
            own, graph = self._alone(value), self.network.graph
            if value == root:
                found[value] = View(own_name(f"{value}@{own}", graph), own)
                continue
            if root in self.wide:
                found[value] = View(root, own.columns(offset, self.wide[root]))
                continue
            whole = self._alone(root)
            name = own_name(f"{root}@{whole}", graph) if root in self.network.layouts else root
            found[value] = View(name, whole.section(len(own.shape) - 1, offset, own.shape[-1]))
        return found

    def _root(self, value: str) -> tuple[str, int]:
        offset = 0
        while value in self.parents:
            value, more = self.parents[value]
            offset += more
        return value, offset

    def _alone(self, value: str) -> Storage:
        """The storage of the value in a buffer of its own."""
        assigned = self.network.layouts.get(value)
        return assigned or row_major(self.network.graph.types[value].shape)

    def _may_lie_beside_others(self, value: str) -> bool:
        """Whether the kernels that write or read the value can do so in a wider buffer."""
        graph = self.network.graph
        if value not in self.makers or not graph.types[value].shape or value in self.fixed:
            return False
        if (
            value in graph.ends
            or value in graph.constants
            or always_empty(graph.types[value].shape)
        ):
            return False
        alone = self._alone(value)
        number = alone.coarsest(len(alone.shape) - 1)
        beside = alone.within(number, 0, alone.parts[number].room + 1)
        around = [self.makers[value], *self.readers.get(value, [])]
        return all(self._finds(placed, value, beside) for placed in around)

    def check_found(self, value: str, storage: Storage) -> None:
        """Raises: InputError if a kernel that makes or reads the value does not find it there."""
        readers = [r for r in self.readers.get(value, ()) if r.group.kind != APPEND]
        for placed in (self.makers[value], *readers):
            if not self._finds(placed, value, storage):
                raise InputError(
                    f"group {placed.group.name}: expected a kernel that can work with '{value}' "
                    f"behind the state that it is appended to; got none for {storage}; state none "
                    "(--state none)"
                )

    def _finds(self, placed: PlacedGroup, value: str, storage: Storage) -> bool:
        """Whether the group's kernel can address the value in that storage, after any reshapes."""
        group = placed.group
        if placed.task_key is None or group.aside or group.kind == ALIAS:
            return False
        task = self.network.task_of(placed)
        tensors = {t.name: t for t in (*task.dag.placeholders, *task.dag.outputs)}
        names = [name for name, bound in bound_values(placed, task).items() if bound == value]
        return all(n in tensors and storage.can_be(tensors[n].shape) for n in names)


def _digits(storage: Storage) -> list[tuple[int, int, int]]:
    """The parts of its addresses, without the room for padding."""
    return [(part.dim, part.divisor, part.extent) for part in storage.parts]

"""Partition of a graph into groups: what one kernel (or a few) computes together.

A heavy op or a reduction takes in the element-wise ops that follow it, as long as nobody else
reads the values between them and every other operand is computed before. A convolution takes in
those before it that it alone reads, a product of matrices what only moves its data
(`graph/passes/moves.py`). Element-wise ops that are left form groups in the same way, those of the
network's inputs with the pads and transposes behind them; in a step of a loop they also take in
what else they alone read, as launches are most of its time. Ops over the same rows are a group,
sums along the rows and what is made of them included, as a norm that an exporter wrote in parts.
What a product's results are combined with may be those of another product of the same row.
Reshapes of contiguous data move nothing: they are aliases, unless an input or output of the network
would have to share its memory with an output. What says where elements are, or how many there are,
has no inputs, and is computed by each group that reads it, and so is a conversion of a small float
to its compute type, which is a part of a load. A host step is a group of its own, and so is what an
accelerator computes. They come as late as they can, so that the device's work has few
parts.

A group has at most MOST_NODES and reads at most MOST_READ values, so that the partition takes time
in proportion to the nodes, and so does a kernel to be compiled. What follows is another group.
"""

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from retune.core.dims import Dim, always_same, counts_of
from retune.core.dtypes import FLOAT32
from retune.graph.graph import Graph, Node
from retune.graph.passes.beside import BESIDE
from retune.graph.passes.moves import Moves, find_moves
from retune.graph.rewrite import node_renamed
from retune.graph.scan import SCAN
from retune.ops import lookup
from retune.ops.blocked import OFFLOADED
from retune.ops.registry import HOST

ALIAS = "alias"
"""Kind of a group without a kernel: its output is its input's memory under another shape."""

APPEND = "append"
"""Kind of another one: what is new lies behind what was there, in the memory of both."""

_LAYING_OUT = ("pad", "transpose")
_CONVOLUTIONS = ("conv2d", "depthwise_conv2d", "conv3d")
_NAMED_OPS = 4
"""Ops spelled out in a group's name."""

MOST_NODES = 64
"""Nodes behind the first of a group. Those of real networks have up to 11; one more pass over
memory for each 64 operations of an element is cheap, and drivers compile long kernels slowly."""
MOST_READ = 32
"""Values that a group reads, of which each is a pointer of a kernel. Source: OpenCL 3.0, table 4,
CL_DEVICE_MAX_PARAMETER_SIZE is at least 1024 bytes, 128 pointers. A convolution has this limit for
what comes before it and for what follows, and temporaries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Nodes that run together; `inputs` are activations, `params` constants of the network."""

    name: str
    """An identifier, unique in its graph."""
    kind: str
    """The op that gives the loop nest: a heavy op, a reduction, a movement; or `elementwise`
    for a chain of such ops, or `alias`, or `append`."""
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    params: tuple[str, ...]
    outputs: tuple[str, ...]
    conversions: int = 0
    """How many of the first nodes are a part of loading what they convert."""

    @property
    def anchor(self) -> Node:
        """The node of the loop nest: the heavy one, or else the first that does more than move
        data, or else the last. Groups over rows have others too."""
        return _heavy(self.nodes) or _main(self.nodes[self.conversions :])

    @property
    def aside(self) -> bool:
        """Whether it runs between the device's kernels: on the host, or on an accelerator."""
        return runs_aside(self.nodes[0])

    @property
    def offloaded(self) -> bool:
        """Whether an accelerator runs it."""
        return lookup(self.nodes[0].op).kind == OFFLOADED

    @property
    def epilogue(self) -> tuple[Node, ...]:
        """The nodes after the anchor: element-wise, and a transpose at the end."""
        return self.nodes[self.nodes.index(self.anchor) + 1 :]


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """What says whether nodes may follow others in a group."""

    graph: Graph
    uses: Mapping[str, tuple[Node, ...]]
    moves: Moves
    makers: Mapping[str, tuple[int, Node]] = field(default_factory=dict[str, tuple[int, Node]])
    """Of values that a group may compute beside its first node's: the node, and its number."""
    loads: Mapping[str, tuple[Node, ...]] = field(default_factory=dict[str, tuple[Node, ...]])
    """Of values: the conversions that are a part of loading them."""
    loaded: Mapping[str, Node] = field(init=False)
    """These, by the values that they make."""
    done: set[str] = field(default_factory=set[str])
    """Values that are there before the next group runs."""
    given: frozenset[str] = field(init=False)
    """The network's inputs."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "given", frozenset(self.graph.inputs))
        loaded = {node.outputs[0]: node for nodes in self.loads.values() for node in nodes}
        object.__setattr__(self, "loaded", loaded)

    def add(self, values: Iterable[str]) -> None:
        """The values are there, and so are they converted."""
        for value in values:
            self.done.add(value)
            self.done.update(node.outputs[0] for node in self.loads.get(value, ()))


def partition(graph: Graph, *, joined: bool = False) -> tuple[Group, ...]:
    """Groups in execution order; every node is in exactly one, but for those without inputs.

    If `joined`, element-wise nodes take in all others that make what they alone read: for a step of
    a loop, whose kernels are short.
    """
    moves = find_moves(graph)
    makers = {v: made for v, made in _numbered(graph).items() if joined or BESIDE in made[1].attrs}
    uses = graph.uses()
    anywhere = _computed_anywhere(graph, uses)
    loads = _converted_by_loads(graph, uses)
    around = _Surroundings(graph, uses, moves, makers, loads)
    around.add({"", *graph.inputs, *graph.constants, *anywhere})
    before: dict[str, list[Node]] = {}  # by the value of the convolution that computes them
    later: set[str] = set()  # values that these make
    groups: list[Group] = []
    fixed = set(graph.inputs)  # values whose memory is the caller's, reshapes of inputs included
    for node in _reshapes_early(graph):
        if any(node.outputs[0] in known for known in (around.done, later, moves.taken)):
            continue
        nodes = [*before.get(node.outputs[0], ()), *moves.before(node), node]
        if _takes_epilogue(node):
            nodes += max((_epilogue(around, node), _over_rows(around, node)), key=len)
            if turned := moves.behind(node, nodes[-1]):
                nodes += [*turned, *_epilogue(around, turned[0])]
            nodes += _laid_out(around, nodes)
        if (reader := _computes(around, nodes)) is not None:
            before[reader.outputs[0]] = nodes
            later.update(value for member in nodes for value in member.outputs)
            continue
        around.add(value for member in nodes for value in member.outputs)
        kind = _kind(_anchor(nodes), graph, fixed)
        if kind == ALIAS and node.inputs[0] in fixed:
            fixed.add(node.outputs[0])
        groups.append(_group(around, nodes, kind, len(groups), anywhere))
    return _in_parts(groups, graph)


def _computed_anywhere(graph: Graph, uses: Mapping[str, Sequence[Node]]) -> dict[str, Node]:
    """The nodes without inputs that only element-wise ones read, by their values."""
    return {
        node.outputs[0]: node
        for node in graph.nodes
        if not node.inputs
        and node.outputs[0] not in graph.ends
        and all(map(_is_elementwise, uses.get(node.outputs[0], ())))
    }


def _converted_by_loads(
    graph: Graph, uses: Mapping[str, Sequence[Node]]
) -> dict[str, tuple[Node, ...]]:
    """Of values: the conversions of small floats to their compute types that kernels alone read."""
    found: dict[str, tuple[Node, ...]] = {}
    for node in graph.nodes:
        if node.op != "cast" or node.outputs[0] in graph.ends:
            continue
        (source,), (made,) = node.inputs, node.outputs
        given = graph.types[source].dtype
        widened = given.is_small_float and graph.types[made].dtype is given.compute
        readers = uses.get(made, ())
        if widened and readers and all(map(_loads, readers)):
            found[source] = (*found.get(source, ()), node)
    return found


def _loads(node: Node) -> bool:
    """Whether a kernel computes the node from what it loads: a movement may need no kernel."""
    return lookup(node.op).kind in ("elementwise", "broadcast", "reduction", "heavy")


def group_graph(graph: Graph, group: Group) -> Graph:
    """The group as a network of its own; its params are inputs too, after the activations."""
    values = (*group.inputs, *group.params, *(v for node in group.nodes for v in node.outputs))
    return Graph(
        name=group.name,
        inputs=(*group.inputs, *group.params),
        outputs=group.outputs,
        nodes=group.nodes,
        types={value: graph.types[value] for value in values},
        values={value: graph.values[value] for value in group.inputs if value in graph.values},
    )


def group_renamed(group: Group, names: Mapping[str, str]) -> Group:
    """The group with other names of some of its values."""

    def new(values: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(value, value) for value in values)

    return replace(
        group,
        nodes=tuple(node_renamed(node, names) for node in group.nodes),
        inputs=new(group.inputs),
        params=new(group.params),
        outputs=new(group.outputs),
    )


def runs_aside(node: Node) -> bool:
    """Whether no kernel of the device computes the node."""
    return lookup(node.op).kind in (HOST, OFFLOADED)


def _in_parts(groups: Iterable[Group], graph: Graph) -> tuple[Group, ...]:
    """In turns all that the device can do and all that others can then do, and in each of them in
    turns what needs no more loops and the loops, which so lie side by side; else their order.

    What depends on a count comes behind the step that finds it.
    """
    counted = any(size.counted for size in graph.sizes_read)
    found_with = {s: value for s, (value, _) in graph.sizes.items() if s.counted} if counted else {}
    turns: dict[str, tuple[int, int]] = {}  # of each value: odd ones are others', or loops'
    found: list[tuple[tuple[int, int], Group]] = []
    for group in groups:
        counts = counts_of(_extents(group, graph)) if counted else ()
        read = [*group.inputs, *(found_with[size] for size in counts)]
        turn, loops = max((turns.get(value, (0, 0)) for value in read), default=(0, 0))
        if group.kind != ALIAS and turn % 2 != group.aside:
            turn, loops = turn + 1, 0
        if group.kind != ALIAS and loops % 2 != (group.kind == SCAN):
            loops += 1
        made = (value for node in group.nodes for value in node.outputs)
        turns.update(dict.fromkeys(made, (turn, loops)))
        found.append(((turn, loops), group))
    return tuple(group for _, group in sorted(found, key=lambda entry: entry[0]))


def _extents(group: Group, graph: Graph) -> Iterator[int]:
    """The extents that a group's steps depend on; of a host step none: it finds them."""
    for node in group.nodes if group.kind != HOST else ():
        for value in node.attrs.values():
            row = value if isinstance(value, tuple) else (value,)
            yield from (each for each in row if isinstance(each, Dim))
        yield from (extent for value in node.outputs for extent in graph.types[value].shape)


def _reshapes_early(graph: Graph) -> list[Node]:
    """The nodes, each reshape as soon as there is what it reshapes: operands are ready then."""
    waiting: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if node.op == "reshape":
            waiting.setdefault(node.inputs[0], []).append(node)
    found: list[Node] = []
    made = [*graph.inputs, *graph.constants]  # of which reshapes are put first
    for node in (None, *graph.nodes):
        if node is not None and node.op != "reshape":
            found.append(node)
            made = [*node.outputs]
        while made:
            reshapes = waiting.pop(made.pop(0), [])
            found += reshapes
            made = [value for reshape in reshapes for value in reshape.outputs] + made
    return found


def _takes_epilogue(node: Node) -> bool:
    kind = lookup(node.op).kind
    return kind in ("heavy", "reduction") or _is_elementwise(node)


def _epilogue(around: _Surroundings, first: Node) -> list[Node]:
    """The element-wise nodes that may follow `first` on its registers.

    A value that several of them read stays there too: `x * sigmoid(x)` follows what makes x. They
    end where one value is left that anybody else reads. What they read beside it may be made by
    another product, which says that it may be beside the first one.
    """
    graph = around.graph
    shape = graph.types[first.outputs[0]].shape

    def fits(node: Node) -> bool:
        return _is_elementwise(node) and always_same(graph.types[node.outputs[0]].shape, shape)

    def makes(node: Node) -> bool:
        alike = {**first.attrs, BESIDE: 1} == node.attrs and node.op == first.op
        types = [[graph.types[v] for v in product.inputs] for product in (first, node)]
        return fits(node) or (alike and types[0] == types[1])

    return _behind(around, first, fits, fits, makes)


def _over_rows(around: _Surroundings, first: Node) -> list[Node]:
    """The nodes that may follow `first` row by row, of which one at least goes along the rows.

    They make rows again at their end; between are also numbers of which each row has one.
    """
    graph = around.graph
    shape = graph.types[(first.outputs if _is_elementwise(first) else first.inputs)[0]].shape
    if not shape or (not _is_elementwise(first) and not _goes_along_rows(graph, first, shape)):
        return []

    def fits(node: Node) -> bool:
        made = graph.types[node.outputs[0]].shape
        own = _is_elementwise(node) and _is_of_rows(made, shape)
        return own or _goes_along_rows(graph, node, shape)

    def ends(node: Node) -> bool:
        return always_same(graph.types[node.outputs[0]].shape, shape)

    found = _behind(around, first, fits, ends)
    return found if any(not _is_elementwise(node) for node in (first, *found)) else []


def _laid_out(around: _Surroundings, nodes: Sequence[Node]) -> list[Node]:
    """The pads and transposes behind element-wise nodes that read the network's inputs alone.

    An image comes so into the type, the channels and the order that a network computes with: by
    one kernel where launches are dear.
    """
    graph, uses, moves = around.graph, around.uses, around.moves
    own = {value for node in nodes for value in node.outputs}
    read = {v for node in nodes for v in node.inputs if v} - own - graph.constants.keys()
    if not read <= around.given or not all(map(_is_elementwise, nodes)):
        return []
    found: list[Node] = []
    value = nodes[-1].outputs[0]
    while value not in graph.ends and len(readers := uses.get(value, ())) == 1:
        (node,) = readers
        if node.op not in _LAYING_OUT or node.outputs[0] in moves.taken or moves.before(node):
            break
        found.append(node)
        value = node.outputs[0]
    return found


def _computes(around: _Surroundings, nodes: Sequence[Node]) -> Node | None:
    """The convolution that may compute element-wise nodes as it reads them, if it alone does.

    A device with local memory does so where it copies data there. Bytes are copied by words.
    """
    if not all(map(_is_elementwise, nodes)):
        return None
    graph, value = around.graph, nodes[-1].outputs[0]
    readers = around.uses.get(value, ())
    if value in graph.ends or len(readers) != 1 or graph.types[value].dtype != FLOAT32:
        return None
    (reader,) = readers
    positions = [position for position, read in enumerate(reader.inputs) if read == value]
    return reader if reader.op in _CONVOLUTIONS and positions == [0] else None


def _goes_along_rows(graph: Graph, node: Node, shape: tuple[int, ...]) -> bool:
    """Whether the node is a reduction over the last axis of data of that shape."""
    if lookup(node.op).kind != "reduction" or not always_same(
        graph.types[node.inputs[0]].shape, shape
    ):
        return False
    along = node.attrs.get("axes", (node.attrs.get("axis"),))
    made = graph.types[node.outputs[0]].shape
    return along == (len(shape) - 1,) and _is_of_rows(made, shape)


def _is_of_rows(made: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether these are rows of that shape, or one element for each of them."""
    return always_same(made, shape) or always_same(made, (*shape[:-1], 1))


def _behind(
    around: _Surroundings,
    first: Node,
    fits: Callable[[Node], bool],
    ends: Callable[[Node], bool],
    makes: Callable[[Node], bool] | None = None,
) -> list[Node]:
    """The most nodes behind `first` that fit, each of which reads what is there, up to one that may
    end them and whose value alone anybody else reads."""
    uses, taken, whole = around.uses, [first], 1
    read = {value for value in first.inputs if value}
    unread: dict[str, int] = {}  # readers that are not taken, of each value that is made
    leaving: set[str] = set()  # values that anybody else reads
    waiting: deque[Node] = deque()

    def take(value: str) -> None:
        unread[value] = len(uses.get(value, ()))
        if unread[value] or value in around.graph.ends:
            leaving.add(value)
        waiting.extend(uses.get(value, ()))

    take(first.outputs[0])
    while waiting and len(taken) <= MOST_NODES:
        node = waiting.popleft()
        if node.outputs[0] in unread or not fits(node):
            continue
        beside = _beside(around, node, unread, makes or fits)
        if beside is None or len(taken) + len(beside) > MOST_NODES:
            continue
        own = {*unread, *(member.outputs[0] for member in beside)}
        read.update(v for member in (*beside, node) for v in member.inputs if v and v not in own)
        if len(read) > MOST_READ:
            break
        for member in (*beside, node):
            for value in unread.keys() & set(member.inputs):
                unread[value] -= 1
                if not unread[value] and value not in around.graph.ends:
                    leaving.discard(value)
            taken.append(member)
            take(member.outputs[0])
        ended = ends(node) and node.outputs[0] not in around.loaded  # its readers convert
        if ended and leaving <= {node.outputs[0]}:
            whole = len(taken)
    return taken[1:whole]


def _beside(
    around: _Surroundings, node: Node, made: Collection[str], fits: Callable[[Node], bool]
) -> list[Node] | None:
    """The nodes, in order, that make what `node` reads beside the values made and what is there.

    Nobody else reads their values. None if there are none that do and fit.
    """
    found: dict[int, Node] = {}
    own, wanted = {node.outputs[0]}, [*node.inputs]
    while wanted:
        value = wanted.pop()
        if value in made or value in around.done or value in own:
            continue
        if value not in around.makers or value in around.graph.ends:
            return None
        number, maker = around.makers[value]
        alone = all(reader.outputs[0] in own for reader in around.uses[value])
        if not (alone and fits(maker)) or len(found) == MOST_NODES:
            return None
        found[number] = maker
        own.add(value)
        wanted += maker.inputs
    return [found[number] for number in sorted(found)]


def _numbered(graph: Graph) -> dict[str, tuple[int, Node]]:
    """The maker of each value, and its number."""
    return {v: (number, node) for number, node in enumerate(graph.nodes) for v in node.outputs}


def _is_elementwise(node: Node) -> bool:
    return lookup(node.op).kind in ("elementwise", "broadcast", "table")


def _main(nodes: Sequence[Node]) -> Node:
    """The first node that does more than move data; the last where none does."""
    return next((node for node in nodes if lookup(node.op).kind != "injective"), nodes[-1])


def _heavy(nodes: Sequence[Node]) -> Node | None:
    """The node whose operands serve several results, if there is one."""
    return next((node for node in nodes if lookup(node.op).kind == "heavy"), None)


def _anchor(nodes: Sequence[Node]) -> Node:
    """The node that names the kind of its group: the first that is more than element-wise."""
    main = _main(nodes)
    if not _is_elementwise(main):
        return main
    if found := _heavy(nodes):
        return found
    return next((node for node in nodes if not _is_elementwise(node)), nodes[0])


def _group(
    around: _Surroundings, nodes: list[Node], kind: str, index: int, anywhere: Mapping[str, Node]
) -> Group:
    graph, name = around.graph, _name(nodes[nodes.index(_main(nodes)) :], index)
    own = {value for node in nodes for value in node.outputs}
    loaded = _ordered(v for n in nodes for v in n.inputs if v in around.loaded and v not in own)
    found = _ordered(v for node in nodes for v in node.inputs if v in anywhere)
    conversions = [around.loaded[value] for value in loaded]
    nodes = [*conversions, *(anywhere[value] for value in found), *nodes]
    made = {value for node in nodes for value in node.outputs}
    read = _ordered(v for node in nodes for v in node.inputs if v and v not in made)
    return Group(
        name=name,
        kind=kind,
        nodes=tuple(nodes),
        inputs=tuple(v for v in read if v not in graph.constants),
        params=tuple(v for v in read if v in graph.constants),
        outputs=nodes[-1].outputs,
        conversions=len(conversions),
    )


def _kind(first: Node, graph: Graph, fixed: set[str]) -> str:
    """A reshape is a copy only where both its ends are memory of the caller, or of a constant:
    its shape depends on sizes then."""
    if first.op == "reshape":
        source, made = first.inputs[0], first.outputs[0]
        if source in graph.constants:
            return first.op
        taken = source in fixed or source in graph.ends
        return first.op if taken and made in graph.ends else ALIAS
    if _is_elementwise(first):
        return "elementwise"
    return first.op


def _ordered(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def _name(nodes: list[Node], index: int) -> str:
    ops = [node.op for node in nodes]
    if len(ops) > _NAMED_OPS:
        ops = [*ops[:_NAMED_OPS], "etc"]
    return re.sub(r"\W", "_", "_".join([*ops, str(index)]))

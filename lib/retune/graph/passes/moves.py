"""Movements that a product of matrices takes in: it reads, and writes, data where it lies.

A head of attention is columns of a wider array, read row by row; a transposed product is the same
product, stored in another order. So neither needs a kernel of its own. Of movements that no product
takes in, those that follow each other are one, and rotations, copies and conversions of what a
state gets take theirs in. Read `find_moves`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retune.core.dims import always_same
from retune.graph.graph import Graph, Node
from retune.ops.registry import ints
from retune.ops.shapes import same_but_ones

_PRODUCTS = ("matmul", "dense", "attention")
_MOVES = ("slice", "transpose")
_READERS = (*_MOVES, "rotate", "identity")
"""What reads each element from wherever it lies."""
_READ_THROUGH = ("reshape", "rotate")
"""What says to these where elements lie, or computes them as they are read."""


@dataclass(frozen=True, slots=True)
class Moves:
    """The movements of a graph that other nodes take in."""

    chains: Mapping[str, tuple[Node, ...]]
    """Those before each product, or before the last of them, in order, by the value of that."""
    taken: frozenset[str]
    """The values that they make."""
    orders: Mapping[str, Node]
    """The transposes behind products, by the value that they read."""

    def before(self, node: Node) -> tuple[Node, ...]:
        """The movements of what the node reads, in order."""
        return self.chains.get(node.outputs[0], ())

    def behind(self, product: Node, last: Node) -> tuple[Node, ...]:
        """The transpose of what comes of the product, if that can be stored so at once.

        Either its rows come in another order, or rows and columns are swapped, as they do in what
        the product reads: its columns then still lie side by side.
        """
        found = self.orders.get(last.outputs[0])
        if found is None or product.op not in _PRODUCTS:
            return ()
        turned = [n for n in self.before(product) if n.op == "transpose" and not keeps_columns(n)]
        exchanged = product.op == "dense" and len(turned) == 1
        return (found,) if keeps_columns(found) != exchanged else ()


def find_moves(graph: Graph) -> Moves:
    """Slices and transposes that nobody but one node needs, with the reshapes between them.

    Before a product reshapes only add or remove dimensions of one element. Before other readers
    also rotations are among them, which are computed as they are read. Each movement is taken once.
    Columns that are read as they are cut need no movement at all: they are views
    (`search/layout/views.py`).
    """
    uses = graph.uses()
    makers = {value: node for node in graph.nodes for value in node.outputs}

    def chain(value: str, *, joins: bool) -> list[Node]:
        """What moves the value, the last movement first; reshapes of what is there are left out."""
        found: list[Node] = []
        while (
            value in makers
            and (_moves(graph, makers[value]) or (joins and makers[value].op in _READ_THROUGH))
            and _read_once(graph, value, uses)
        ):
            found.append(makers[value])
            value = makers[value].inputs[0]
        while found and found[-1].op == "reshape":
            found.pop()
        return [] if len(found) == 1 and cut_at(found[0], graph) is not None else found

    chains: dict[str, tuple[Node, ...]] = {}
    taken: set[str] = set()
    for node in reversed(graph.nodes):
        joins = node.op in _READERS or _converts_new(node, uses)
        ends = (joins or node.op in _PRODUCTS) and node.outputs[0] not in taken
        if ends and len(set(node.inputs)) == len(node.inputs):
            parts = (reversed(chain(value, joins=joins)) for value in node.inputs)
            moves = tuple(move for part in parts for move in part)
            chains[node.outputs[0]] = moves
            taken.update(value for move in moves for value in move.outputs)
    orders = {
        node.inputs[0]: node
        for node in graph.nodes
        if node.op == "transpose"
        and node.outputs[0] not in taken
        and _read_once(graph, node.inputs[0], uses)
    }
    return Moves(chains, frozenset(taken), orders)


def _converts_new(node: Node, uses: Mapping[str, Sequence[Node]]) -> bool:
    """Whether the node converts what is new of a state: a copy of it otherwise."""
    readers = uses.get(node.outputs[0], ())
    return node.op == "cast" and bool(readers) and all(each.op == "append" for each in readers)


def _read_once(graph: Graph, value: str, uses: Mapping[str, Sequence[Node]]) -> bool:
    return len(uses.get(value, ())) == 1 and value not in graph.ends


def _moves(graph: Graph, node: Node) -> bool:
    """Whether the node only says where elements lie."""
    if node.op == "reshape":
        before, after = (graph.types[v].shape for v in (node.inputs[0], node.outputs[0]))
        return same_but_ones(before, after)
    return node.op in _MOVES


def cut_at(node: Node, graph: Graph) -> int | None:
    """First column of a slice that takes whole rows of some columns; None for any other node."""
    if node.op != "slice":
        return None
    shape = graph.types[node.inputs[0]].shape
    begins, extents, steps = (ints(node.attrs, key) for key in ("begins", "extents", "steps"))
    if (
        not shape
        or not always_same(extents[:-1], shape[:-1])
        or any(steps[d] != 1 for d in range(len(shape)))
    ):
        return None
    return begins[-1]


def keeps_columns(node: Node) -> bool:
    """Whether a transpose puts rows in another order, and nothing else."""
    perm = ints(node.attrs, "perm")
    return len(perm) > 1 and perm[-1] == len(perm) - 1

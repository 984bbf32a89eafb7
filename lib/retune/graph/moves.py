"""Movements that a product of matrices takes in: it reads, and writes, data where it lies.

A head of attention is columns of a wider array, read row by row; a transposed product is the same
product, stored in another order. So neither needs a kernel of its own. Read `find_moves`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retune.graph.graph import Graph, Node
from retune.graph.ops.registry import ints

_PRODUCTS = ("matmul", "dense")


@dataclass(frozen=True, slots=True)
class Moves:
    """The movements of a graph that products take in."""

    chains: Mapping[str, tuple[Node, ...]]
    """Those before each product, in order, by the product's value."""
    taken: frozenset[str]
    """The values that they make."""
    orders: Mapping[str, Node]
    """The transposes behind products, by the value that they read."""

    def before(self, node: Node) -> tuple[Node, ...]:
        """The movements of what the node reads, in order."""
        return self.chains.get(node.outputs[0], ())

    def behind(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        """The transpose of what these nodes make, if their product can store it so."""
        last = self.orders.get(nodes[-1].outputs[0])
        return (last,) if last is not None and nodes[0].op == "matmul" else ()


def find_moves(graph: Graph) -> Moves:
    """Slices and transposes that nobody but one product needs, with the reshapes between them.

    Reshapes only add or remove dimensions of one element. Each movement is taken once. Columns that
    a product reads as they are cut need no movement at all: they are views (`bundle/views.py`).
    """
    uses = graph.uses()
    makers = {value: node for node in graph.nodes for value in node.outputs}

    def chain(value: str) -> list[Node]:
        """What moves the value, the last movement first; reshapes of what is there are left out."""
        found: list[Node] = []
        while value in makers and _moves(graph, makers[value]) and _read_once(graph, value, uses):
            found.append(makers[value])
            value = makers[value].inputs[0]
        while found and found[-1].op == "reshape":
            found.pop()
        return [] if len(found) == 1 and _cuts_columns(graph, found[0]) else found

    chains = {
        node.outputs[0]: tuple(move for value in node.inputs for move in reversed(chain(value)))
        for node in graph.nodes
        if node.op in _PRODUCTS and len(set(node.inputs)) == len(node.inputs)
    }
    taken = frozenset(value for moves in chains.values() for n in moves for value in n.outputs)
    orders = {
        node.inputs[0]: node
        for node in graph.nodes
        if node.outputs[0] not in taken
        and _keeps_columns(node)
        and _read_once(graph, node.inputs[0], uses)
    }
    return Moves(chains, taken, orders)


def _read_once(graph: Graph, value: str, uses: Mapping[str, Sequence[Node]]) -> bool:
    return len(uses.get(value, ())) == 1 and value not in graph.outputs


def _moves(graph: Graph, node: Node) -> bool:
    """Whether the node only says where elements lie."""
    if node.op == "reshape":
        before, after = (graph.types[v].shape for v in (node.inputs[0], node.outputs[0]))
        return [n for n in before if n != 1] == [n for n in after if n != 1]
    return node.op in ("slice", "transpose")


def _cuts_columns(graph: Graph, node: Node) -> bool:
    """Whether the node takes neighbouring columns of all rows."""
    if node.op != "slice":
        return False
    shape = graph.types[node.inputs[0]].shape
    extents, steps = ints(node.attrs, "extents"), ints(node.attrs, "steps")
    return extents[:-1] == shape[:-1] and all(step == 1 for step in steps)


def _keeps_columns(node: Node) -> bool:
    """Whether the node puts rows in another order, and nothing else."""
    if node.op != "transpose":
        return False
    perm = ints(node.attrs, "perm")
    return len(perm) > 1 and perm[-1] == len(perm) - 1

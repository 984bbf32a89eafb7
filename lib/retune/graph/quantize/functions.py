"""Functions of one value, element by element, as tables of 256 elements.

Read `Finder.follow` and `table`. An activation is one such function however it is written: x *
sigmoid(x) is two nodes, and one table.
"""

from collections.abc import Container, Mapping, Sequence

import numpy as np

from retune.graph.graph import Graph, Node
from retune.graph.quantize.arithmetic import QuantParams
from retune.ops import Array, lookup

_LINEAR = ("add", "multiply")
"""With a constant, these are computed by rescaling, which is quicker than a table."""


class Finder:
    """Finds the functions of a graph. Nodes whose outputs are in `skipped` are part of none."""

    def __init__(self, graph: Graph, skipped: Container[str], apart: Container[str]) -> None:
        self._graph, self._skipped, self._apart = graph, skipped, apart
        self._uses = graph.uses()

    def follow(self, first: Node, value: str) -> tuple[Node, ...]:
        """The most nodes from `first` on that are one function of the value, in order.

        Only what the last makes is read by others, or is quantized on its own (`apart`). None for
        sums and products with constants alone.
        """
        inside, taken, whole = {value}, list[Node](), 0
        waiting = [first]
        while waiting:
            node = waiting.pop(0)
            if node in taken or not self._fits(node, value, inside):
                continue
            taken.append(node)
            if self._one_leaves(taken):
                whole = len(taken)
            if node.outputs[0] not in self._apart:
                inside.update(node.outputs)
                waiting += self._uses.get(node.outputs[0], ())
        found = tuple(taken[:whole])
        return found if any(not self._is_linear(node) for node in found) else ()

    def _fits(self, node: Node, value: str, inside: Container[str]) -> bool:
        types = self._graph.types
        plain = lookup(node.op).kind in ("elementwise", "broadcast") and "axis" not in node.attrs
        if not plain or types[node.outputs[0]] != types[value] or node.outputs[0] in self._skipped:
            return False
        return all(v in inside or self._is_number(v) for v in node.inputs)

    def _is_number(self, value: str) -> bool:
        return value in self._graph.constants and self._graph.constants[value].size == 1

    def _is_linear(self, node: Node) -> bool:
        return node.op in _LINEAR and any(map(self._is_number, node.inputs))

    def _one_leaves(self, taken: Sequence[Node]) -> bool:
        inner = [node.outputs[0] for node in taken[:-1]]
        read = (reader in taken for v in inner for reader in self._uses.get(v, ()))
        return not self._graph.ends.intersection(inner) and all(read)


def table(
    nodes: Sequence[Node], value: str, constants: Mapping[str, Array], params: QuantParams
) -> Array:
    """What the nodes make of each quantized value, the lowest first. float32 [256]

    Where the function is not defined it is 0: the float network has no number there either.
    """
    low, high = params.limits
    whole = np.arange(low, high + 1, dtype=np.int32) - np.int32(params.zero)
    known = {value: whole.astype(np.float32) * np.float32(params.scale)}
    for node in nodes:
        read = [known[v] if v in known else constants[v].reshape(-1) for v in node.inputs]
        (known[node.outputs[0]],) = lookup(node.op).reference(read, node.attrs)
    return np.nan_to_num(known[nodes[-1].outputs[0]], nan=0.0)

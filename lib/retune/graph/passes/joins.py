"""Ops that put values side by side along the last axis, or cut columns out of one."""

from itertools import accumulate

from retune.graph.fuse import Group
from retune.graph.graph import Graph, Node
from retune.graph.passes.moves import cut_at


def starts(node: Node, graph: Graph) -> list[int]:
    """First column of each input of a concatenation along the last axis."""
    widths = (graph.types[value].shape[-1] for value in node.inputs)
    return list(accumulate(widths, initial=0))[:-1]


def joins_columns(node: Node, graph: Graph) -> bool:
    """Whether the node is a concatenation along the last axis."""
    rank = len(graph.types[node.outputs[0]].shape)
    return node.op == "concat" and node.attrs["axis"] == rank - 1


def inclusions(node: Node, graph: Graph) -> list[tuple[str, str, int]]:
    """The value, the wider one whose columns it equals, and the first of these columns.

    One for each input of a concatenation along the last axis, one for a slice of whole rows; none
    for any other node.
    """
    if joins_columns(node, graph):
        parts = zip(node.inputs, starts(node, graph), strict=True)
        return [(value, node.outputs[0], first) for value, first in parts]
    first = cut_at(node, graph)
    return [] if first is None else [(node.outputs[0], node.inputs[0], first)]


def inclusions_of(group: Group, graph: Graph) -> list[tuple[str, str, int]]:
    """Those of a group that does nothing else; none for any other.

    A slice of what the same group moves first is cut from no value that is there.
    """
    return inclusions(group.anchor, graph) if len(group.nodes) == 1 else []

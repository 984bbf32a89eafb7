"""Common sub-expressions: equal nodes are computed once.

Exporters repeat masks, positions and rows of rotation tables in each layer. Read `share_equal`.
"""

from dataclasses import replace

from retune.graph.graph import Graph, Node, without_dead
from retune.graph.rewrite import node_renamed
from retune.ops.registry import SEVERAL_OUTPUTS, lookup

_MOVES = frozenset({"reshape", "transpose", "slice", "broadcast_to"})
"""Each reader has its own: it may read in place, where it would wait for a shared copy."""
_MOST_BYTES = 1 << 12
"""Of constants that are compared: large ones are weights."""


def share_equal(graph: Graph) -> Graph:
    """f(x), f(x) -> one f(x), also where x is a constant of the same small contents."""
    same = _equal_constants(graph)
    first: dict[tuple[str, ...], str] = {}
    names: dict[str, str] = {}
    kept: list[Node] = []
    for old in graph.nodes:
        node = node_renamed(old, names)
        kept.append(node)
        if lookup(node.op).kind in SEVERAL_OUTPUTS:
            continue
        (made,) = node.outputs
        found = first.setdefault(_key(node_renamed(node, same)), made)
        same[made] = found
        if found != made and node.op not in _MOVES and made not in graph.ends:
            names[made] = found
            kept.pop()
    return without_dead(replace(graph, nodes=tuple(kept))) if names else graph


def _key(node: Node) -> tuple[str, ...]:
    """What nodes of equal results have in common. Texts: extents that are sizes do not compare."""
    attrs = (f"{key}={node.attrs[key]!r}" for key in sorted(node.attrs))
    return (node.op, *node.inputs, "", *attrs)


def _equal_constants(graph: Graph) -> dict[str, str]:
    """Small constants -> the first one of their type and contents."""
    first: dict[tuple[str, bytes], str] = {}
    return {
        name: first.setdefault((str(graph.types[name]), array.tobytes()), name)
        for name, array in graph.constants.items()
        if array.nbytes <= _MOST_BYTES
    }

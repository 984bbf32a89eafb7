"""Inputs of a graph that hold indices, and the number of values that they may have.

Random indices have to be valid, and those into a table of weights should reach all of it, as those
of a user do. Other inputs may have any value.
"""

from collections.abc import Mapping

from retune.core.dims import counts_of, least, never_above
from retune.graph.graph import Graph, Node
from retune.ops.registry import integer, lookup
from retune.ops.trees import FEATURE

_MOVES: Mapping[str, tuple[int, ...]] = {
    "identity": (0,),
    "cast": (0,),
    "reshape": (0,),
    "transpose": (0,),
    "slice": (0,),
    "broadcast_to": (0,),
    "gather": (0,),
    "gather_elements": (0,),
    "where": (1, 2),
}
"""Op -> the operands whose elements it passes on as they are."""

_WHOLE = ("identity", "cast", "reshape", "transpose", "broadcast_to", "concat")
"""Ops that pass on each element of what they read."""
_GATHERS = ("gather", "gather_elements", "gather_blocks")
"""Ops whose second operand holds indices of the first one."""
_DIVISIONS = ("divide", "mod", "fmod")
"""Ops whose second operand divides."""
_CAREFUL = 2
"""Values of an integer that other arithmetic makes an index of, or that an op reads about which
nothing is known: 0 and 1 are in range nearly always, if the index has as many."""


def index_counts(graph: Graph) -> dict[str, int]:
    """Input of whole numbers -> how many values it may have, from 0 on; only those of indices.

    At least 1 each, even where there is nothing to be indexed; as many as all sizes allow.
    """
    counts: dict[str, int] = {}
    for node in reversed(graph.nodes):
        for value, count in _demands(graph, node, counts):
            fewest = least(count)
            counts[value] = max(1, min(fewest, counts.get(value, fewest)))
    dtypes = {name: graph.types[name].dtype for name in graph.inputs if name in counts}
    return {
        name: min(counts[name], dtype.limits[1] + 1)
        for name, dtype in dtypes.items()
        if not dtype.is_float
    }


def index_extents(graph: Graph) -> dict[str, int]:
    """Input of integers -> the extent of an axis of which each of its elements is an index.

    The least extent where there are several, as far as sizes tell which one that is. Elements that
    are computed with, or read in part, are not looked at, nor extents that a run finds.
    """
    found: dict[str, int] = {}

    def demand(value: str, extent: int) -> None:
        if counts_of([extent]):
            return
        if value not in found or not never_above(found[value], extent):
            found[value] = extent

    for node in reversed(graph.nodes):
        if node.op in _GATHERS:
            demand(node.inputs[1], _table_extent(graph, node))
        elif node.op in _WHOLE and node.outputs[0] in found:
            for value in node.inputs:
                demand(value, found[node.outputs[0]])
    return {
        n: e for n, e in found.items() if n in graph.inputs and not graph.types[n].dtype.is_float
    }


def _table_extent(graph: Graph, node: Node) -> int:
    """Elements of a table along the axis that is indexed; several of them lie in a packed byte."""
    shape, axis = graph.types[node.inputs[0]].shape, integer(node.attrs, "axis")
    packed = node.op == "gather_blocks" and axis == len(shape) - 1
    return shape[axis] * (8 // integer(node.attrs, "bits")) if packed else shape[axis]


def _of_trees(graph: Graph, node: Node) -> list[tuple[str, int]]:
    """Splits name features of the data, children and roots name nodes."""
    data, splits, _, children, roots = node.inputs
    nodes = graph.types[splits].shape[0]
    return [(splits, FEATURE * graph.types[data].shape[1]), (children, nodes), (roots, nodes)]


def least_values(graph: Graph) -> dict[str, int]:
    """Input of integers -> its least value: 1 for divisors, which are never 0."""
    divisors: set[str] = set()
    for node in reversed(graph.nodes):
        if node.op in _DIVISIONS:
            divisors.add(node.inputs[1])
        if node.op in _MOVES and divisors.intersection(node.outputs):
            divisors.update(node.inputs[i] for i in _MOVES[node.op])
    return {n: 1 for n in graph.inputs if n in divisors and not graph.types[n].dtype.is_float}


def _demands(graph: Graph, node: Node, counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """What the node demands of the values that it reads."""
    found: list[tuple[str, int]] = []
    match node.op:
        case op if op in _GATHERS:
            found.append((node.inputs[1], _table_extent(graph, node)))
        case "last_writers":
            found.append((node.inputs[0], integer(node.attrs, "places")))
        case "fold_rows":
            found.append((node.inputs[1], graph.types[node.inputs[0]].shape[1]))
        case "leaf_sums":
            found.append((node.inputs[0], graph.types[node.inputs[1]].shape[0]))
        case "tree_leaves":
            return _of_trees(graph, node)
        case "tree_exits":
            axis = 1 if node.attrs["columns"] else 2
            return [(node.inputs[1], graph.types[node.inputs[0]].shape[axis])]
        case "lookup_codes":
            return [(node.inputs[0], graph.types[node.inputs[1]].shape[0])]
        case _:
            pass
    if isinstance(body := node.attrs.get("body"), Graph):
        inner = index_counts(body)
        pairs = zip(node.inputs, body.inputs, strict=True)
        return [(value, inner[own]) for value, own in pairs if own in inner]
    if lookup(node.op).kind == "host":
        return [(value, _CAREFUL) for value in node.inputs if value]
    wanted = [counts[value] for value in node.outputs if value in counts]
    if not wanted:
        return found
    if node.op == "concat":
        return [(value, min(wanted)) for value in node.inputs]
    if node.op in _MOVES:
        return found + [(node.inputs[i], min(wanted)) for i in _MOVES[node.op]]
    return found + [(value, min(_CAREFUL, *wanted)) for value in node.inputs if value]

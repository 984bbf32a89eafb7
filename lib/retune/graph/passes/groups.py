"""Norms over groups of channels keep sight of the channels and the pixels.

Exporters write a group norm as a norm over rows: each group is put into one, whatever its order.
With channels and pixels as dimensions of their own, images may keep their channels at the end, and
nothing is transposed for the norm.
"""

from math import prod

from retune.core.dims import always_equal
from retune.graph.graph import Graph, Node
from retune.graph.passes.simplify import merge_reshapes
from retune.graph.rewrite import GraphRewriter, rebuild
from retune.ops.registry import ints

_ROWS = (2,)
"""What a norm over groups as rows is over: [N, groups, elements of a group]."""


def groups_of_channels(graph: Graph) -> Graph:
    """standardise(rows(x)) -> rows(standardise(parts(x))).

    rows: [N, C, H, W] -> [N, G, C / G * H * W], and parts: -> [N, G, C / G, H, W] are reshapes.
    """
    return rebuild(rebuild(graph, _standardise), merge_reshapes)


def _standardise(r: GraphRewriter, node: Node) -> str | None:
    rows = r.producer(node.inputs[0]) if node.op == "standardise" else None
    if rows is None or rows.op != "reshape" or ints(node.attrs, "axes") != _ROWS:
        return None
    image, made = r.shape(rows.inputs[0]), r.shape(node.inputs[0])
    if len(image) < 3 or len(made) != 3 or not always_equal(image[0], made[0]):
        return None
    if image[1] % made[1]:
        return None
    parts = (*made[:2], image[1] // made[1], *image[2:])
    apart = r.emit("reshape", rows.inputs, {"shape": parts})
    over = tuple(range(2, len(parts)))
    normal = r.emit("standardise", (apart,), {**node.attrs, "axes": over})
    assert made[2] == prod(parts[2:]), "a reshape keeps the number of elements"
    return r.emit("reshape", (normal,), {"shape": made}, node.outputs[0])

"""Regions of feature maps, and what windows cost there in NCHW.

A region is what shares one order of dimensions: layers over windows of feature maps, and what
stands between them. Where its windows read few elements, kernels in NCHW take less time than the
transposes at its ends: a pool by itself, say.
"""

from collections.abc import Callable, Iterable
from math import inf, prod

from retune.core.dims import example
from retune.graph.graph import Graph, Node
from retune.ops.registry import integer, ints

_VECTOR = 8
"""Elements that are computed side by side."""
_IN_ROW, _APART, _IN_PIXEL = 0.16, 0.6, 0.1
"""What an element of a window takes, as a part of what a transpose takes for an element: in NCHW,
where windows that start side by side share vectors; where they do not, so that shuffles make the
vectors; and in NHWC. Measured on forty pools and convolutions of one layer each (Zen 4)."""
_GROUPED = ("conv2d", "conv3d")
_POOLS = ("max_pool2d", "max_pool2d_index", "avg_pool2d", "max_pool3d", "avg_pool3d")
_WHOLE = ("global_avg_pool", "global_max_pool")
_WINDOWS = frozenset((*_GROUPED, "depthwise_conv2d", *_POOLS, *_WHOLE))


def regions(graph: Graph, follows: Callable[[Node], bool]) -> list[frozenset[str]]:
    """The outputs of the nodes of each region that has windows, in the graph's order.

    `follows` tells nodes that compute in the order of what they read.
    """
    found: list[set[str]] = []
    of: dict[str, set[str]] = {}
    for node in filter(follows, graph.nodes):
        read = {id(of[value]): of[value] for value in node.inputs if value in of}
        region = max(read.values(), key=len, default=set[str]())
        if not read:
            found.append(region)
        for other in read.values():
            if other is not region:
                region |= other
                of.update(dict.fromkeys(other, region))
                other.clear()
        region.update(node.outputs)
        of.update(dict.fromkeys(node.outputs, region))
    windows = {node.outputs[0] for node in graph.nodes if node.op in _WINDOWS}
    return [frozenset(region) for region in found if region & windows]


def window_cost(graph: Graph, region: frozenset[str]) -> float:
    """What its windows take in NCHW beyond NHWC, in transposed elements."""
    layers = (node for node in graph.nodes if node.outputs[0] in region and node.op in _WINDOWS)
    return sum(_layer_cost(graph, node) for node in layers)


def transposed_elements(graph: Graph) -> int:
    """Elements that the graph's transposes move, those of constants left out."""
    known, total = set(graph.constants), 0
    for node in graph.nodes:
        if known.issuperset(filter(None, node.inputs)):
            known.update(node.outputs)
        elif node.op == "transpose":
            total += _elements(graph, node.outputs)
    return total


def _layer_cost(graph: Graph, node: Node) -> float:
    """The time of a layer in NCHW less that in NHWC: elements read, by vectors that are full.

    Convolutions over all channels are in NHWC: matrix instructions and Winograd are only there.
    """
    groups = integer(node.attrs, "groups") if node.op in _GROUPED else 1
    if node.op in _GROUPED and groups == 1:
        return inf
    _, channels, *extents = (example(extent) for extent in graph.types[node.outputs[0]].shape)
    window, row = _window(graph, node), extents[-1]
    if node.op in _WHOLE:
        row = prod(window)
    elif node.op in _GROUPED and prod(window[1:]) == 1:
        row = prod(extents)  # rows are read as one
    in_row = _APART if node.op not in _WHOLE and ints(node.attrs, "strides")[-1] > 1 else _IN_ROW
    read = _elements(graph, node.outputs[:1]) * prod(window)
    return read * (in_row / _filled(row) - _IN_PIXEL / _filled(channels // groups))


def _window(graph: Graph, node: Node) -> list[int]:
    """The extents of what one result is made of."""
    if node.op in _WHOLE:
        return [example(extent) for extent in graph.types[node.inputs[0]].shape[2:]]
    if node.op in _POOLS:
        return list(ints(node.attrs, "kernel"))
    return [example(extent) for extent in graph.types[node.inputs[1]].shape[1:]]


def _filled(extent: int) -> float:
    """The part of its vectors that an axis fills."""
    return extent / (_VECTOR * -(-extent // _VECTOR)) if extent else 1.0


def _elements(graph: Graph, values: Iterable[str]) -> int:
    return sum(prod(map(example, graph.types[value].shape)) for value in values)

"""Products of one row with several weights say that one kernel may compute them.

A gated layer of a decoder multiplies its row by two matrices, and one result by a function of the
other. Where kernels wait for each other, as on devices with many units, one that reads both
matrices takes less time than two. Read `products_beside`.
"""

from dataclasses import replace
from math import prod

from retune.core.dims import always_equal
from retune.graph.graph import Graph, Node

BESIDE = "beside"
"""Attribute of a product: a kernel that reads its result may make it, beside that of another
product of the same row (`graph.fuse`)."""
_PRODUCTS = ("dense", "dense_blocks")


def products_beside(graph: Graph) -> Graph:
    """The same graph, where all such products of a row but the first have BESIDE."""
    sources = {n.outputs[0]: n.inputs[0] for n in graph.nodes if n.op == "reshape"}
    first: dict[tuple[str, ...], Node] = {}
    nodes = list(graph.nodes)
    for number, node in enumerate(nodes):
        made = graph.types[node.outputs[0]]
        if node.op not in _PRODUCTS or not always_equal(prod(made.shape[:-1]), 1):
            continue
        row, *weights = node.inputs
        attrs = (f"{key}={node.attrs[key]!r}" for key in sorted(node.attrs))
        types = (str(graph.types[value]) for value in weights)
        if first.setdefault((sources.get(row, row), *types, "", *attrs), node) is not node:
            nodes[number] = replace(node, attrs={**node.attrs, BESIDE: 1})
    return graph if nodes == list(graph.nodes) else replace(graph, nodes=tuple(nodes))

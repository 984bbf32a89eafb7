"""Values without elements: they hold no data, so each of them is a constant."""

import numpy as np

from retune.core.dims import always_empty
from retune.graph.graph import Graph, Node
from retune.graph.rewrite import GraphRewriter, rebuild


def fold_empty(graph: Graph) -> Graph:
    """x without elements -> constant, inputs of the network too; concat(x, y) -> concat(y)."""
    if not any(always_empty(entry.shape) for entry in graph.types.values()):
        return graph
    return rebuild(graph, _empty_result, _empty_operand)


def _empty_result(r: GraphRewriter, node: Node) -> str | None:
    entry = r.old.types[node.outputs[0]]
    if not entry.fixed or entry.elements:
        return None
    return r.store(node.name, np.empty(entry.shape, entry.dtype.numpy))


def _empty_operand(r: GraphRewriter, node: Node) -> str | None:
    empty = {v for v in node.inputs if v and always_empty(r.types[v].shape)}
    if not empty or node.op == "append":  # an empty state stays the network's input
        return None
    if node.op == "concat":
        inputs = tuple(v for v in node.inputs if v not in empty)
    else:
        inputs = tuple(_stored(r, v) if v in empty else v for v in node.inputs)
    return r.emit(node.op, inputs, node.attrs, node.outputs[0])


def _stored(r: GraphRewriter, value: str) -> str:
    if r.constant(value) is not None:
        return value
    entry = r.types[value]
    if not entry.fixed:
        return value
    return r.store(value, np.empty(entry.shape, entry.dtype.numpy))

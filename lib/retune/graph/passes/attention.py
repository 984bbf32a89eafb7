"""Products of attention, and the softmax between them, become one op where a device has it whole.

    p = softmax(scale * (q @ transpose(k)) [+ bias]);  y = p @ v    ->    attention(q, k, v[, bias])

That is done for operands of 16 bits. A constant bias that hides the keys after each query is stated
as `causal`: what is hidden is not computed.
"""

from dataclasses import dataclass

import numpy as np

from retune.core.dims import always_same, is_fixed, least
from retune.core.dtypes import Array
from retune.graph.graph import Graph, Node
from retune.graph.passes.products import free_products
from retune.graph.rewrite import GraphRewriter, rebuild
from retune.ops.registry import AttrValue, integer
from retune.ops.shapes import broadcast_shapes

_HIDDEN = -1e4
"""Of a bias: keys that have no more are not seen."""
_UNIT = 16
"""Elements that rows of operands come in."""
_LEAST_QUERIES = 8
"""Fewer rows are products of vectors, which wait for memory alone."""


def join_attention(graph: Graph) -> Graph:
    """The graph with attention as one op, wherever its operands are of 16 bits."""
    joined = rebuild(graph, _joined)
    return free_products(joined) if len(joined.nodes) < len(graph.nodes) else graph


@dataclass(frozen=True, slots=True)
class _AttentionScores:
    """What is between the product of queries and keys, and the softmax."""

    product: Node
    scale: float
    bias: str
    """'' for none."""


def _joined(r: GraphRewriter, node: Node) -> str | None:
    """matmul(softmax(scale * matmul(q, k) + bias), v) -> attention(q, k turned, v, bias)."""
    if node.op != "matmul" or not r.types[node.inputs[0]].dtype.is_small_float:
        return None
    weights = _source(r, node.inputs[0], "softmax")
    if weights is None or not _is_last(r, weights):
        return None
    scores = _scores(r, weights.inputs[0])
    if scores is None or not _fits(r, scores.product, node):
        return None
    query, turned = scores.product.inputs
    rank = len(r.shape(turned))
    key = r.emit("transpose", (turned,), {"perm": (*range(rank - 2), rank - 1, rank - 2)})
    attrs: dict[str, AttrValue] = {"scale": scores.scale}
    bias = scores.bias
    if bias and _is_causal(r.constant(bias), r.shape(query)[-2], r.shape(turned)[-1]):
        bias, attrs["causal"] = "", 0
    inputs = (query, key, node.inputs[1], *([bias] if bias else []))
    return r.emit("attention", inputs, attrs, node.outputs[0])


def _source(r: GraphRewriter, value: str, op: str) -> Node | None:
    """The node of that op which makes the value, by way of conversions, for one reader alone."""
    made = r.producer(value)
    while made is not None and made.op == "cast" and r.only_use(value):
        value = made.inputs[0]
        made = r.producer(value)
    return made if made is not None and made.op == op and r.only_use(value) else None


def _is_last(r: GraphRewriter, softmax: Node) -> bool:
    return integer(softmax.attrs, "axis") == len(r.shape(softmax.inputs[0])) - 1


def _scores(r: GraphRewriter, value: str) -> _AttentionScores | None:
    """How the argument of a softmax is made; None where it is not the scores of attention."""
    shape, bias, scale = r.shape(value), "", 1.0
    if (added := _source(r, value, "add")) is not None:
        for place, other in ((0, 1), (1, 0)):
            if _product(r, added.inputs[place]) is not None:
                value, bias = added.inputs[place], added.inputs[other]
                break
        else:
            return None
        if not always_same(broadcast_shapes(r.shape(bias), shape), shape):
            return None
    found = _product(r, value)
    if found is None:
        return None
    product, scale = found
    return _AttentionScores(product, scale, bias) if scale > 0 else None


def _product(r: GraphRewriter, value: str) -> tuple[Node, float] | None:
    """A product, and the number that it is multiplied by."""
    if (product := _source(r, value, "matmul")) is not None:
        return product, 1.0
    scaled = _source(r, value, "multiply")
    if scaled is None:
        return None
    factor = r.constant(scaled.inputs[1])
    product = _source(r, scaled.inputs[0], "matmul")
    if factor is None or factor.size != 1 or product is None:
        return None
    return product, float(factor.reshape(-1)[0])


def _fits(r: GraphRewriter, scores: Node, sums: Node) -> bool:
    """Whether both products are of the same heads, and their rows of a length that devices take."""
    (query, turned), value = scores.inputs, sums.inputs[1]
    types = [r.types[v] for v in (query, turned, value)]
    batches = [t.shape[:-2] for t in types]
    widths = (types[0].shape[-1], types[2].shape[-1])
    return (
        len({t.dtype for t in types}) == 1
        and types[0].dtype.is_small_float
        and all(always_same(batch, batches[0]) for batch in batches)
        and all(is_fixed(n) and n % _UNIT == 0 for n in widths)
        and least(types[0].shape[-2]) >= _LEAST_QUERIES
        and not any(v in r.old.constants for v in (query, turned, value))
    )


def _is_causal(bias: Array | None, queries: int, keys: int) -> bool:
    """Whether a constant hides the keys after each query, and nothing else."""
    if bias is None or not is_fixed(queries) or bias.shape[-2:] != (queries, keys):
        return False
    seen = np.tril(np.ones((queries, keys), bool))
    rows = bias.reshape(-1, queries, keys)
    return bool(np.all(rows[:, seen] == 0) and np.all(rows[:, ~seen] <= _HIDDEN))

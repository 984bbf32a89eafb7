"""Products of attention, and the softmax between them, become one op where a device has it whole.

    p = softmax(scale * (q @ transpose(k)) [+ bias]);  y = p @ v    ->    attention(q, k, v[, bias])

That is done for operands of 16 bits, and of TF32. A constant bias that hides the keys after each
query is stated as `causal`: what is hidden is not computed.
"""

from dataclasses import dataclass

import numpy as np

from retune.core.dims import always_same, is_fixed, least
from retune.core.dtypes import Array
from retune.graph.graph import Graph, Node
from retune.graph.passes.products import simplify_products
from retune.graph.rewrite import GraphRewriter, rebuild
from retune.ops.registry import AttrValue, integer
from retune.ops.shapes import broadcast_shapes

_MASKED = -1e4
"""A bias of at most this hides its key."""
_WIDTH_MULTIPLE = 16
"""Elements that rows of operands come in."""
_MIN_QUERIES = 8
"""Fewer rows are products of vectors, which wait for memory alone."""


def fuse_attention(graph: Graph) -> Graph:
    """The graph with attention as one op wherever its products are of 16 bits, or of TF32."""
    fused = rebuild(graph, _fused)
    return simplify_products(fused) if len(fused.nodes) < len(graph.nodes) else graph


@dataclass(frozen=True, slots=True)
class _AttentionScores:
    """What is between the product of queries and keys, and the softmax."""

    product: Node
    scale: float
    bias: str
    """'' for none."""


def _fused(r: GraphRewriter, node: Node) -> str | None:
    """matmul(softmax(scale * matmul(q, k) + bias), v) -> attention(q, k transposed, v, bias)."""
    if node.op != "matmul" or not _is_small(r, node):
        return None
    weights = _producer(r, node.inputs[0], "softmax")
    if weights is None or not _is_over_last_axis(r, weights):
        return None
    scores = _scores(r, weights.inputs[0])
    if scores is None or not _fits(r, scores.product, node):
        return None
    query, transposed = scores.product.inputs
    rank = len(r.shape(transposed))
    key = r.emit("transpose", (transposed,), {"perm": (*range(rank - 2), rank - 1, rank - 2)})
    attrs: dict[str, AttrValue] = {"scale": scores.scale}
    if "operands" in node.attrs:
        attrs["operands"] = node.attrs["operands"]
    bias = scores.bias
    if bias and _is_causal(r.constant(bias), r.shape(query)[-2], r.shape(transposed)[-1]):
        bias, attrs["causal"] = "", 0
    inputs = (query, key, node.inputs[1], *([bias] if bias else []))
    return r.emit("attention", inputs, attrs, node.outputs[0])


def _is_small(r: GraphRewriter, product: Node) -> bool:
    """Whether it multiplies elements of 16 bits, or what is rounded to TF32."""
    return "operands" in product.attrs or r.types[product.inputs[0]].dtype.is_small_float


def _producer(r: GraphRewriter, value: str, op: str) -> Node | None:
    """The node of that op that makes the value, through casts, if the value has one reader."""
    producer = r.producer(value)
    while producer is not None and producer.op == "cast" and r.only_use(value):
        value = producer.inputs[0]
        producer = r.producer(value)
    return producer if producer is not None and producer.op == op and r.only_use(value) else None


def _is_over_last_axis(r: GraphRewriter, softmax: Node) -> bool:
    return integer(softmax.attrs, "axis") == len(r.shape(softmax.inputs[0])) - 1


def _scores(r: GraphRewriter, value: str) -> _AttentionScores | None:
    """How the argument of a softmax is made; None where it is not the scores of attention."""
    shape, bias, scale = r.shape(value), "", 1.0
    if (added := _producer(r, value, "add")) is not None:
        for side, other in ((0, 1), (1, 0)):
            if _product(r, added.inputs[side]) is not None:
                value, bias = added.inputs[side], added.inputs[other]
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
    if (product := _producer(r, value, "matmul")) is not None:
        return product, 1.0
    scaled = _producer(r, value, "multiply")
    if scaled is None:
        return None
    factor = r.constant(scaled.inputs[1])
    product = _producer(r, scaled.inputs[0], "matmul")
    if factor is None or factor.size != 1 or product is None:
        return None
    return product, float(factor.reshape(-1)[0])


def _fits(r: GraphRewriter, scores: Node, product: Node) -> bool:
    """Whether both products are of the same heads, and their rows of a length that devices take."""
    (query, transposed), value = scores.inputs, product.inputs[1]
    types = [r.types[v] for v in (query, transposed, value)]
    batches = [t.shape[:-2] for t in types]
    widths = (types[0].shape[-1], types[2].shape[-1])
    return (
        len({t.dtype for t in types}) == 1
        and _is_small(r, scores)
        and all(always_same(batch, batches[0]) for batch in batches)
        and all(is_fixed(n) and n % _WIDTH_MULTIPLE == 0 for n in widths)
        and least(types[0].shape[-2]) >= _MIN_QUERIES
        and not any(v in r.old.constants for v in (query, transposed, value))
    )


def _is_causal(bias: Array | None, queries: int, keys: int) -> bool:
    """Whether a constant hides the keys after each query, and nothing else."""
    if bias is None or not is_fixed(queries) or bias.shape[-2:] != (queries, keys):
        return False
    visible = np.tril(np.ones((queries, keys), bool))
    rows = bias.reshape(-1, queries, keys)
    return bool(np.all(rows[:, visible] == 0) and np.all(rows[:, ~visible] <= _MASKED))

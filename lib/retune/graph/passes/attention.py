"""Products of attention, and the softmax between them, become one op where a device has it whole.

    p = softmax(scale * (q @ transpose(k)) [+ bias]);  y = p @ v    ->    attention(q, k, v[, bias])

That is done for operands of 16 bits, and of TF32, where a device has instructions for it, and for
operands of any float where few queries share keys that a group of the device holds the scores of: a
decoder's next token. A constant bias that hides the keys after each query is stated as `causal`:
what is hidden is not computed.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from retune.core.dims import always_equal, always_same, is_fixed, least, most
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
MOST_FEW_QUERIES = 8
"""So many rows are products of vectors, which wait for memory alone. One is no axis of a kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionFusion:
    """What attention a device computes as one op."""

    tiles: bool = False
    """Whether it has instructions for products of 16 bits, or of TF32."""
    most_keys: int = 0
    """Of a few queries, whose scores a group of it holds; 0 where it does not compute them so."""

    def __bool__(self) -> bool:
        """Whether there is any."""
        return self.tiles or self.most_keys > 0


def fuse_attention(graph: Graph, fusion: AttentionFusion) -> Graph:
    """The graph with attention as one op wherever the device computes it so."""
    fused = rebuild(graph, partial(_fused, fusion=fusion))
    return simplify_products(fused) if len(fused.nodes) < len(graph.nodes) else graph


@dataclass(frozen=True, slots=True)
class _AttentionScores:
    """What is between the product of queries and keys, and the softmax."""

    product: Node
    scale: float
    bias: str
    """'' for none."""


def _fused(r: GraphRewriter, node: Node, fusion: AttentionFusion) -> str | None:
    """matmul(softmax(scale * matmul(q, k) + bias), v) -> attention(q, k transposed, v, bias)."""
    if node.op != "matmul":
        return None
    weights = _producer(r, node.inputs[0], "softmax")
    if weights is None or not _is_over_last_axis(r, weights):
        return None
    scores = _scores(r, weights.inputs[0])
    if scores is None or not _fits(r, scores, node, fusion):
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
    """The node of that op that makes the value, if the value has one reader.

    Casts may be between, and reshapes that leave its last axis: rows of scores stay rows.
    """
    producer = r.producer(value)
    while producer is not None and _keeps_rows(r, producer) and r.only_use(value):
        value = producer.inputs[0]
        producer = r.producer(value)
    return producer if producer is not None and producer.op == op and r.only_use(value) else None


def _keeps_rows(r: GraphRewriter, node: Node) -> bool:
    if node.op != "reshape":
        return node.op == "cast"
    before, after = (r.shape(value) for value in (node.inputs[0], node.outputs[0]))
    return always_equal(before[-1], after[-1])


def _is_over_last_axis(r: GraphRewriter, softmax: Node) -> bool:
    return integer(softmax.attrs, "axis") == len(r.shape(softmax.inputs[0])) - 1


def _scores(r: GraphRewriter, value: str) -> _AttentionScores | None:
    """How the argument of a softmax is made; None where it is not the scores of attention."""
    bias, scale, shape = "", 1.0, r.shape(value)
    if (added := _producer(r, value, "add")) is not None:
        for side, other in ((0, 1), (1, 0)):
            if _product(r, added.inputs[side]) is not None:
                value, bias = added.inputs[side], added.inputs[other]
                break
        else:
            return None
        shape = r.shape(added.outputs[0])
        if not always_same(broadcast_shapes(r.shape(bias), shape), shape):
            return None
    found = _product(r, value)
    if found is None:
        return None
    product, scale = found
    if bias and not always_same(r.shape(product.outputs[0]), shape):
        return None
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


def _fits(
    r: GraphRewriter, scores: _AttentionScores, product: Node, fusion: AttentionFusion
) -> bool:
    """Whether both products are of the same heads, and their rows of a length that devices take."""
    (query, transposed), value = scores.product.inputs, product.inputs[1]
    types = [r.types[v] for v in (query, transposed, value)]
    batches = [t.shape[:-2] for t in types]
    rows = r.shape(scores.product.outputs[0])
    if len({t.dtype for t in types}) > 1 or any(v in r.old.constants for v in (query, transposed)):
        return False
    if value in r.old.constants or not always_same(r.shape(product.inputs[0]), rows):
        return False
    if not all(always_same(batch, batches[0]) for batch in batches):
        return False
    widths = (types[0].shape[-1], types[2].shape[-1])
    if not all(is_fixed(n) and n % _WIDTH_MULTIPLE == 0 for n in widths):
        return False
    *_, queries, keys = rows
    few = least(queries) > 1 and most(queries) <= MOST_FEW_QUERIES and types[0].dtype.is_float
    if few and "operands" not in product.attrs and most(keys) <= fusion.most_keys:
        return True
    return fusion.tiles and _is_small(r, scores.product) and least(queries) >= MOST_FEW_QUERIES


def _is_causal(bias: Array | None, queries: int, keys: int) -> bool:
    """Whether a constant hides the keys after each query, and nothing else."""
    open_sized = not is_fixed(queries) or not is_fixed(keys)
    if bias is None or open_sized or bias.shape[-2:] != (queries, keys):
        return False
    visible = np.tril(np.ones((queries, keys), bool))
    rows = bias.reshape(-1, queries, keys)
    return bool(np.all(rows[:, visible] == 0) and np.all(rows[:, ~visible] <= _MASKED))

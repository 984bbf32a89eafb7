"""Attention: scores of queries and keys, softmax, sums of values. Read `attend` first.

All operators of attention, those of other domains too, become this: queries, keys and values are
[batch, heads, length, width], and masks are numbers that are added to scores. As products and one
softmax, each of which is one task, it takes fewer kernels than ONNX's function of the same name.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np

from retune.core.dims import is_fixed
from retune.core.dtypes import INT64, DType
from retune.core.errors import ModelError
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op
from retune.proto.file import element_type

_HEADS = 4
"""Dimensions of a value that is split into heads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Queries, keys and values by heads: [batch, heads, length, width]."""

    query: str
    key: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What becomes of the products of queries and keys before values are summed."""

    scale: float
    biases: tuple[str, ...] = ()
    """Each broadcasts with [batch, heads, queries, keys], and is added."""
    softcap: float = 0.0
    """The largest score before biases, which tanh approaches; 0 for none."""
    sink: str = ""
    """The score of one more key without a value, for each head [heads]; '' for none."""
    precision: DType | None = None
    """The element type of softmax; None: that of scores."""
    empty: str = ""
    """The condition that a query sees no key, so that its sum is zero; '' for never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attended:
    """What `attend` makes: sums [batch, heads, queries, width], others [..., queries, keys]."""

    sums: str
    products: str
    """Scaled."""
    capped: str
    biased: str
    weights: str


def heads_of(emit: Emitter, value: str, heads: int) -> str:
    """[batch, length, heads * width] by heads; what is [batch, heads, length, width] stays."""
    shape = emit.shape(value)
    if len(shape) == _HEADS:
        return value
    if len(shape) != _HEADS - 1 or heads < 1 or shape[-1] % heads:
        raise ModelError(
            f"{heads} heads of {emit.type(value)}; expected [batch, length, heads * width], or "
            "[batch, heads, length, width]"
        )
    apart = emit.reshaped(value, (*shape[:2], heads, shape[2] // heads))
    return emit.temp("transpose", apart, label="heads", perm=(0, 2, 1, 3))


def joined(emit: Emitter, value: str) -> str:
    """The inverse of `heads_of`: [batch, length, heads * width]."""
    batch, heads, length, width = emit.shape(value)
    moved = emit.temp("transpose", value, label="joined", perm=(0, 2, 1, 3))
    return emit.reshaped(moved, (batch, length, heads * width))


def attend(emit: Emitter, heads: Heads, scores: Scores) -> Attended:
    """Sums of values by the softmax of scores.

    Several heads of queries may share one of keys and values, in order.
    """
    batch, count, length, width = emit.shape(heads.query)
    shared, keys = emit.shape(heads.key)[1:3]
    if count % shared:
        raise ModelError(f"{count} heads of queries for {shared} of keys; expected a multiple")
    grouped = (batch, shared, count // shared * length)
    query = emit.reshaped(heads.query, (*grouped, width))
    turned = emit.temp("transpose", heads.key, label="keys", perm=(0, 1, 3, 2))
    found = emit.temp("matmul", query, turned, label="products")
    found = emit.temp("multiply", found, emit.scalar(scores.scale, found, "scale"))
    products = capped = emit.reshaped(found, (batch, count, length, keys))
    if scores.softcap:
        cap = emit.scalar(scores.softcap, capped, "softcap")
        capped = emit.temp("multiply", emit.temp("tanh", emit.temp("divide", capped, cap)), cap)
    biased = capped
    for bias in scores.biases:
        biased = emit.temp("add", biased, bias, label="biased")
    weights = _weights(emit, biased, scores)
    parted = emit.reshaped(weights, (*grouped, keys))
    parted = emit.cast(parted, emit.type(heads.value).dtype)
    sums = emit.temp("matmul", parted, heads.value, label="sums")
    sums = emit.reshaped(sums, (batch, count, length, emit.shape(sums)[-1]))
    return Attended(sums=sums, products=products, capped=capped, biased=biased, weights=weights)


def _weights(emit: Emitter, biased: str, scores: Scores) -> str:
    """Softmax over the keys, and over the sink's score, whose weight is dropped."""
    batch, count, length, keys = emit.shape(biased)
    dtype = emit.type(biased).dtype
    exact = emit.cast(biased, scores.precision or dtype)
    if scores.sink:
        column = emit.reshaped(emit.cast(scores.sink, emit.type(exact).dtype), (1, count, 1, 1))
        column = emit.temp("broadcast_to", column, shape=(batch, count, length, 1))
        exact = emit.temp("concat", exact, column, axis=3)
    weights = emit.part(emit.temp("softmax", exact, label="weights", axis=3), 3, 0, keys)
    weights = emit.cast(weights, dtype)
    if not scores.empty:
        return weights
    nothing = emit.scalar(0, weights, "nothing")
    return emit.temp("where", scores.empty, nothing, weights, label="weights")


def where_bias(emit: Emitter, seen: str, like: str, hidden: float) -> str:
    """0 where the condition holds, else `hidden`, in the element type of `like`."""
    return emit.temp(
        "where", seen, emit.scalar(0, like, "seen"), emit.scalar(hidden, like, "hidden")
    )


def appended(emit: Emitter, past: str, new: str) -> str:
    """The tokens of a cache that grows by each step: the new ones are the last."""
    return emit.temp("concat", past, new, label="present", axis=2)


@onnx_op("Attention", since=23)
def attention(node: OnnxNode, emit: Emitter) -> None:
    """Softmax of scaled products of queries and keys plus masks, times values."""
    counts = (node.integer(key, 0) for key in ("q_num_heads", "kv_num_heads"))
    queries, shared = counts
    parts = zip(node.inputs[:3], (queries, shared, shared), strict=True)
    query, key, value = (heads_of(emit, part, count) for part, count in parts)
    held = 0
    if node.has_input(4):
        held = emit.shape(node.inputs[4])[2]
        key, value = appended(emit, node.inputs[4], key), appended(emit, node.inputs[5], value)
    heads = Heads(query=query, key=key, value=value)
    bias = _bias(node, emit, heads, held)
    scores = Scores(
        scale=node.number("scale", 0.0) or 1 / sqrt(emit.shape(query)[3]),
        biases=(bias,) if bias else (),
        softcap=node.number("softcap", 0.0),
        precision=_precision(node),
        empty=_empty(emit, bias) if bias else "",
    )
    made = attend(emit, heads, scores)
    sums = emit.cast(made.sums, emit.type(query).dtype)
    emit.same(sums if len(emit.shape(node.inputs[0])) == _HEADS else joined(emit, sums))
    modes = (made.products, made.capped, made.biased, made.weights)
    shown = modes[node.integer("qk_matmul_output_mode", 0)]
    for index, made_value in enumerate((key, value, shown), start=1):
        if node.has_output(index):
            emit.same(made_value, index)


def _precision(node: OnnxNode) -> DType | None:
    number = node.integer("softmax_precision", 0)
    return element_type(number, "softmax_precision") if number else None


def _bias(node: OnnxNode, emit: Emitter, heads: Heads, held: int) -> str:
    """What is added to scores: -inf for keys that are not seen; '' for nothing.

    `held` tokens were in the cache.
    """
    mask = node.inputs[3] if node.has_input(3) else ""
    keys = emit.shape(heads.key)[2]
    found: list[str] = []
    if mask:
        if emit.type(mask).dtype.is_float:
            bias = emit.cast(mask, emit.type(heads.query).dtype)
        else:
            bias = where_bias(emit, mask, heads.query, -np.inf)
        missing = keys - emit.shape(bias)[-1]
        if missing and emit.shape(bias)[-1] != 1:
            pads = (*(0,) * (2 * len(emit.shape(bias)) - 1), missing)
            bias = emit.temp("pad", bias, label="padded", pads=pads, value=-np.inf)
        found.append(bias)
    if node.has_input(6):
        found.append(_by_lengths(node, emit, heads))
    elif any(limit is not None for limit in _limits(node)):
        found.append(hiding(emit, "seen", heads, held, _limits(node), -np.inf))
    if len(found) < 2:
        return found[0] if found else ""
    return emit.temp("add", *found, label="masks")


def _limits(node: OnnxNode) -> tuple[int | None, int | None]:
    """How far keys may lie before, and after, their query; None: any."""
    left, right = node.integer("left_window_size", -1), node.integer("right_window_size", -1)
    causal = bool(node.integer("is_causal", 0))
    after = 0 if causal else right
    return (left if left >= 0 else None), (after if after >= 0 else None)


def hiding(
    emit: Emitter,
    label: str,
    heads: Heads,
    held: int,
    limits: tuple[int | None, int | None],
    hidden: float,
) -> str:
    """The bias [queries, keys] that is `hidden` for keys too far before, or after, their query.

    `held` keys are those of a cache; the limits say how far, None: any.
    """
    queries, keys = emit.shape(heads.query)[2], emit.shape(heads.key)[2]
    before, after = limits
    if all(map(is_fixed, (queries, keys, held))):
        distance = np.arange(keys) - np.arange(queries)[:, None] - held
        seen = (distance >= -(keys + held if before is None else before)) & (
            distance <= (keys + held if after is None else after)
        )
        return emit.stored(label, np.where(seen, 0, hidden).astype(emit.type(heads.query).dtype))
    away = emit.counted("distance", (queries, keys), (-1, 1), -held)
    sides = (("greater_equal", before and -before), ("less_equal", after))
    tests = [
        emit.temp(test, away, emit.stored("limit", np.asarray(limit, np.int64)))
        for test, limit in sides
        if limit is not None
    ]
    both = tests[0] if len(tests) == 1 else emit.temp("logical_and", *tests)
    return where_bias(emit, both, heads.query, hidden)


def _by_lengths(node: OnnxNode, emit: Emitter, heads: Heads) -> str:
    """The bias of caches that are written outside: each batch has its number of tokens."""
    (batch, _, queries, _), keys = emit.shape(heads.query), emit.shape(heads.key)[2]

    def numbers(value: int, label: str) -> str:
        return emit.stored(label, np.asarray(value, np.int64))

    counts = emit.reshaped(emit.cast(node.inputs[6], INT64), (batch, 1, 1, 1))
    column = emit.counted("keys", (keys,), (1,))
    seen = emit.temp("less", column, counts, label="filled")
    rows = emit.counted("rows", (queries, 1), (1, 0), -queries)
    distance = emit.temp("subtract", column, emit.temp("add", counts, rows), label="distance")
    before, after = _limits(node)
    if after is not None:
        near = emit.temp("less_equal", distance, numbers(after, "after"))
        seen = emit.temp("logical_and", seen, near)
    if before is not None:
        near = emit.temp("greater_equal", distance, numbers(-before, "before"))
        seen = emit.temp("logical_and", seen, near)
    return where_bias(emit, seen, heads.query, -np.inf)


def _empty(emit: Emitter, bias: str) -> str:
    """The condition that a row of the bias hides all keys; '' where none does."""
    known = emit.known(bias)
    if known is not None and not np.any(np.all(np.isneginf(known), axis=-1)):
        return ""
    last = len(emit.shape(bias)) - 1
    most = emit.temp("reduce_max", bias, label="most", axes=(last,), keepdims=True)
    return emit.temp("equal", most, emit.scalar(-np.inf, most, "none"), label="empty")

"""Attention of com.microsoft, in terms of `ops.attention`.

What must not be seen gets a number added to its score: `mask_filter_value` for padding, the least
of the type for the future.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import sqrt

import numpy as np

from retune.core.dtypes import INT32, numpy_dtype
from retune.frontend.onnx.ops.attention import (
    Heads,
    Scores,
    appended,
    attend,
    heads_of,
    hiding,
    joined,
    where_bias,
)
from retune.frontend.onnx.ops.contrib.cache import Cache
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op
from retune.proto.scope import MICROSOFT

_BY_HEADS = 4
"""Dimensions of a value that is split into heads."""


def future(emit: Emitter, heads: Heads, held: int) -> str:
    """The bias that hides keys after each query, of which `held` are those of a cache."""
    return hiding(emit, "future", heads, held, (None, 0), least(heads.query, emit))


def least(like: str, emit: Emitter) -> float:
    """The least number of the value's element type."""
    lowest, zero = np.array([-np.inf, 0.0], numpy_dtype(emit.type(like).dtype))
    return float(np.nextafter(lowest, zero))


def padding_bias(node: OnnxNode, emit: Emitter, mask: str, like: str, keys: int) -> str:
    """The bias of a mask of 1 and 0: [batch, keys], [batch, queries, keys], or of lengths [batch].

    [2 * batch] has where keys end and where they begin.
    """
    hidden = node.number("mask_filter_value", -10000.0)
    shape = emit.shape(mask)
    mask = emit.cast(mask, INT32)
    if len(shape) == 2:
        mask = emit.reshaped(mask, (shape[0], 1, 1, shape[1]))
    elif len(shape) == 3:
        mask = emit.reshaped(mask, (shape[0], 1, *shape[1:]))
    elif len(shape) == 1:
        return where_bias(emit, _between(emit, mask, like, keys), like, hidden)
    else:
        raise emit.refuse(
            f"a mask {emit.type(mask)}",
            f"expected [batch, {keys}], [batch, queries, {keys}], [batch] or [2 * batch]",
        )
    zero = emit.stored("zero", np.zeros((), np.int32))
    return where_bias(emit, emit.temp("greater", mask, zero, label="kept"), like, hidden)


def _between(emit: Emitter, bounds: str, like: str, keys: int) -> str:
    """The condition that keys lie before the ends [batch], and from the begins that may follow."""
    batch, count = emit.shape(like)[0], emit.shape(bounds)[0]
    if count not in (batch, 2 * batch):
        raise emit.refuse(f"a mask of {count} elements", f"expected {batch} or {2 * batch}")
    position = emit.counted("position", (keys,), (1,), dtype=INT32)
    column = (batch, 1, 1, 1)
    ends = emit.reshaped(emit.part(bounds, 0, 0, batch), column)
    seen = emit.temp("less", position, ends, label="before")
    if count == batch:
        return seen
    begins = emit.reshaped(emit.part(bounds, 0, batch, batch), column)
    return emit.temp("logical_and", seen, emit.temp("greater_equal", position, begins))


def scale_of(node: OnnxNode, width: int) -> float:
    """The factor of scores: the attribute, or 1 / sqrt(width)."""
    return node.number("scale", 0.0) or 1 / sqrt(width)


def _refuse_beams(node: OnnxNode, emit: Emitter) -> None:
    """Raises: ModelError for caches that beams share, which input 9 says."""
    if node.has_input(9):
        raise emit.refuse("a cache that beams share", "export the decoder without beam search")


def finish(
    node: OnnxNode, emit: Emitter, heads: Heads, scores: Scores, names: Sequence[int]
) -> None:
    """The output of attention; `names` are the outputs for keys, values and weights."""
    made = attend(emit, heads, scores)
    emit.same(joined(emit, made.sums))
    for index, value in zip(names, (heads.key, heads.value, made.weights), strict=False):
        if node.has_output(index):
            emit.same(value, index)


@onnx_op("Attention", domain=MICROSOFT, limits="caches that grow, no rotation")
def attention(node: OnnxNode, emit: Emitter) -> None:
    """Queries, keys and values as one product of the input, then attention over their heads."""
    if node.integer("do_rotary", 0) or node.has_input(6):
        raise emit.refuse(
            "rotation, or a cache of full length, inside Attention",
            "export MultiHeadAttention or GroupQueryAttention nodes",
        )
    made = emit.onnx("MatMul", *node.inputs[:2])
    if node.has_input(2):
        made = emit.temp("add", made, node.inputs[2], label="projected")
    attend_projected(node, emit, made, _named(node, mask=3, past=4, scores=5))


def attend_projected(node: OnnxNode, emit: Emitter, made: str, others: dict[str, str]) -> None:
    """The node's outputs, of queries, keys and values side by side [batch, length, widths].

    `others` are a mask, past keys and values, and a bias of scores; '' for none.
    """
    wide = emit.shape(made)[-1]
    sizes = node.ints("qkv_hidden_sizes", ()) or (wide // 3,) * 3
    begins = (0, sizes[0], sizes[0] + sizes[1])
    count = node.integer("num_heads", 1)
    query, key, value = (
        heads_of(emit, emit.part(made, 2, begin, size), count)
        for begin, size in zip(begins, sizes, strict=True)
    )
    if others["past"]:
        pasts = [emit.single(others["past"], 0, index) for index in (0, 1)]
        key, value = appended(emit, pasts[0], key), appended(emit, pasts[1], value)
    heads = Heads(query=query, key=key, value=value)
    held = emit.shape(key)[2] - emit.shape(query)[2] if node.integer("unidirectional", 0) else None
    biases = _biases(node, emit, heads, (others["mask"], others["scores"]), held)
    scores = Scores(scale=scale_of(node, emit.shape(query)[3]), biases=tuple(biases))
    finish(node, emit, heads, scores, ())
    if node.has_output(1):
        emit.same(emit.stacked((key, value), 0), 1)


def _biases(
    node: OnnxNode, emit: Emitter, heads: Heads, given: tuple[str, str], held: int | None
) -> list[str]:
    """What is added to scores: a mask's and a bias that are given ('' for none), the future's.

    `held` keys are those of a cache; None: queries see all keys.
    """
    mask, bias = given
    keys = emit.shape(heads.key)[2]
    biases = [widened(emit, bias, keys)] if bias else []
    if mask:
        biases.append(widened(emit, padding_bias(node, emit, mask, heads.query, keys), keys))
    if held is not None and keys > 1:
        biases.append(future(emit, heads, held))
    return biases


def widened(emit: Emitter, bias: str, keys: int) -> str:
    """The bias with zeros for those keys of a cache of full length that nothing is said of."""
    shape = emit.shape(bias)
    if shape[-1] in (1, keys):
        return bias
    pads = (*(0,) * (2 * len(shape) - 1), keys - shape[-1])
    return emit.temp("pad", bias, label="wide", pads=pads, value=0.0)


@onnx_op("MultiHeadAttention", domain=MICROSOFT, limits="no beams")
def multi_head_attention(node: OnnxNode, emit: Emitter) -> None:
    """Attention of queries, keys and values that may be packed, biased, masked and cached."""
    _refuse_beams(node, emit)
    _multi_head(node, emit, _named(node, bias=3, mask=4, scores=5, key=6, value=7, before=8))


@onnx_op("DecoderMaskedMultiHeadAttention", domain=MICROSOFT, limits="no beams")
def decoder_attention(node: OnnxNode, emit: Emitter) -> None:
    """MultiHeadAttention of one query, whose inputs are in another order."""
    _refuse_beams(node, emit)
    _multi_head(node, emit, _named(node, mask=3, scores=4, key=5, value=6, before=7, bias=10))


def _named(node: OnnxNode, **indices: int) -> dict[str, str]:
    """The node's inputs at these indices; '' for those that are omitted."""
    return {name: node.inputs[i] if node.has_input(i) else "" for name, i in indices.items()}


def _multi_head(node: OnnxNode, emit: Emitter, others: dict[str, str]) -> None:
    """`others` are the inputs after queries, keys and values, as `_named` has them.

    With `before` the cache has full length and that many tokens in it; without it grows.
    """
    heads = _by_heads(node, emit, others["bias"])
    causal = bool(node.integer("unidirectional", 0))
    held = emit.shape(others["key"])[2] if others["key"] else 0
    queries, new = (emit.shape(value)[2] for value in (heads.query, heads.key))
    if causal and queries != new:  # onnxruntime lets the last query see all keys
        raise emit.refuse(
            f"unidirectional attention of {queries} queries to {new} keys",
            "give the mask as an attention bias",
        )
    biases: list[str] = []
    if others["before"]:
        before = emit.reshaped(emit.cast(others["before"], INT32), (1, 1))
        length, capacity = (emit.shape(v)[2] for v in (heads.key, others["key"]))
        cache = Cache(length=length, capacity=capacity, before=before)
        seen = cache.seen(emit, causal=causal)
        biases, causal = [where_bias(emit, seen, heads.query, least(heads.query, emit))], False
        heads = _cached(heads, partial(cache.stored, emit), others)
    elif others["key"]:
        heads = _cached(heads, partial(appended, emit), others)
    given = others["mask"], others["scores"]
    biases += _biases(node, emit, heads, given, held if causal else None)
    scores = Scores(scale=scale_of(node, emit.shape(heads.query)[3]), biases=tuple(biases))
    finish(node, emit, heads, scores, (1, 2, 3))


def _cached(heads: Heads, stored: Callable[[str, str], str], caches: dict[str, str]) -> Heads:
    """The heads with the cached keys and values before the new ones."""
    key, value = stored(caches["key"], heads.key), stored(caches["value"], heads.value)
    return replace(heads, key=key, value=value)


def _by_heads(node: OnnxNode, emit: Emitter, bias: str) -> Heads:
    """The node's queries, keys and values, which may be packed [batch, length, heads, n, width]."""
    count = node.integer("num_heads", 1)
    query = node.inputs[0]
    key, value = (node.inputs[i] if node.has_input(i) else "" for i in (1, 2))
    if len(emit.shape(query)) == 5:
        parts = _unpacked(emit, query)
    elif key and len(emit.shape(key)) == 5:
        parts = [query, *_unpacked(emit, key)]
    else:
        parts = [query, key, value]
    if bias:
        parts = _with_bias(emit, parts, bias)
    query, key, value = (heads_of(emit, part, count) for part in parts)
    return Heads(query=query, key=key, value=value)


def _unpacked(emit: Emitter, value: str) -> list[str]:
    """[batch, length, heads, n, width] as n values [batch, length, heads * width]."""
    batch, length, heads, count, width = emit.shape(value)
    whole = (batch, length, heads * width)
    return [emit.reshaped(emit.single(value, 3, index), whole) for index in range(count)]


def _with_bias(emit: Emitter, parts: Sequence[str], bias: str) -> list[str]:
    """The parts plus those of the bias; cached keys and values by heads have theirs already."""
    made: list[str] = []
    begin = 0
    for part in parts:
        shape = emit.shape(part)
        size = shape[2] if len(shape) != _BY_HEADS else shape[1] * shape[3]
        own = emit.part(bias, 0, begin, size)
        made.append(part if len(shape) == _BY_HEADS else emit.temp("add", part, own, label="part"))
        begin += size
    return made

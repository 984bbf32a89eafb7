"""GroupQueryAttention and rotation of com.microsoft: what the GenAI builder's decoders are made of.

A cache has a capacity, and each batch a number of tokens in it that is known only when the network
runs: `seqlens_k` + 1 after the step. New keys and values are put behind the cached ones.
"""

import numpy as np

from retune.core.dims import always_equal, is_fixed, most
from retune.core.dtypes import INT32
from retune.core.errors import ModelError
from retune.frontend.onnx.ops.attention import Heads, Scores, heads_of, where_bias
from retune.frontend.onnx.ops.contrib.attention import finish, least, scale_of, widened
from retune.frontend.onnx.ops.contrib.cache import Cache
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op
from retune.frontend.onnx.ops.rotation import rotated, tables_at
from retune.proto.scope import MICROSOFT


@onnx_op("RotaryEmbedding", domain=MICROSOFT, limits="no packed batches, no scale")
def rotary_embedding(node: OnnxNode, emit: Emitter) -> None:
    """As RotaryEmbedding of ONNX; positions may be the first one of each row."""
    if node.integer("is_packed_batching", 0) or node.number("scale", 1.0) != 1:
        raise emit.refuse("a packed or scaled rotation", "export without packing")
    data, positions, cos, sin = node.inputs
    shape = emit.shape(data)
    heads, width = node.integer("num_heads", 0), node.integer("rotary_embedding_dim", 0)
    if len(shape) == 3:
        heads = heads or shape[2] // (2 * emit.shape(cos)[1])
    if emit.shape(positions) == (1,):
        length = shape[1] if len(shape) == 3 else shape[2]
        steps = emit.counted("steps", (1, length), (0, 1))
        row = emit.temp("add", emit.reshaped(positions, (1, 1)), steps, label="positions")
        positions = emit.temp("broadcast_to", row, shape=(shape[0], length))
    attrs = {"interleaved": node.integer("interleaved", 0), "rotary_embedding_dim": width}
    if len(shape) == 3:
        attrs["num_heads"] = heads
    emit.onnx_out("RotaryEmbedding", data, cos, sin, positions, **attrs)


_REFUSED = {
    12: "a quantized cache", 13: "a quantized cache", 16: "padded chunks (query_seqlens)",
}  # fmt: skip
"""Inputs of GroupQueryAttention without a meaning here."""


@onnx_op(
    "GroupQueryAttention",
    domain=MICROSOFT,
    limits="float caches, no padded chunks; an unknown total_sequence_length is past plus new",
)
def group_query_attention(node: OnnxNode, emit: Emitter) -> None:
    """Attention with a cache, in which heads of queries share those of keys and values."""
    _check(node, emit)
    count, shared = node.integer("num_heads", 1), node.integer("kv_num_heads", 1)
    query, key, value = _parts(node, emit, count, shared)
    query, key = _normalised(node, emit, query, 14), _normalised(node, emit, key, 15)
    pasts = [node.inputs[i] if node.has_input(i) else "" for i in (3, 4)]
    cache = _cache(node, emit, pasts[0], emit.shape(query)[2])
    if node.integer("do_rotary", 0):
        query, key = (_rotated(node, emit, part, cache) for part in (query, key))
    key, value = (
        cache.stored(emit, past, new) for past, new in zip(pasts, (key, value), strict=True)
    )
    heads = Heads(query=query, key=key, value=value)
    given = node.inputs[10] if node.has_input(10) else ""
    biases = [widened(emit, given, cache.capacity)] if given else []
    causal, window = bool(node.integer("causal", 1)), node.integer("local_window_size", -1)
    if not cache.all_seen(max(window, 0)):
        seen = cache.seen(emit, causal=causal, window=max(window, 0))
        biases.append(where_bias(emit, seen, query, least(query, emit)))
    sink = node.inputs[11] if node.has_input(11) else ""
    if not sink and node.integer("smooth_softmax", 0) > 0:
        sink = emit.scalar(0, query, "sink")
        sink = emit.temp("broadcast_to", emit.reshaped(sink, (1,)), shape=(count,))
    scores = Scores(
        scale=scale_of(node, emit.shape(query)[3]),
        biases=tuple(biases),
        softcap=node.number("softcap", 0.0),
        sink=sink,
    )
    finish(node, emit, heads, scores, (1, 2))


def _check(node: OnnxNode, emit: Emitter) -> None:
    """Raises: ModelError for what has no meaning here."""
    found = [what for index, what in _REFUSED.items() if node.has_input(index)]
    if node.has_output(3):
        found.append("the output of scores")
    if node.integer("sliding_window_cache", 0):
        found.append("a cache of the window's size")
    if found:
        raise emit.refuse(found[0], "export the model with float caches of all tokens")


def _parts(node: OnnxNode, emit: Emitter, count: int, shared: int) -> tuple[str, str, str]:
    """Queries, keys and values by heads; they may come as one value."""
    query = node.inputs[0]
    if node.has_input(1):
        key, value = node.inputs[1:3]
    else:
        width = emit.shape(query)[2] // (count + 2 * shared)
        begins = (0, count * width, (count + shared) * width)
        sizes = (count * width, shared * width, shared * width)
        query, key, value = (
            emit.part(query, 2, begin, size) for begin, size in zip(begins, sizes, strict=True)
        )
    return heads_of(emit, query, count), heads_of(emit, key, shared), heads_of(emit, value, shared)


def _normalised(node: OnnxNode, emit: Emitter, value: str, index: int) -> str:
    """The RMS norm of each head, if the node has a weight for it."""
    if not node.has_input(index):
        return value
    usual = node.number("qk_norm_epsilon", 1e-6)
    epsilon = node.number("q_norm_epsilon" if index == 14 else "k_norm_epsilon", usual)
    return emit.onnx("RMSNormalization", value, node.inputs[index], axis=-1, epsilon=epsilon)


def _cache(node: OnnxNode, emit: Emitter, past: str, length: int) -> Cache:
    """The cache of this step. In the first step there are no tokens before.

    A cache grows where shapes say that all of its tokens are filled. One that has space for all
    tokens that there may be keeps its length: input and output share a buffer.
    """
    held = emit.shape(past)[2] if past else 0
    if not always_equal(held, 0) and _is_full(node, emit, held + length):
        return Cache(length=length, capacity=held + length, held=held)
    longest = emit.extents(node.inputs[6])
    total = held + length if longest is None else longest.reshape(-1).tolist()[0]
    capacity = held if is_fixed(held) and most(total) <= held else max(total, held)
    if not held or always_equal(total, length):
        return Cache(length=length, capacity=capacity)
    batch = emit.shape(past)[0]
    counts = emit.reshaped(emit.cast(node.inputs[5], INT32), (batch, 1))
    earlier = emit.stored("earlier", np.asarray(1 - length, np.int32))
    return Cache(length=length, capacity=capacity, before=emit.temp("add", counts, earlier))


def _is_full(node: OnnxNode, emit: Emitter, total: int) -> bool:
    """Whether shapes say that all rows have that many tokens after the step.

    `total_sequence_length` is the number of the longest row, so that it tells of a single one.
    """
    filled, longest = emit.extents(node.inputs[5]), emit.extents(node.inputs[6])
    alone = always_equal(emit.shape(node.inputs[5])[0], 1)
    return (filled is not None and _all_equal(filled, total - 1)) or (
        alone and longest is not None and _all_equal(longest, total)
    )


def _all_equal(extents: np.ndarray, extent: int) -> bool:
    """Whether all of them are that one for all sizes."""
    return all(always_equal(each, extent) for each in extents.reshape(-1).tolist())


def _check_tables(emit: Emitter, table: str, total: int, cache: Cache) -> None:
    """Raises: ModelError where shapes allow positions for which the table of the rotation has no
    row."""
    rows = emit.shape(table)[0]
    if not cache.before and is_fixed(rows) and most(total) > rows:
        raise ModelError(
            f"expected tokens within the rotation's tables of {rows} rows, got up to "
            f"{most(total)} tokens with those of the cache; state smaller ranges with --shape"
        )


def _rotated(node: OnnxNode, emit: Emitter, value: str, cache: Cache) -> str:
    """Heads rotated by their tokens' positions."""
    batch, _, length, _ = emit.shape(value)
    if node.has_input(9):
        positions = node.inputs[9]
    else:
        positions = emit.temp("broadcast_to", cache.positions(emit), shape=(batch, length))
        held = 0 if cache.held is None else cache.held
        _check_tables(emit, node.inputs[7], held + length, cache)
    cos, sin = node.inputs[7:9]
    tables = tables_at(emit, (cos, sin), positions)
    interleaved = bool(node.integer("rotary_interleaved", 0))
    return rotated(emit, value, tables, 2, width=2 * emit.shape(cos)[1], interleaved=interleaved)

"""Folding per-channel scales and shifts into the layers before them."""

import numpy as np

from retune.core.dims import always_equal
from retune.core.dtypes import dtype_of
from retune.graph.graph import Graph, Node
from retune.graph.passes.simplify import drop_identity, merge_reshapes
from retune.graph.rewrite import GraphRewriter, rebuild, to_fixed_point
from retune.ops import Array
from retune.ops.registry import integer, number

LINEAR = ("conv2d", "depthwise_conv2d", "conv3d", "conv_transpose", "dense")
"""Ops whose weight may take a scale of its output channels (channels-first kernels)."""


def lower_batch_norm(graph: Graph) -> Graph:
    """batch_norm(x) -> x * scale + shift, per channel."""
    return rebuild(graph, _batch_norm_to_scale)


def _batch_norm_to_scale(r: GraphRewriter, node: Node) -> str | None:
    if node.op != "batch_norm":
        return None
    data, gain, bias, mean, variance = node.inputs
    sides = [1] * len(r.shape(data))
    sides[integer(node.attrs, "axis")] = r.shape(gain)[0]
    dtype = r.types[data].dtype
    epsilon = r.store(f"{node.name}.epsilon", np.asarray(number(node.attrs, "epsilon"), dtype))
    deviation = r.emit("sqrt", (r.emit("add", (variance, epsilon), {}),), {})
    scale = r.emit("divide", (gain, deviation), {})
    shift = r.emit("subtract", (bias, r.emit("multiply", (mean, scale), {})), {})
    shape = {"shape": tuple(sides)}
    scaled = r.emit("multiply", (data, r.emit("reshape", (scale,), shape)), {})
    return r.emit("add", (scaled, r.emit("reshape", (shift,), shape)), {}, node.outputs[0])


def fold_scales(graph: Graph) -> Graph:
    """Products and sums with constants move into weights and merge, where values allow it."""
    rules = scale_into_weight, scale_through_add, merge_constants
    return to_fixed_point(graph, lambda g: rebuild(g, *rules))


def scale_into_weight(r: GraphRewriter, node: Node) -> str | None:
    """conv(x, w) * c -> conv(x, w * c), when nobody else reads the convolution."""
    if node.op != "multiply":
        return None
    return _scaled_layer(r, node.inputs[0], node.inputs[1], node.outputs[0])


def _scaled_layer(r: GraphRewriter, value: str, factor: str, output: str) -> str | None:
    layer, array = r.producer(value), r.constant(factor)
    if layer is None or array is None or layer.op not in LINEAR or not r.only_use(value):
        return None
    weight = r.constant(layer.inputs[1])
    scale = per_channel(array, r.shape(value))
    if weight is None or scale is None or not str(layer.attrs.get("layout", "NC")).startswith("NC"):
        return None
    whole = weight * scale.reshape(-1, *[1] * (weight.ndim - 1))
    scaled = whole.astype(weight.dtype)
    if not dtype_of(weight).is_float and not np.array_equal(scaled, whole):
        return None  # bytes of a product may be too large for bytes
    stored = r.store(f"{layer.inputs[1]}.scaled", scaled)
    return r.emit(layer.op, (layer.inputs[0], stored), layer.attrs, output)


def scale_through_add(r: GraphRewriter, node: Node) -> str | None:
    """(conv(x, w) + b) * c -> conv(x, w * c) + b * c; so too for x * a instead of the layer."""
    inner = r.producer(node.inputs[0])
    if node.op != "multiply" or inner is None or inner.op != "add":
        return None
    if r.constant(inner.inputs[1]) is None or not r.only_use(node.inputs[0]):
        return None
    scaled = _scaled_layer(r, inner.inputs[0], node.inputs[1], "")
    scaled = scaled or _scaled_product(r, inner.inputs[0], node.inputs[1])
    if scaled is None or r.types[node.inputs[0]] != r.old.types[node.outputs[0]]:
        return None
    shift = r.emit("multiply", (inner.inputs[1], node.inputs[1]), {})
    return r.emit("add", (scaled, shift), {}, node.outputs[0])


def _scaled_product(r: GraphRewriter, value: str, factor: str) -> str | None:
    product = r.producer(value)
    if product is None or product.op != "multiply" or r.constant(factor) is None:
        return None
    if r.constant(product.inputs[1]) is None or not r.only_use(value):
        return None
    merged = r.emit("multiply", (product.inputs[1], factor), {})
    return r.emit("multiply", (product.inputs[0], merged), {})


def merge_constants(r: GraphRewriter, node: Node) -> str | None:
    """(x + a) + b -> x + (a + b), and so for products."""
    inner = r.producer(node.inputs[0])
    if node.op not in ("add", "multiply") or inner is None or inner.op != node.op:
        return None
    left, right = inner.inputs[1], node.inputs[1]
    known = r.constant(left) is not None and r.constant(right) is not None
    own = r.types[inner.inputs[0]]
    if not known or not r.only_use(node.inputs[0]) or own != r.old.types[node.outputs[0]]:
        return None
    merged = r.emit(node.op, (left, right), {})
    return r.emit(node.op, (inner.inputs[0], merged), {}, node.outputs[0])


def per_channel(array: Array, shape: tuple[int, ...]) -> Array | None:
    """The constant as [channels] (dimension 1), or None if it varies along anything else.

    None as well where it has more channels than there are.
    """
    padded = (1,) * (len(shape) - array.ndim) + array.shape
    if len(padded) != len(shape) or any(e != 1 for d, e in enumerate(padded) if d != 1):
        return None
    if array.size not in (1, shape[1]):
        return None
    return np.broadcast_to(array.reshape(-1), (shape[1],))


def dense_of_transposed(graph: Graph) -> Graph:
    """dense(flatten(transpose(x)), w) -> dense(flatten(x), w with its columns reordered)."""
    rules = _transpose_into_dense, drop_identity, merge_reshapes
    return to_fixed_point(graph, lambda g: rebuild(g, *rules))


def _transpose_into_dense(r: GraphRewriter, node: Node) -> str | None:
    flat = r.producer(node.inputs[0])
    weight = r.constant(node.inputs[1]) if node.op == "dense" else None
    if weight is None or flat is None or flat.op != "reshape":
        return None
    moved = r.producer(flat.inputs[0])
    if moved is None or moved.op != "transpose":
        return None
    perm, shape = moved.attrs["perm"], r.shape(flat.inputs[0])
    assert isinstance(perm, tuple)
    if perm[0] != 0 or not always_equal(r.shape(node.inputs[0])[0], shape[0]):
        return None
    back = tuple(int(d) for d in np.argsort(perm))
    columns = weight.reshape(weight.shape[0], *shape[1:]).transpose(back)
    stored = r.store(f"{node.inputs[1]}.moved", np.ascontiguousarray(columns.reshape(weight.shape)))
    source = r.emit("reshape", moved.inputs, flat.attrs)
    return r.emit("dense", (source, stored), {}, node.outputs[0])

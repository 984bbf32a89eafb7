"""Pooling: maxima, with where they were, means and norms of windows, and their inverse."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from retune.core.dtypes import INT64
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op
from retune.frontend.onnx.ops.scatter import scattered
from retune.frontend.onnx.ops.windows import (
    WindowAttributes,
    check_entries,
    data_layout,
    from_image,
    spatial_extents,
    to_image,
    window_of,
    without_height,
)


def _window(node: OnnxNode, emit: Emitter) -> WindowAttributes:
    extents = spatial_extents(emit, node.inputs[0])
    return window_of(node, extents, node.ints("kernel_shape", ())).flat()


def _pool_of(op: str, window: WindowAttributes, **attrs: Any) -> tuple[str, dict[str, Any]]:
    """The graph op `op` over images or volumes, and its attributes."""
    rank = len(window.kernel)
    attrs |= {
        "kernel": window.kernel,
        "strides": window.strides,
        "dilations": window.dilations,
        "pads": window.pads,
        "layout": data_layout(rank),
    }
    return op.replace("2d", "3d") if rank == 3 else op, attrs


def _pool(node: OnnxNode, emit: Emitter, op: str, window: WindowAttributes, **attrs: Any) -> None:
    data = node.inputs[0]
    op, attrs = _pool_of(op, window, **attrs)
    if len(emit.shape(data)) > 3:
        return emit.out(op, data, **attrs)
    result = emit.temp(op, to_image(emit, data), **attrs)
    return emit.out("reshape", result, shape=without_height(emit.shape(result)))


@onnx_op("MaxPool", limits="1 to 3 spatial dimensions")
def max_pool(node: OnnxNode, emit: Emitter) -> None:
    """Maximum pooling; `storage_order` is how the positions of the maxima are counted."""
    window = _window(node, emit)
    _pool(node, emit, "max_pool2d", window)
    if node.has_output(1):
        _indices(node, emit, window)


def _indices(node: OnnxNode, emit: Emitter, window: WindowAttributes) -> None:
    """The output Indices: where in the whole input each maximum is."""
    extents = spatial_extents(emit, node.inputs[0])
    images = [to_image(emit, value) for value in (node.inputs[0], node.outputs[0])]
    op, attrs = _pool_of("max_pool2d_index", window)
    places = emit.temp(op, *images, label="places", **attrs)
    places = emit.cast(from_image(emit, places, len(extents)), INT64)
    if node.integer("storage_order", 0):
        places = _column_major(emit, places, extents)
    shape = emit.shape(places)
    each, ones = prod(extents), (1,) * len(extents)
    steps = (shape[1] * each, each, *(0 for _ in ones))
    emit.out("add", places, emit.counted("first", (*shape[:2], *ones), steps), index=1)


def _column_major(emit: Emitter, places: str, extents: tuple[int, ...]) -> str:
    """Positions that count the last dimension first as positions that count it last."""
    total, rest, stride = "", places, 1
    for d, extent in enumerate(extents):
        inner = prod(extents[d + 1 :])
        own = emit.temp("divide", rest, emit.scalar(inner, places, "inner"), label="own")
        part = emit.temp("multiply", own, emit.scalar(inner, places, "inner"), label="part")
        rest = emit.temp("subtract", rest, part, label="rest")
        term = emit.temp("multiply", own, emit.scalar(stride, places, "stride"), label="term")
        total = emit.temp("add", total, term, label="total") if total else term
        stride *= extent
    return total


@onnx_op("AveragePool", limits="1 to 3 spatial dimensions")
def average_pool(node: OnnxNode, emit: Emitter) -> None:
    """Average pooling; what ceil_mode adds never counts as elements."""
    window = _window(node, emit)
    counted = (0,) * len(window.pads)
    if node.integer("count_include_pad", 0):
        counted = window.stated_pads
    _pool(node, emit, "avg_pool2d", window, counted=counted)


@onnx_op("LpPool", limits="1 to 3 spatial dimensions")
def lp_pool(node: OnnxNode, emit: Emitter) -> None:
    """The p-th root of the sum of |x|**p over each window."""
    window = _window(node, emit)
    data, power = node.inputs[0], node.integer("p", 2)
    op, attrs = _pool_of("avg_pool2d", window, counted=window.pads)
    mean = emit.temp(op, to_image(emit, _power(emit, data, power)), label="mean", **attrs)
    mean = from_image(emit, mean, len(emit.shape(data)) - 2)
    count = emit.scalar(prod(window.kernel), mean, "count")
    _root(emit, emit.temp("multiply", mean, count, label="sum"), power)


@onnx_op("GlobalLpPool")
def global_lp_pool(node: OnnxNode, emit: Emitter) -> None:
    """The p-th root of the sum of |x|**p over all positions."""
    data, power = node.inputs[0], node.integer("p", 2)
    axes = tuple(range(2, len(emit.shape(data))))
    powers = _power(emit, data, power)
    _root(emit, emit.temp("reduce_sum", powers, label="sum", axes=axes, keepdims=True), power)


def _power(emit: Emitter, data: str, power: int) -> str:
    """|x| ** power."""
    if power == 2:
        return emit.temp("multiply", data, data, label="square")
    size = emit.temp("abs", data)
    if power == 1:
        return size
    return emit.temp("power", size, emit.scalar(power, data, "p"), label="power")


def _root(emit: Emitter, total: str, power: int) -> None:
    """The node's output: total ** (1 / power)."""
    if power == 1:
        return emit.out("identity", total)
    if power == 2:
        return emit.out("sqrt", total)
    return emit.out("power", total, emit.scalar(1 / power, total, "root"))


@onnx_op("GlobalAveragePool", "GlobalMaxPool")
def global_pool(node: OnnxNode, emit: Emitter) -> None:
    """The mean or maximum over all spatial positions."""
    average = node.op_type == "GlobalAveragePool"
    rank = len(emit.shape(node.inputs[0]))
    if rank == 4:
        op = "global_avg_pool" if average else "global_max_pool"
        return emit.out(op, node.inputs[0], layout="NCHW")
    op = "reduce_mean" if average else "reduce_max"
    return emit.out(op, node.inputs[0], axes=tuple(range(2, rank)), keepdims=True)


@onnx_op("MaxUnpool", since=9)
def max_unpool(node: OnnxNode, emit: Emitter) -> None:
    """Zeros, but for elements at their positions in the whole output; of equal ones the last."""
    data, places = node.inputs[:2]
    shape = unpooled_shape(node, emit.shape(data))
    if node.has_input(2):
        shape = emit.index_list(2, "the shape of the output")
    count, extent = prod(emit.shape(data)), prod(shape)
    dtype = emit.type(data).dtype
    made = scattered(
        emit,
        emit.filled("zeros", (1, extent, 1), np.zeros((), dtype.numpy)),
        emit.reshaped(places, (1, count)),
        emit.reshaped(data, (1, count, 1)),
        "none",
    )
    return emit.host() if made is None else emit.out("reshape", made, shape=shape)


def unpooled_shape(node: OnnxNode, shape: Sequence[int]) -> tuple[int, ...]:
    """What MaxUnpool makes of data of that shape, unless an input states it. Raises: ModelError."""
    rank = len(shape) - 2
    kernel, strides = node.ints("kernel_shape", ()), node.ints("strides", (1,) * rank)
    pads = node.ints("pads", (0,) * (2 * rank))
    check_entries(rank, kernel_shape=kernel, strides=strides, pads=pads)
    extents = [
        (n - 1) * strides[d] + kernel[d] - pads[d] - pads[d + rank] for d, n in enumerate(shape[2:])
    ]
    return (*shape[:2], *extents)

"""Transposed convolution, and columns put back into an image."""

from math import prod
from typing import Any

import numpy as np

from retune.core.errors import ModelError
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op
from retune.frontend.onnx.ops.windows import (
    check_entries,
    data_layout,
    finished,
    spatial_extents,
    to_image,
)
from retune.ops import Array


@onnx_op("ConvTranspose")
def conv_transpose(node: OnnxNode, emit: Emitter) -> None:
    """The transpose of a convolution in groups; a bias is added afterwards."""
    extents, groups = spatial_extents(emit, node.inputs[0]), node.integer("group", 1)
    strides, dilations, pads = _window(node, emit, extents)
    data, weight = (to_image(emit, value) for value in node.inputs[:2])
    if len(extents) == 1:
        strides, dilations, pads = (1, *strides), (1, *dilations), (0, pads[0], 0, pads[1])
    attrs: dict[str, Any] = {
        "strides": strides,
        "dilations": dilations,
        "pads": pads,
        "groups": groups,
        "layout": data_layout(len(strides)),
    }
    kernel, bias = _kernel(emit, weight, groups), node.inputs[2] if node.has_input(2) else ""
    if not bias and len(extents) > 1:
        return emit.out("conv_transpose", data, kernel, **attrs)
    result = emit.temp("conv_transpose", data, kernel, label="conv", **attrs)
    return finished(emit, result, bias, len(extents), emit.out)


def _kernel(emit: Emitter, weight: str, groups: int) -> str:
    """[in, made / groups, taps...] as [made, in / groups, taps...]."""
    inner, each, *taps = emit.shape(weight)
    apart = emit.reshaped(weight, (groups, inner // groups, each, *taps))
    perm = (0, 2, 1, *(3 + d for d in range(len(taps))))
    moved = emit.temp("transpose", apart, label="kernel.moved", perm=perm)
    return emit.reshaped(moved, (groups * each, inner // groups, *taps))


def _window(
    node: OnnxNode, emit: Emitter, extents: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Strides and dilations, and what is cut off the result: begins, then ends, which may be less
    than nothing. Raises: ModelError."""
    rank, shape, groups = len(extents), emit.shape(node.inputs[1]), node.integer("group", 1)
    channels = emit.shape(node.inputs[0])[1]
    if len(shape) != rank + 2 or shape[0] != channels or channels % groups:
        raise ModelError(
            f"the weight '{node.inputs[1]}' of shape {list(shape)} in {groups} groups; expected "
            f"{rank + 2} dimensions, of which the first has the data's {channels} channels, and a "
            "number of groups that divides them"
        )
    taps = shape[2:]
    strides, dilations = node.ints("strides", (1,) * rank), node.ints("dilations", (1,) * rank)
    extra, stated = node.ints("output_padding", (0,) * rank), node.ints("output_shape", ())
    pads, mode = node.ints("pads", (0,) * 2 * rank), node.text("auto_pad", "NOTSET")
    check_entries(
        rank,
        kernel_shape=node.ints("kernel_shape", taps),
        strides=strides,
        dilations=dilations,
        output_padding=extra,
        pads=pads,
    )
    cut: list[tuple[int, int]] = []
    for d, extent in enumerate(extents):
        whole = strides[d] * (extent - 1) + extra[d] + (taps[d] - 1) * dilations[d] + 1
        begin, end = (0, 0) if mode == "VALID" else (pads[d], pads[d + rank])
        if stated or mode in ("SAME_UPPER", "SAME_LOWER"):
            wanted = stated[len(stated) - rank + d] if stated else extent * strides[d]
            total = max(0, whole - wanted)
            begin = total // 2 if mode == "SAME_UPPER" else total - total // 2
            end = whole - wanted - begin
        cut.append((begin, end - extra[d]))
    return strides, dilations, (*(begin for begin, _ in cut), *(end for _, end in cut))


@onnx_op("Col2Im", limits="shapes known while importing")
def columns_to_image(node: OnnxNode, emit: Emitter) -> None:
    """Blocks of an image, laid out as columns, added up where they were taken from."""
    image, block = emit.index_list(1, "the image's shape"), emit.index_list(2, "the block's shape")
    rank = len(image)
    batch, packed, length = emit.shape(node.inputs[0])
    strides, dilations = node.ints("strides", (1,) * rank), node.ints("dilations", (1,) * rank)
    pads = node.ints("pads", (0,) * 2 * rank)
    counts = [
        (image[d] + pads[d] + pads[d + rank] - (block[d] - 1) * dilations[d] - 1) // strides[d] + 1
        for d in range(rank)
    ]
    if len(block) != rank or packed % prod(block) or prod(counts) != length:
        raise ModelError(
            f"columns {[batch, packed, length]} of blocks {list(block)} in an image of "
            f"{list(image)}: expected {prod(counts)} blocks, of {prod(block)} elements a channel"
        )
    indices, weights = np.zeros((1,) * 2 * rank, np.int64), np.ones((1,) * 2 * rank)
    for d in range(rank):
        tap, count, used = _contributions(
            image[d], block[d], counts[d], strides[d], dilations[d], pads[d]
        )
        sides = [1] * (2 * rank)
        sides[d], sides[rank + d] = used.shape
        own = tap * (prod(block[d + 1 :]) * length) + count * prod(counts[d + 1 :])
        indices, weights = indices + own.reshape(sides), weights * used.reshape(sides)
    channels, table = packed // prod(block), (1, prod(image), -1)
    dtype = emit.type(node.inputs[0]).dtype
    tables = [
        emit.stored("table", array.reshape(table))
        for array in (indices.astype(np.int32), weights.astype(dtype))
    ]
    flat = emit.reshaped(node.inputs[0], (batch, channels, prod(block) * length))
    result = emit.temp("sample", flat, *tables, axis=2)
    emit.out("reshape", result, shape=(batch, channels, *image))


def _contributions(
    extent: int, taps: int, count: int, stride: int, dilation: int, begin: int
) -> tuple[Array, Array, Array]:
    """For each position of one dimension: the taps and blocks that add to it, and whether any does.

    Three arrays [extent, most contributions]; where there is none, tap and block are 0.
    """
    found: list[list[tuple[int, int]]] = [[] for _ in range(extent)]
    for tap in range(taps):
        for block in range(count):
            at = block * stride - begin + tap * dilation
            if 0 <= at < extent:
                found[at].append((tap, block))
    most = max(1, *map(len, found))
    pairs = np.zeros((extent, most, 2), np.int64)
    used = np.zeros((extent, most))
    for at, entries in enumerate(found):
        for position, pair in enumerate(entries):
            pairs[at, position] = pair
            used[at, position] = 1
    return pairs[:, :, 0], pairs[:, :, 1], used

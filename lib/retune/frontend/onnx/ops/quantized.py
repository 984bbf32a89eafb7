"""Quantized ops as what they mean: q stands for (q - zero point) * scale.

Read `quantize` and `rescaled` first. Sums of products are taken in int32, of values less their zero
points, and rescaled in float32. Quotients are rounded half to even, then shifted by the zero point
and saturated; they are right to the last bit, since it decides where ties are. Products with known
bytes are those of `bytewise`, whatever the zero points and scales are.
"""

from collections.abc import Callable
from math import prod
from typing import TypeVar

import numpy as np

from retune.core.dtypes import FLOAT32, INT32, UINT8, DType
from retune.core.errors import ModelError
from retune.frontend.onnx.ops.bytewise import byte_convolution, byte_product, byte_weight
from retune.frontend.onnx.ops.linear import matrix_product
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op, positive_axis
from retune.frontend.onnx.ops.windows import convolution, convolve, finished
from retune.proto.file import element_type

T = TypeVar("T")

_LEAST_READ = 2


@onnx_op("QuantizeLinear", limits="to integers of at most 16 bits")
def quantize(node: OnnxNode, emit: Emitter) -> None:
    """saturate(round(x / scale) + zero point), per tensor, along an axis, or in blocks of it."""
    data, scale = _checked(node, emit)
    zero = _spread(node, emit, node.inputs[2]) if node.has_input(2) else ""
    made = _stated_type(node, "output_dtype", emit.type(zero).dtype if zero else UINT8)
    usual = emit.type(scale).dtype
    precision = _stated_type(node, "precision", usual if usual.is_float else FLOAT32)
    divisor = emit.cast(_spread(node, emit, scale), precision)
    quotient = emit.temp("quotient", emit.cast(data, precision), divisor)
    saturated(emit, quotient, zero, made, emit.out)


@onnx_op("DequantizeLinear")
def dequantize(node: OnnxNode, emit: Emitter) -> None:
    """(q - zero point) * scale, in the type of the scale or as output_dtype says."""
    data, scale = _checked(node, emit)
    made = _stated_type(node, "output_dtype", emit.type(scale).dtype)
    if node.has_input(2) and not _is_zero(emit, node.inputs[2]):
        data = less_zero(emit, data, _spread(node, emit, node.inputs[2]))
    factor = emit.cast(_spread(node, emit, scale), made)
    emit.out("multiply", emit.cast(data, made), factor)


def _checked(node: OnnxNode, emit: Emitter) -> tuple[str, str]:
    """The data and the scale, which is of finite numbers. Raises: ModelError."""
    if len(node.inputs) < _LEAST_READ:
        raise ModelError("expected data and a scale, got one input; export the model again")
    data, scale = node.inputs[:2]
    dtype, known = emit.type(scale).dtype, emit.known(scale)
    if not dtype.is_float:
        raise ModelError(f"scale of {dtype}: expected float32 or float16; export the model again")
    if known is not None and not np.all(np.isfinite(known)):
        raise ModelError("scale: expected finite numbers, got inf or nan; quantize the model again")
    return data, scale


@onnx_op("MatMulInteger")
def matmul_integer(node: OnnxNode, emit: Emitter) -> None:
    """The int32 product of matrices; zero points for each row on the left, column on the right."""
    left = node.inputs[0], node.inputs[2] if node.has_input(2) else ""
    right = node.inputs[1], node.inputs[3] if node.has_input(3) else ""
    integer_product(emit, left, right, emit.out)


@onnx_op("QLinearMatMul")
def quantized_matmul(node: OnnxNode, emit: Emitter) -> None:
    """The product of quantized matrices, quantized; scales as the zero points of MatMulInteger."""
    a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = node.inputs
    total = integer_product(emit, (a, a_zero), (b, b_zero), emit.temp)
    rescaled(emit, total, (_column(emit, a_scale, 1), b_scale, scale), zero)


@onnx_op("ConvInteger")
def conv_integer(node: OnnxNode, emit: Emitter) -> None:
    """The int32 convolution of values less their zero points; padding counts as the zero point."""
    data = node.inputs[0], node.inputs[2] if node.has_input(2) else ""
    kernel = node.inputs[1], node.inputs[3] if node.has_input(3) else ""
    _convolution(node, emit, data, kernel, "", emit.out)


@onnx_op("QLinearConv")
def quantized_conv(node: OnnxNode, emit: Emitter) -> None:
    """A convolution of quantized data, quantized; the kernel's scale may differ by channel."""
    data, data_scale, data_zero, kernel, kernel_scale, kernel_zero, scale, zero = node.inputs[:8]
    bias = node.inputs[8] if node.has_input(8) else ""
    sides = len(emit.shape(kernel)) - 2
    total = _convolution(node, emit, (data, data_zero), (kernel, kernel_zero), bias, emit.temp)
    rescaled(emit, total, (data_scale, _column(emit, kernel_scale, sides), scale), zero)


def integer_product(
    emit: Emitter, left: tuple[str, str], right: tuple[str, str], put: Callable[..., T]
) -> T:
    """The int32 product of values less their zero points ('' for none).

    A known matrix of bytes on the right is multiplied as instructions take it.
    """
    (a, a_zero), (b, b_zero) = left, right
    rows = _column(emit, a_zero, 1) if a_zero else ""
    whole = len(emit.shape(a)) > 1 and len(emit.shape(b)) == 2
    weight = byte_weight(emit, a, b, b_zero) if whole else None
    if weight is not None:
        return byte_product(emit, (a, rows and _single(emit, rows)), weight, put)
    return matrix_product(emit, less_zero(emit, a, rows), less_zero(emit, b, b_zero), put)


def _convolution(
    node: OnnxNode,
    emit: Emitter,
    data: tuple[str, str],
    kernel: tuple[str, str],
    bias: str,
    put: Callable[..., T],
) -> T:
    """The int32 convolution of values less their zero points ('' for none), plus a bias.

    A known kernel of bytes is multiplied as instructions take it.
    """
    (images, zero), (taps, taps_zero) = data, kernel
    own = _column(emit, taps_zero, len(emit.shape(taps)) - 1) if taps_zero else ""
    weight = byte_weight(emit, images, taps, own)
    groups = node.integer("group", 1)
    if weight is None or (groups > 1 and np.any(weight.rest)):
        sources = less_zero(emit, images, zero), less_zero(emit, taps, own), bias
        return convolve(node, emit, sources, put)
    rank = weight.values.ndim - 2
    call, (shaped, _) = convolution(node, emit, images, taps)
    weight = weight if rank > 1 else weight.flat()
    around = zero and _single(emit, zero)
    if not bias and rank > 1:
        return byte_convolution(emit, call, (shaped, around), weight, put)
    total = byte_convolution(emit, call, (shaped, around), weight, emit.temp)
    return finished(emit, total, bias, rank, put)


def rescaled(emit: Emitter, total: str, scales: tuple[str, str, str], zero: str) -> None:
    """The node's output: the int32 sums times left * right / result scale, quantized."""
    left, right, result = (_single(emit, emit.cast(scale, FLOAT32)) for scale in scales)
    factor = emit.temp("divide", emit.temp("multiply", left, right), result, label="factor")
    value = emit.temp("multiply", emit.cast(total, FLOAT32), factor, label="rescaled")
    saturated(emit, value, _single(emit, zero), emit.type(zero).dtype, emit.out)


def _stated_type(node: OnnxNode, attribute: str, usual: DType) -> DType:
    """The element type that an attribute names by its number; the usual one where it does not."""
    number = node.integer(attribute, 0)
    return element_type(number, attribute) if number else usual


def saturated(emit: Emitter, value: str, zero: str, dtype: DType, put: Callable[..., T]) -> T:
    """The value rounded, shifted by a zero point ('' for none) and limited to what the type holds.

    `put` (`emit.temp` or `emit.out`) makes the last op. Raises: ModelError for other types.
    """
    if dtype.is_float or dtype.itemsize > 2:
        raise ModelError(f"quantizing to {dtype} is not supported; expected 8 or 16 bit integers")
    value = emit.cast(emit.temp("round", value), FLOAT32)
    if zero and not _is_zero(emit, zero):
        value = emit.temp("add", value, emit.cast(zero, FLOAT32), label="shifted")
    limits = np.iinfo(dtype)
    inside = emit.temp("clip", value, min=float(limits.min), max=float(limits.max))
    return put("cast", inside, to=dtype)


def less_zero(emit: Emitter, value: str, zero: str) -> str:
    """The value less its zero point, as int32; '' for no zero point."""
    wide = emit.cast(value, INT32)
    if not zero or _is_zero(emit, zero):
        return wide
    return emit.temp("subtract", wide, emit.cast(_single(emit, zero), INT32), label="centred")


def _spread(node: OnnxNode, emit: Emitter, value: str) -> str:
    """A scale or zero point so that it broadcasts with the node's data. Raises: ModelError."""
    shape, own = emit.shape(node.inputs[0]), emit.shape(value)
    rank, block = len(shape), node.integer("block_size", 0)
    if prod(own) == 1:
        return _single(emit, value)
    axis = positive_axis(node.integer("axis", 1), rank) if rank > 1 else 0
    if not block and own == shape[axis : axis + 1]:
        return emit.reshaped(value, (*own, *(1,) * (rank - axis - 1)))
    others = (*own[:axis], *own[axis + 1 :])
    if (
        not block
        or others != (*shape[:axis], *shape[axis + 1 :])
        or own[axis] * block < shape[axis]
    ):
        raise ModelError(
            f"scale or zero point {emit.type(value)} for data {list(shape)} along axis {axis}, "
            f"block_size {block}: expected one element, {shape[axis]} elements, or the data's "
            f"shape with an element for each block along the axis"
        )
    apart = emit.reshaped(value, (*own[: axis + 1], 1, *own[axis + 1 :]))
    repeated = (*own[: axis + 1], block, *own[axis + 1 :])
    wide = emit.temp("broadcast_to", apart, label="blocks", shape=repeated)
    flat = emit.reshaped(wide, (*own[:axis], own[axis] * block, *own[axis + 1 :]))
    return emit.part(flat, axis, 0, shape[axis])


def _single(emit: Emitter, value: str) -> str:
    """A value of one element as a scalar; any other as it is."""
    return emit.reshaped(value, ()) if prod(emit.shape(value)) == 1 else value


def _column(emit: Emitter, value: str, sides: int) -> str:
    """A list of elements along a dimension that has `sides` others after it; others as they are."""
    shape = emit.shape(value)
    return emit.reshaped(value, (*shape, *(1,) * sides)) if len(shape) == 1 else value


def _is_zero(emit: Emitter, value: str) -> bool:
    known = emit.known(value)
    return known is not None and not np.any(known)

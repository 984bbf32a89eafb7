"""Dynamic quantization: float data become uint8 by their own range, while the network runs.

Read `quantized_by_range` first. onnxruntime's `quantize_dynamic` and its optimiser write products
of such data with int8 weights in several forms; all of them are `float_product`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from retune.core.dtypes import FLOAT32, UINT8
from retune.frontend.onnx.ops.loops import LoopBody
from retune.frontend.onnx.ops.quantized import integer_product, saturated
from retune.frontend.onnx.ops.recurrent import LSTM, import_layer
from retune.frontend.onnx.ops.recurrent_cells import Product
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op
from retune.proto.scope import MICROSOFT

T = TypeVar("T")

_LENGTHS = 4
"""The input of a recurrent layer with the lengths of its sequences."""
_OF_DATA, _OF_STATE = (8, 9), (10, 11)
"""The inputs with scale and zero point of W and of R."""
_LEVELS = 255.0
"""Steps of uint8 between the least and the greatest value."""


@dataclass(frozen=True, slots=True)
class Quantized:
    """Quantized values: they stand for (values - zero) * scale."""

    values: str
    scale: str
    zero: str
    """'' for none."""


def quantized_by_range(emit: Emitter, data: str) -> Quantized:
    """The float32 data as uint8, with the scale and zero point that onnxruntime's CPU gives them.

    The range is that of all elements and 0. Data of zeros only have the scale 1.
    """
    nothing = emit.scalar(0.0, data, "zero")
    least, most = (
        emit.temp(pick, _over_all(emit, f"reduce_{reduce}", data), nothing)
        for reduce, pick in (("min", "minimum"), ("max", "maximum"))
    )
    extent = emit.temp("subtract", most, least, label="extent")
    step = emit.temp("quotient", extent, emit.scalar(_LEVELS, data, "levels"), label="step")
    empty = emit.temp("equal", extent, nothing, label="empty")
    scale = emit.temp("where", empty, emit.scalar(1.0, data, "one"), step, label="scale")
    below = emit.temp("quotient", emit.temp("subtract", nothing, least), scale, label="below")
    inside = emit.temp("clip", emit.temp("round", below), min=0.0, max=_LEVELS)
    zero = emit.cast(inside, UINT8)
    shift = emit.cast(zero, FLOAT32)  # before the data are read: one kernel then quantizes them
    quotient = emit.temp("quotient", data, scale, label="quotient")
    return Quantized(saturated(emit, quotient, shift, UINT8, emit.temp), scale, zero)


def _over_all(emit: Emitter, op: str, data: str) -> str:
    """A reduction of all elements: of each row, which cores and lanes share, and then of these."""
    for axis in reversed(range(len(emit.shape(data)))):
        data = emit.temp(op, data, axes=(axis,), keepdims=False)
    return data


@onnx_op("DynamicQuantizeLinear", since=11)
def dynamic_quantize(node: OnnxNode, emit: Emitter) -> None:
    """uint8 data, their scale and zero point by the range of the data."""
    made = quantized_by_range(emit, node.inputs[0])
    for index, value in enumerate((made.values, made.scale, made.zero)):
        if node.has_output(index):
            emit.same(value, index)


@onnx_op("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_matmul(node: OnnxNode, emit: Emitter) -> None:
    """Float data, quantized by their range, times a quantized matrix, plus a bias: float32."""
    weight = Quantized(node.inputs[1], node.inputs[2], _optional(node, 3))
    data = quantized_by_range(emit, node.inputs[0])
    float_product(emit, data, weight, _optional(node, 4), emit.out)


@onnx_op("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_to_float(node: OnnxNode, emit: Emitter) -> None:
    """A product of quantized matrices as float32, plus a bias."""
    left = Quantized(node.inputs[0], node.inputs[2], _optional(node, 4))
    right = Quantized(node.inputs[1], node.inputs[3], _optional(node, 5))
    float_product(emit, left, right, _optional(node, 6), emit.out)


def float_product(
    emit: Emitter, left: Quantized, right: Quantized, bias: str, put: Callable[..., T]
) -> T:
    """The product of quantized matrices in float32, plus a bias ('' for none).

    It is summed in int32. The scale on the left is one, that on the right one or one for each
    column. `put` (`emit.temp` or `emit.out`) makes the last op.
    """
    of_left = emit.reshaped(left.scale, ())
    columns = (
        right.scale if np.prod(emit.shape(right.scale)) > 1 else emit.reshaped(right.scale, ())
    )
    # The factor stands before the product, whose kernel then rescales the sums.
    factor = emit.temp("multiply", of_left, columns, label="factor")
    total = integer_product(emit, (left.values, left.zero), (right.values, right.zero), emit.temp)
    value = emit.cast(total, FLOAT32)
    if not bias:
        return put("multiply", value, factor)
    return put("add", emit.temp("multiply", value, factor, label="rescaled"), bias)


@onnx_op("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamic_lstm(node: OnnxNode, emit: Emitter) -> None:
    """LSTM with int8 or uint8 weights: the data and each step's state are quantized by their range.

    As onnxruntime's CPU computes it on one thread: the range is that of the whole batch, and for
    the data that of all steps up to the longest sequence.
    """
    if node.has_input(_LENGTHS):
        node = replace(node, inputs=(_inside(node, emit), *node.inputs[1:]))
    import_layer(node, emit, LSTM, QuantizedWeights(node, emit))


def _inside(node: OnnxNode, emit: Emitter) -> str:
    """The data, with zeros after the end of the longest sequence."""
    data, lengths = node.inputs[0], node.inputs[_LENGTHS]
    shape, dtype = (emit.shape(data)[0], 1, 1), emit.type(lengths).dtype
    steps = emit.counted("steps", shape, (1, 0, 0), dtype=dtype)
    longest = emit.temp("reduce_max", lengths, axes=(0,), keepdims=False)
    inside = emit.temp("less", steps, longest, label="inside")
    return emit.temp("where", inside, data, emit.scalar(0.0, data, "nothing"))


@dataclass(frozen=True, slots=True)
class QuantizedWeights:
    """W and R of a DynamicQuantizeLSTM, one column for each unit of each gate.

    A scale is one for each direction, or one for each of its columns; so is a zero point.
    """

    node: OnnxNode
    emit: Emitter
    _read: dict[str, Quantized] = field(default_factory=dict[str, Quantized])
    """Data that were quantized already."""

    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Those of W and R, had they a row for each unit."""
        first, second = (self.emit.shape(value) for value in self.node.inputs[1:3])
        return (first[0], first[2], first[1]), (second[0], second[2], second[1])

    def data(self, direction: int, rows: str) -> str:
        """The product of quantized data with W."""
        if rows not in self._read:
            self._read[rows] = quantized_by_range(self.emit, rows)
        weight = Quantized(*self._parts((1, *_OF_DATA), direction))
        return float_product(self.emit, self._read[rows], weight, "", self.emit.temp)

    def state(self, direction: int, body: LoopBody) -> Product:
        """Products of quantized states with R."""
        emit, hidden = body.emit, self.shapes()[1][-1]
        whole = [body.capture(part) for part in self._parts((2, *_OF_STATE), direction)]

        def columns(part: str, first: int, count: int) -> str:
            last = len(emit.shape(part)) - 1
            return emit.part(part, last, first * hidden, count * hidden) if last >= 0 else part

        def product(rows: str, first: int, count: int) -> str:
            weight = Quantized(*(columns(part, first, count) for part in whole))
            return float_product(emit, quantized_by_range(emit, rows), weight, "", emit.temp)

        return product

    def _parts(self, positions: tuple[int, int, int], direction: int) -> tuple[str, str, str]:
        """Values, scale and zero point of one direction; positions are those of three inputs."""
        values, scale, zero = (
            self.emit.single(self.node.inputs[position], 0, direction) for position in positions
        )
        return values, scale, zero


def _optional(node: OnnxNode, index: int) -> str:
    return node.inputs[index] if node.has_input(index) else ""

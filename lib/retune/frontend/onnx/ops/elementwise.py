"""Element-wise ops whose form differs from ours; the others stand beside their definitions."""

from functools import reduce
from math import inf

import numpy as np

from retune.core.dtypes import BOOL, INT8, NUMPY_DTYPES, UINT8, DType
from retune.core.errors import ModelError
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op
from retune.proto.file import known_element_type

CHAINS: dict[str, str] = {"Sum": "add", "Mean": "add", "Min": "minimum", "Max": "maximum"}
"""ONNX op of many inputs -> the graph op that chains them."""


GELU = {"none": "gelu", "tanh": "gelu_tanh"}
"""The attribute `approximate` of Gelu -> graph op."""


@onnx_op("Gelu")
def gelu(node: OnnxNode, emit: Emitter) -> None:
    """x times the normal distribution's function of x, or its approximation by tanh."""
    emit.out(GELU[node.choice("approximate", GELU)], node.inputs[0])


@onnx_op(*CHAINS)
def chain(node: OnnxNode, emit: Emitter) -> None:
    """Any number of inputs, combined from left to right."""
    op, inputs = CHAINS[node.op_type], list(node.inputs)
    if node.op_type == "Mean" and len(inputs) > 1:
        total = reduce(lambda left, right: emit.temp(op, left, right), inputs)
        return emit.out("multiply", total, emit.scalar(1 / len(inputs), total, "share"))
    total = inputs[0]
    for position, value in enumerate(inputs[1:], start=2):
        if position == len(inputs):
            return emit.out(op, total, value)
        total = emit.temp(op, total, value)
    return emit.out("identity", total)


@onnx_op("Clip", by_rank=True)
def clip_by_attributes(node: OnnxNode, emit: Emitter) -> None:
    """Limits as attributes, until opset 10."""
    low, high = node.number("min", -inf), node.number("max", inf)
    emit.out("clip", node.inputs[0], min=low, max=high)


@onnx_op("Clip", since=11, by_rank=True)
def clip_by_inputs(node: OnnxNode, emit: Emitter) -> None:
    """Limits as optional inputs; limits known only at run time become minimum and maximum."""
    data = node.inputs[0]
    low = node.inputs[1] if node.has_input(1) else ""
    high = node.inputs[2] if node.has_input(2) else ""
    known = [emit.known(value) for value in (low, high) if value]
    if emit.type(data).dtype.is_float and all(item is not None for item in known):
        limits = [
            float(np.reshape(emit.build.constants[value], ())) if value else default
            for value, default in ((low, -inf), (high, inf))
        ]
        return emit.out("clip", data, min=limits[0], max=limits[1])
    if low:
        data = emit.temp("maximum", data, low)
    if high:
        data = emit.temp("minimum", data, high)
    return emit.out("identity", data)


def stated_type(node: OnnxNode, key: str) -> DType:
    """The element type whose ONNX number is that attribute. Raises: ModelError if it is none."""
    number = node.integer(key, 0)
    found = known_element_type(number)
    if found is None:
        raise ModelError(
            f"casting to ONNX element type {number} is not supported; expected one of "
            f"{', '.join(sorted(NUMPY_DTYPES))}"
        )
    return found


@onnx_op("Cast", by_rank=True)
def cast(node: OnnxNode, emit: Emitter) -> None:
    """The elements as another type."""
    emit.out("cast", node.inputs[0], to=stated_type(node, "to"))


@onnx_op("Dropout", limits="inference only, or a ratio of 0")
def dropout(node: OnnxNode, emit: Emitter) -> None:
    """Nothing, in inference or with a ratio of 0; the mask is all true (ones until opset 9)."""
    if node.has_input(2) and bool(emit.contents(2, "training_mode").reshape(-1)[0]):
        ratio = float(emit.contents(1, "the ratio").reshape(-1)[0]) if node.has_input(1) else 0.5
        if ratio:
            raise emit.refuse("Dropout in training mode", "export the model for inference")
    if node.has_output(1):
        dtype = BOOL if node.opset >= 10 else emit.type(node.inputs[0]).dtype
        emit.out_filled(emit.shape(node.inputs[0]), np.ones((), dtype), index=1)
    emit.out("identity", node.inputs[0])


@onnx_op("IsInf", since=10)
def is_inf(node: OnnxNode, emit: Emitter) -> None:
    """Infinities of the signs asked for."""
    data = node.inputs[0]
    negative, positive = node.integer("detect_negative", 1), node.integer("detect_positive", 1)
    if negative and positive:
        return emit.out("is_inf", data)
    if not negative and not positive:
        return emit.out_filled(emit.shape(data), np.zeros((), np.bool_))
    side = emit.temp("greater" if positive else "less", data, emit.scalar(0, data, "zero"))
    return emit.out("logical_and", emit.temp("is_inf", data), side)


@onnx_op("Mod", since=10)
def mod(node: OnnxNode, emit: Emitter) -> None:
    """The remainder with the divisor's sign, with fmod with the dividend's."""
    emit.out("fmod" if node.integer("fmod", 0) else "mod", node.inputs[0], node.inputs[1])


@onnx_op("BitShift", since=11)
def bit_shift(node: OnnxNode, emit: Emitter) -> None:
    """To the left or the right."""
    direction = node.text("direction", "")
    if direction not in ("LEFT", "RIGHT"):
        raise emit.refuse(f"the direction '{direction}'", "expected LEFT or RIGHT")
    emit.out(f"shift_{direction.lower()}", node.inputs[0], node.inputs[1])


@onnx_op("BitCast", since=26)
def bit_cast(node: OnnxNode, emit: Emitter) -> None:
    """The bits as another type of the same size; a bool is the byte 0 or 1."""
    to, own = stated_type(node, "to"), emit.type(node.inputs[0]).dtype
    as_byte = BOOL in (to, own) and {to, own} <= {BOOL, INT8, UINT8}
    emit.out("cast" if to == own or as_byte else "bitcast", node.inputs[0], to=to)

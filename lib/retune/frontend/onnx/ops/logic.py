"""Logic, comparisons, bits and remainders."""

import numpy as np

from retune.core.dtypes import BOOL, INT8, UINT8
from retune.frontend.onnx.ops.elementwise import stated_type
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op

BINARY: dict[str, str] = {
    "And": "logical_and",
    "Or": "logical_or",
    "Xor": "logical_xor",
    "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
    "LessOrEqual": "less_equal",
    "GreaterOrEqual": "greater_equal",
}
"""ONNX op of two inputs -> graph op."""

UNARY: dict[str, str] = {"Not": "logical_not", "BitwiseNot": "bitwise_not", "IsNaN": "is_nan"}
"""ONNX op of one input -> graph op."""


@onnx_op("And", "Or", "Xor")
@onnx_op("BitwiseAnd", "BitwiseOr", "BitwiseXor", since=18)
@onnx_op("LessOrEqual", "GreaterOrEqual", since=12)
def binary(node: OnnxNode, emit: Emitter) -> None:
    """Two inputs with numpy's broadcasting."""
    emit.out(BINARY[node.op_type], node.inputs[0], node.inputs[1])


@onnx_op("Not")
@onnx_op("IsNaN", since=9)
@onnx_op("BitwiseNot", since=18)
def unary(node: OnnxNode, emit: Emitter) -> None:
    """One element in, one out."""
    emit.out(UNARY[node.op_type], node.inputs[0])


@onnx_op("IsInf", since=10)
def is_inf(node: OnnxNode, emit: Emitter) -> None:
    """Infinities of the signs asked for."""
    data = node.inputs[0]
    negative, positive = node.integer("detect_negative", 1), node.integer("detect_positive", 1)
    if negative and positive:
        return emit.out("is_inf", data)
    if not negative and not positive:
        emit.build.constant(node.outputs[0], np.zeros(emit.shape(data), np.bool_))
        return None
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

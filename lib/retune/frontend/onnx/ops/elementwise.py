"""Element-wise ops of one and of several inputs."""

from functools import reduce
from math import inf
from typing import Any

import numpy as np

from retune.core.dtypes import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    DType,
)
from retune.core.errors import ModelError
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op

UNARY: dict[str, str] = {
    "Relu": "relu",
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "Exp": "exp",
    "Log": "log",
    "Sqrt": "sqrt",
    "Abs": "abs",
    "Neg": "negative",
    "Floor": "floor",
    "Ceil": "ceil",
    "Round": "round",
    "Reciprocal": "reciprocal",
    "Softplus": "softplus",
    "Softsign": "softsign",
    "Erf": "erf",
    "HardSwish": "hard_swish",
    "Sin": "sin",
    "Cos": "cos",
    "Tan": "tan",
    "Asin": "arcsin",
    "Acos": "arccos",
    "Atan": "arctan",
    "Sinh": "sinh",
    "Cosh": "cosh",
    "Asinh": "arcsinh",
    "Acosh": "arccosh",
    "Atanh": "arctanh",
    "Sign": "sign",
    "Mish": "mish",
}
"""ONNX op -> graph op, where neither has attributes."""

UNARY_ATTRS: dict[str, tuple[str, dict[str, float]]] = {
    "LeakyRelu": ("leaky_relu", {"alpha": 0.01}),
    "Elu": ("elu", {"alpha": 1.0}),
    "Selu": ("selu", {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}),
    "HardSigmoid": ("hard_sigmoid", {"alpha": 0.2, "beta": 0.5}),
    "Swish": ("swish", {"alpha": 1.0}),
}
"""ONNX op -> graph op and its attributes' defaults."""

BINARY: dict[str, str] = {
    "Add": "add",
    "Sub": "subtract",
    "Mul": "multiply",
    "Div": "divide",
    "Pow": "power",
    "Equal": "equal",
    "Less": "less",
    "Greater": "greater",
}
"""ONNX op -> graph op."""

CHAINS: dict[str, str] = {"Sum": "add", "Mean": "add", "Min": "minimum", "Max": "maximum"}
"""ONNX op of many inputs -> the graph op that chains them."""


@onnx_op(*UNARY)
def unary(node: OnnxNode, emit: Emitter) -> None:
    """One element in, one out."""
    emit.out(UNARY[node.op_type], node.inputs[0])


@onnx_op(*UNARY_ATTRS)
def unary_with_attributes(node: OnnxNode, emit: Emitter) -> None:
    """One element in, one out, with float attributes."""
    op, defaults = UNARY_ATTRS[node.op_type]
    attrs: dict[str, Any] = {key: node.number(key, value) for key, value in defaults.items()}
    emit.out(op, node.inputs[0], **attrs)


GELU = {"none": "gelu", "tanh": "gelu_tanh"}
"""The attribute `approximate` of Gelu -> graph op."""


@onnx_op("Gelu")
def gelu(node: OnnxNode, emit: Emitter) -> None:
    """x times the normal distribution's function of x, or its approximation by tanh."""
    form = node.text("approximate", "none")
    if form not in GELU:
        raise ModelError(f"approximate '{form}' is not known; expected one of {', '.join(GELU)}")
    emit.out(GELU[form], node.inputs[0])


@onnx_op(*BINARY)
def binary(node: OnnxNode, emit: Emitter) -> None:
    """Two inputs with numpy's broadcasting."""
    emit.out(BINARY[node.op_type], node.inputs[0], node.inputs[1])


@onnx_op("PRelu")
def prelu(node: OnnxNode, emit: Emitter) -> None:
    """x, or slope * x where x is negative; the slope broadcasts to x."""
    emit.out("prelu", node.inputs[0], node.inputs[1])


@onnx_op("Where")
def where(node: OnnxNode, emit: Emitter) -> None:
    """Elements of the second or third input by the first."""
    emit.out("where", *node.inputs)


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


@onnx_op("Clip")
def clip_by_attributes(node: OnnxNode, emit: Emitter) -> None:
    """Limits as attributes, until opset 10."""
    low, high = node.number("min", -inf), node.number("max", inf)
    emit.out("clip", node.inputs[0], min=low, max=high)


@onnx_op("Clip", since=11)
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


CAST_TYPES: dict[int, DType] = {
    1: FLOAT32,
    2: UINT8,
    3: INT8,
    4: UINT16,
    5: INT16,
    6: INT32,
    7: INT64,
    9: BOOL,
    10: FLOAT16,
    11: FLOAT64,
    12: UINT32,
    13: UINT64,
    16: BFLOAT16,
}
"""ONNX element type number -> ours."""


def stated_type(node: OnnxNode, key: str) -> DType:
    """The element type whose ONNX number is that attribute. Raises: ModelError if it is none."""
    number = node.integer(key, 0)
    if number not in CAST_TYPES:
        raise ModelError(
            f"casting to ONNX element type {number} is not supported; expected one of "
            f"{', '.join(sorted({*CAST_TYPES.values()}))}"
        )
    return CAST_TYPES[number]


@onnx_op("Cast")
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
        emit.build.constant(node.outputs[1], np.ones(emit.shape(node.inputs[0]), dtype))
    emit.out("identity", node.inputs[0])

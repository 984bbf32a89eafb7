"""Products and activations that onnxruntime fuses with what stands beside them."""

from typing import Any

import numpy as np

from retune.core.dtypes import BOOL
from retune.core.errors import ModelError
from retune.frontend.onnx.ops.linear import matrix_product
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op, positive_axis
from retune.proto.scope import MICROSOFT

ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
    "HardSwish": (),
    "Gelu": (),
    "Softplus": (),
    "Softsign": (),
    "LeakyRelu": ("alpha",),
    "Elu": ("alpha",),
    "ThresholdedRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Selu": ("alpha", "gamma"),
    "Clip": ("min", "max"),
}
"""Activation of a fused operator, an ONNX operator's name -> its attributes in their order."""
CLIP_BY_ATTRIBUTES = 6
"""The opset in which Clip has its limits as attributes."""


def activated(emit: Emitter, value: str, name: str, given: dict[str, float]) -> str:
    """The activation of that name ('' for none) of the value. Raises: ModelError."""
    if not name:
        return value
    if name not in ACTIVATIONS:
        raise ModelError(
            f"activation '{name}': expected one of {', '.join(ACTIVATIONS)}; save the model "
            "without optimisations"
        )
    attrs: dict[str, Any] = {k: v for k, v in given.items() if k in ACTIVATIONS[name]}
    if name == "Clip":
        return emit.onnx(name, value, label="activation", opset=CLIP_BY_ATTRIBUTES, **attrs)
    return emit.onnx(name, value, label="activation", **attrs)


def listed_activation(node: OnnxNode, emit: Emitter, value: str) -> str:
    """The value after the node's activation, whose parameters are a list: `activation_params`."""
    name = node.text("activation", "")
    numbers = [float(item) for item in node.attrs.get("activation_params", ())]
    return activated(emit, value, name, dict(zip(ACTIVATIONS.get(name, ()), numbers, strict=False)))


def named_activation(node: OnnxNode, emit: Emitter, value: str) -> str:
    """The value after the node's activation; parameters are `activation_alpha`, `_beta`, ..."""
    prefix = "activation_"
    given = {k.removeprefix(prefix): v for k, v in node.attrs.items() if k.startswith(prefix)}
    name = node.text("activation", "")
    if name == "Softmax":
        return emit.onnx(name, value, label="activation", axis=int(given.get("axis", -1)))
    return activated(emit, value, name, given)


def without_activation(node: OnnxNode) -> dict[str, Any]:
    """The attributes that the operator has beside those of its activation."""
    return {key: value for key, value in node.attrs.items() if not key.startswith("activation")}


@onnx_op("FusedConv", domain=MICROSOFT)
def fused_conv(node: OnnxNode, emit: Emitter) -> None:
    """Activation of a convolution plus a sum (input 3)."""
    made = emit.onnx("Conv", *node.inputs[:3], **without_activation(node))
    if node.has_input(3):
        made = emit.temp("add", made, node.inputs[3], label="sum")
    emit.same(listed_activation(node, emit, made))


@onnx_op("FusedGemm", domain=MICROSOFT)
def fused_gemm(node: OnnxNode, emit: Emitter) -> None:
    """Activation of a Gemm."""
    made = emit.onnx("Gemm", *node.inputs, **without_activation(node))
    emit.same(named_activation(node, emit, made))


@onnx_op("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def fused_matmul(node: OnnxNode, emit: Emitter) -> None:
    """alpha times the product of matrices, each of which may be transposed."""
    emit.same(_scaled_product(node, emit))


@onnx_op("FusedMatMulActivation", domain=MICROSOFT)
def fused_matmul_activation(node: OnnxNode, emit: Emitter) -> None:
    """Activation of a FusedMatMul."""
    emit.same(named_activation(node, emit, _scaled_product(node, emit)))


def _scaled_product(node: OnnxNode, emit: Emitter) -> str:
    left, right = (_turned(node, emit, index) for index in (0, 1))
    made = matrix_product(emit, left, right, emit.temp)
    alpha = node.number("alpha", 1.0)
    return made if alpha == 1 else emit.temp("multiply", made, emit.scalar(alpha, made, "alpha"))


def _turned(node: OnnxNode, emit: Emitter, index: int) -> str:
    """The operand with its matrices as they are multiplied; a vector stays as it is.

    With transBatch the first dimension stands before the last one instead, ahead of transposing.
    """
    value, side = node.inputs[index], "AB"[index]
    axes = list(range(len(emit.shape(value))))
    if len(axes) < 2:
        return value
    if node.integer(f"transBatch{side}", 0):
        axes = [*axes[1:-1], axes[0], axes[-1]]
    if node.integer(f"trans{side}", 0):
        axes[-2:] = axes[-1], axes[-2]
    if axes == sorted(axes):
        return value
    return emit.temp("transpose", value, label=side.lower(), perm=tuple(axes))


@onnx_op("Gelu", domain=MICROSOFT)
def gelu(node: OnnxNode, emit: Emitter) -> None:
    """As Gelu of ONNX, by the normal distribution's function."""
    emit.out("gelu", node.inputs[0])


@onnx_op("BiasGelu", domain=MICROSOFT)
def bias_gelu(node: OnnxNode, emit: Emitter) -> None:
    """Gelu of the sum of data and a bias."""
    emit.out("gelu", _biased(node, emit))


@onnx_op("FastGelu", domain=MICROSOFT)
def fast_gelu(node: OnnxNode, emit: Emitter) -> None:
    """Gelu by tanh, of the sum of data and an optional bias."""
    emit.out("gelu_tanh", _biased(node, emit))


@onnx_op("GemmFastGelu", domain=MICROSOFT)
def gemm_fast_gelu(node: OnnxNode, emit: Emitter) -> None:
    """Gelu by tanh of a product plus an optional bias."""
    made = matrix_product(emit, node.inputs[0], node.inputs[1], emit.temp)
    if node.has_input(2):
        made = emit.temp("add", made, node.inputs[2], label="biased")
    emit.out("gelu_tanh", made)


@onnx_op("QuickGelu", domain=MICROSOFT)
def quick_gelu(node: OnnxNode, emit: Emitter) -> None:
    """x * sigmoid(alpha * x)."""
    emit.out("swish", node.inputs[0], alpha=node.number("alpha", 1.702))


def _biased(node: OnnxNode, emit: Emitter) -> str:
    """The first input plus the second, if there is one."""
    if not node.has_input(1):
        return node.inputs[0]
    return emit.temp("add", *node.inputs[:2], label="biased")


@onnx_op("BiasAdd", domain=MICROSOFT)
def bias_add(node: OnnxNode, emit: Emitter) -> None:
    """The sum of data, bias and residual."""
    emit.out("add", _biased(node, emit), node.inputs[2])


@onnx_op("BiasSplitGelu", domain=MICROSOFT)
def bias_split_gelu(node: OnnxNode, emit: Emitter) -> None:
    """The left half of the biased data times Gelu of its right half."""
    biased = _biased(node, emit)
    last = len(emit.shape(biased)) - 1
    half = emit.shape(biased)[last] // 2
    left, right = (emit.part(biased, last, begin, half) for begin in (0, half))
    emit.out("multiply", left, emit.temp("gelu", right))


@onnx_op("BiasSoftmax", domain=MICROSOFT)
def bias_softmax(node: OnnxNode, emit: Emitter) -> None:
    """Softmax of data plus bias over all dimensions from `axis` on.

    The bias has one element for each element of those dimensions, for each of the first ones
    (is_inner_broadcast) or for each of the last of the other dimensions.
    """
    data, bias = node.inputs
    shape, own = emit.shape(data), emit.shape(bias)
    axis = positive_axis(node.integer("axis", 1), len(shape))
    if node.integer("is_inner_broadcast", 1) and len(own) < len(shape):
        first = len(own) - (len(shape) - axis)
        bias = emit.reshaped(bias, (*own[:first], *(1,) * (len(shape) - len(own)), *own[first:]))
    emit.onnx_out("Softmax", emit.temp("add", data, bias, label="biased"), opset=11, axis=axis)


@onnx_op("BiasDropout", domain=MICROSOFT, limits="inference only, or a ratio of 0")
def bias_dropout(node: OnnxNode, emit: Emitter) -> None:
    """The sum of data, bias and an optional residual; the mask is all true."""
    made = emit.onnx("Dropout", _biased(node, emit), *node.inputs[3:5])
    if node.has_input(2):
        made = emit.temp("add", made, node.inputs[2], label="sum")
    emit.same(made)
    if node.has_output(1):
        emit.out_filled(emit.shape(node.inputs[0]), np.ones((), BOOL), index=1)

"""Quantized operators of com.microsoft that do not stand between pairs, or cannot.

Sums of products are those of `ops.quantized`, in int32. Other operators are float ones between
DequantizeLinear and QuantizeLinear, by the same rules as for whole networks: `by_rule`.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from retune.core.dtypes import FLOAT32, INT32
from retune.core.errors import ModelError
from retune.frontend.onnx.ops.contrib.attention import attend_projected
from retune.frontend.onnx.ops.contrib.layouts import channels_first
from retune.frontend.onnx.ops.contrib.normalisation import embedded
from retune.frontend.onnx.ops.dynamic import Quantized, float_product
from retune.frontend.onnx.ops.quantized import integer_product, less_zero, rescaled
from retune.frontend.onnx.ops.registry import CALLED_OPSET, Emitter, OnnxNode, onnx_op, refuse_op
from retune.frontend.quantized.qoperator import RULES, in_pairs
from retune.proto.file import attribute_value, value_info
from retune.proto.scope import MICROSOFT

_PRODUCTS = ("QLinearConv", "QLinearMatMul", "QGemm")
_PAIR = ("QuantizeLinear", "DequantizeLinear")
_IR_VERSION = 10


@onnx_op("QLinearConv", domain=MICROSOFT)
def quantized_conv(node: OnnxNode, emit: Emitter) -> None:
    """As QLinearConv of ONNX, of NHWC data with channels_last."""
    attrs = {key: value for key, value in node.attrs.items() if key != "channels_last"}

    def convolved(images: str) -> str:
        return emit.onnx("QLinearConv", images, *node.inputs[1:], **attrs)

    data, last = node.inputs[0], node.integer("channels_last", 0)
    emit.same(channels_first(emit, data, convolved) if last else convolved(data))


@onnx_op("QLinearMatMul", domain=MICROSOFT)
def quantized_matmul(node: OnnxNode, emit: Emitter) -> None:
    """As QLinearMatMul of ONNX."""
    emit.onnx_out("QLinearMatMul", *node.inputs)


@onnx_op("QGemm", domain=MICROSOFT)
def quantized_gemm(node: OnnxNode, emit: Emitter) -> None:
    """alpha * (A' B' + C), C in the scale of A and B; without a scale for it in floats."""
    a, a_scale, a_zero, b, b_scale, b_zero = node.inputs[:6]
    left, right = (
        emit.temp("transpose", value, label=key, perm=(1, 0)) if node.integer(key, 0) else value
        for value, key in ((a, "transA"), (b, "transB"))
    )
    total = integer_product(emit, (left, a_zero), (right, b_zero), emit.temp)
    if node.has_input(6):
        total = emit.temp("add", total, node.inputs[6], label="biased")
    alpha = node.number("alpha", 1.0)
    if alpha != 1.0:
        a_scale = emit.temp("multiply", a_scale, emit.scalar(alpha, a_scale, "alpha"))
    if node.has_input(7):
        zero = node.inputs[8] if node.has_input(8) else _no_zero(emit)
        return rescaled(emit, total, (a_scale, b_scale, node.inputs[7]), zero)
    columns = emit.shape(b_scale) if np.prod(emit.shape(b_scale)) > 1 else ()
    factor = emit.temp("multiply", emit.reshaped(a_scale, ()), emit.reshaped(b_scale, columns))
    return emit.out("multiply", emit.cast(total, FLOAT32), factor)


def _no_zero(emit: Emitter) -> str:
    return emit.stored("no zero", np.zeros((), np.uint8))


@onnx_op("QAttention", domain=MICROSOFT, limits="no rotation")
def quantized_attention(node: OnnxNode, emit: Emitter) -> None:
    """Attention whose queries, keys and values are a product of quantized data and weights."""
    if node.integer("do_rotary", 0) or node.integer("past_present_share_buffer", 0):
        raise emit.refuse(
            "rotation, or a cache of full length, inside QAttention",
            "quantize a model of MultiHeadAttention or GroupQueryAttention nodes",
        )
    given = [*node.inputs, *[""] * 9]
    data, weight = Quantized(given[0], given[3], given[6]), Quantized(given[1], given[4], given[7])
    made = float_product(emit, data, weight, given[2], emit.temp)
    attend_projected(node, emit, made, {"mask": given[5], "past": given[8], "scores": ""})


@onnx_op("QEmbedLayerNormalization", domain=MICROSOFT)
def quantized_embedding(node: OnnxNode, emit: Emitter) -> None:
    """EmbedLayerNormalization with quantized tables, scale and shift."""
    scales, zeros = node.inputs[8:13], node.inputs[13:18]

    def read(values: str, table: int) -> str:
        return emit.onnx("DequantizeLinear", values, scales[table], zeros[table], label="read")

    embedded(node, emit, read)


@onnx_op("MulInteger", domain=MICROSOFT)
def integer_multiply(node: OnnxNode, emit: Emitter) -> None:
    """The int32 product of quantized values less their zero points, element by element."""
    a, a_zero, b, b_zero = (*node.inputs, "")[:4]
    emit.out("multiply", less_zero(emit, a, a_zero), less_zero(emit, b, b_zero))


@onnx_op("ReduceSumInteger", domain=MICROSOFT)
def integer_sum(node: OnnxNode, emit: Emitter) -> None:
    """The int32 sums of int8 or uint8 along axes."""
    data = emit.cast(node.inputs[0], INT32)
    rank = len(emit.shape(data))
    axes = tuple(axis % rank for axis in node.ints("axes", tuple(range(rank))))
    keep = bool(node.integer("keepdims", 1))
    emit.out("reduce_sum", data, axes=tuple(sorted(axes)), keepdims=keep)


def by_rule(node: OnnxNode, emit: Emitter) -> None:
    """A float operator between DequantizeLinear and QuantizeLinear."""
    alone, opset = _alone(node, emit)
    made = in_pairs(alone, Path())
    if any(proto.domain for proto in made.graph.node):
        raise ModelError("expected constant scales, got scales of data; quantize statically")
    names = {name: name for name in (*node.inputs, *node.outputs)}
    for tensor in made.graph.initializer:
        if tensor.name not in names:
            names[tensor.name] = emit.stored(tensor.name, numpy_helper.to_array(tensor))
    for proto in made.graph.node:
        for value in proto.output:
            names.setdefault(value, emit.build.reserve(value))
        attrs = {a.name: attribute_value(a, Path(), node.name) for a in proto.attribute}
        outputs = [names[value] for value in proto.output]
        inputs = [names.get(value, value) for value in proto.input]
        emit.onnx_outs(proto.op_type, inputs, outputs, opset, **attrs)


def _alone(node: OnnxNode, emit: Emitter) -> tuple[onnx.ModelProto, int]:
    """The node as a model of its own, and the operator set that the float operator is of."""
    opset = node.integer("opset", CALLED_OPSET)
    read = list(dict.fromkeys(filter(None, node.inputs)))
    single = {v: a for v in read if (a := emit.known(v)) is not None and a.size == 1}
    proto = helper.make_node(
        node.op_type, node.inputs, node.outputs, node.name, domain=MICROSOFT, **node.attrs
    )
    graph = helper.make_graph(
        [proto],
        node.name,
        [value_info(value, emit.type(value)) for value in read if value not in single],
        [onnx.ValueInfoProto(name=name) for name in node.outputs],
        [numpy_helper.from_array(array, value) for value, array in single.items()],
    )
    sets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=_IR_VERSION), opset


for _domain, _op in RULES:
    if _domain == MICROSOFT and _op not in (*_PRODUCTS, *_PAIR):
        onnx_op(_op, domain=MICROSOFT)(by_rule)

refuse_op(
    *("QOrderedAttention", "QOrderedGelu", "QOrderedLayerNormalization", "QOrderedMatMul"),
    *("QOrderedLongformerAttention", "QuantizeWithOrder", "DequantizeWithOrder"),
    domain=MICROSOFT,
    advice="its layouts are those of NVIDIA's matrix units: quantize the float model with "
    "onnxruntime's quantize_static or quantize_dynamic",
)
refuse_op(
    *("QuantizeBFP", "DequantizeBFP"),
    domain=MICROSOFT,
    advice="it makes block floating point, which is not tuned: give the float model",
)

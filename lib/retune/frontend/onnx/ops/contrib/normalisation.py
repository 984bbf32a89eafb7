"""Normalisations of com.microsoft: sums of inputs, then one of ONNX's normalisations."""

from collections.abc import Callable

import numpy as np

from retune.core.dtypes import INT32
from retune.core.errors import ModelError
from retune.frontend.onnx.ops.contrib.layouts import channels_first
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op
from retune.frontend.onnx.ops.standardisation import layer_normalization, rms_normalization
from retune.proto.scope import MICROSOFT

onnx_op("LayerNormalization", domain=MICROSOFT)(layer_normalization)
onnx_op("SimplifiedLayerNormalization")(rms_normalization)
onnx_op("SimplifiedLayerNormalization", domain=MICROSOFT)(rms_normalization)

_EPSILON = 1e-12
"""Of the operators that add before they normalise."""
_SUM = 3
"""The output that is the sum."""


@onnx_op("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(node: OnnxNode, emit: Emitter) -> None:
    """LayerNormalization of data + skip + bias (input 4), which is output 3."""
    total = _sum(node, emit, 4)
    beta = node.inputs[3:4]
    _normalised(node, emit, "LayerNormalization", (total, node.inputs[2], *beta))


@onnx_op("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_rms_normalization(node: OnnxNode, emit: Emitter) -> None:
    """RMSNormalization of data + skip + bias (input 3), which is output 3."""
    if node.has_output(1) or node.has_output(2):
        raise emit.refuse("the mean and deviation", "export the model for inference")
    _normalised(node, emit, "RMSNormalization", (_sum(node, emit, 3), node.inputs[2]))


def _sum(node: OnnxNode, emit: Emitter, bias: int) -> str:
    """Data plus skip plus the optional input `bias`; it is the node's output 3, too."""
    total = emit.temp("add", *node.inputs[:2], label="sum")
    if node.has_input(bias):
        total = emit.temp("add", total, node.inputs[bias], label="biased")
    if node.has_output(_SUM):
        emit.same(total, _SUM)
    return total


def _normalised(node: OnnxNode, emit: Emitter, op: str, inputs: tuple[str, ...]) -> None:
    """The outputs up to the sum, normalised over the last dimension."""
    outputs = node.outputs[: _SUM if op == "LayerNormalization" else 1]
    epsilon = node.number("epsilon", _EPSILON)
    emit.onnx_outs(op, inputs, outputs, axis=-1, epsilon=epsilon)


@onnx_op("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(node: OnnxNode, emit: Emitter) -> None:
    """LayerNormalization of the sum of embeddings: words, positions and optional segments."""
    embedded(node, emit, lambda value, _: value)


def embedded(node: OnnxNode, emit: Emitter, read: Callable[[str, int], str]) -> None:
    """The same, by what `read` makes of each of the five tables, given with its number.

    One that is not of floats knows no positions of rows (input 8) and no sum (output 2).
    """
    ids, segments, words, positions, kinds, gamma, beta = node.inputs[:7]
    plain = node.op_type == "EmbedLayerNormalization"
    rows = read(emit.temp("gather", words, ids, axis=0), 0)
    if plain and node.has_input(8):
        position = emit.temp("gather", positions, node.inputs[8], label="positions", axis=0)
    else:
        position = emit.part(positions, 0, 0, emit.shape(ids)[1], label="positions")
    total = emit.temp("add", rows, read(position, 1), label="sum")
    if segments:
        kind = read(emit.temp("gather", kinds, segments, axis=0), 2)
        total = emit.temp("add", total, kind, label="sum")
    if plain and node.has_output(2):
        emit.same(total, 2)
    if node.has_output(1):
        _mask_index(node, emit)
    epsilon = node.number("epsilon", _EPSILON)
    parts = read(gamma, 3), read(beta, 4)
    emit.onnx_out("LayerNormalization", total, *parts, axis=-1, epsilon=epsilon)


def _mask_index(node: OnnxNode, emit: Emitter) -> None:
    """Output 1: how many elements of each row of the mask are set; 0 without a mask."""
    if node.has_input(7):
        mask = emit.cast(node.inputs[7], INT32)
        emit.out("reduce_sum", mask, index=1, axes=(1,), keepdims=False)
    else:
        rows = emit.shape(node.inputs[0])[0]
        emit.build.constant(node.outputs[1], np.zeros(rows, np.int32))


@onnx_op("GroupNorm", domain=MICROSOFT)
def group_norm(node: OnnxNode, emit: Emitter) -> None:
    """GroupNormalization by channel, then an optional SiLU; data are NHWC or NCHW."""
    _group_norm(node, emit, node.inputs[0])


@onnx_op("SkipGroupNorm", domain=MICROSOFT)
def skip_group_norm(node: OnnxNode, emit: Emitter) -> None:
    """GroupNorm of data + skip + bias, which is output 1; the skip may be one for each channel."""
    data, skip = node.inputs[0], node.inputs[3]
    last = bool(node.integer("channels_last", 1))
    shape = emit.shape(skip)
    if len(shape) == 2:
        skip = emit.reshaped(skip, (shape[0], 1, 1, shape[1]) if last else (*shape, 1, 1))
    total = emit.temp("add", data, skip, label="sum")
    if node.has_input(4):
        channels = emit.shape(node.inputs[4])
        bias = emit.reshaped(node.inputs[4], channels if last else (*channels, 1, 1))
        total = emit.temp("add", total, bias, label="biased")
    if node.has_output(1):
        emit.same(total, 1)
    _group_norm(node, emit, total)


def _group_norm(node: OnnxNode, emit: Emitter, data: str) -> None:
    activation = node.integer("activation", 0)
    if activation not in (0, 1):
        raise ModelError(f"activation {activation}: expected 0 (none) or 1 (SiLU)")

    def normalised(images: str) -> str:
        made = emit.onnx(
            "GroupNormalization",
            images,
            *(emit.cast(value, emit.type(images).dtype) for value in node.inputs[1:3]),
            num_groups=node.integer("groups", 1),
            epsilon=node.number("epsilon", 1e-5),
        )
        return emit.temp("swish", made, alpha=1.0) if activation else made

    last = bool(node.integer("channels_last", 1))
    emit.same(channels_first(emit, data, normalised) if last else normalised(data))

"""Normalisation."""

from math import prod

import numpy as np

from retune.core.errors import ModelError
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op, positive_axis


@onnx_op("BatchNormalization", limits="no training outputs of earlier opsets")
def batch_normalization(node: OnnxNode, emit: Emitter) -> None:
    """With the statistics that are inputs, or those of the batch in training mode."""
    if node.integer("training_mode", 0):
        return _by_batch(node, emit)
    used = [output for output in node.outputs[1:] if output]
    if used:
        raise emit.refuse(f"the training outputs {', '.join(used)}", "export for inference")
    if not node.integer("spatial", 1):
        return _by_position(node, emit)
    epsilon = node.number("epsilon", 1e-5)
    return emit.out("batch_norm", *node.inputs[:5], axis=1, epsilon=epsilon)


def _by_position(node: OnnxNode, emit: Emitter) -> None:
    """spatial=0, until opset 8: statistics [C, D1, ...] for each position."""
    data, scale, bias, mean, variance = node.inputs[:5]
    epsilon = emit.scalar(node.number("epsilon", 1e-5), variance, "epsilon")
    deviation = emit.temp("sqrt", emit.temp("add", variance, epsilon))
    factor = emit.temp("divide", scale, deviation, label="factor")
    shift = emit.temp("subtract", bias, emit.temp("multiply", mean, factor), label="shift")
    emit.out("add", emit.temp("multiply", data, factor, label="scaled"), shift)


def _by_batch(node: OnnxNode, emit: Emitter) -> None:
    """Training mode: statistics of the batch, which also move the running ones (outputs 1, 2)."""
    data, scale, bias, *running = node.inputs[:5]
    shape = emit.shape(data)
    axes = tuple(d for d in range(len(shape)) if d != 1)
    mean = emit.temp("reduce_mean", data, label="mean", axes=axes, keepdims=False)
    sides = emit.reshaped(mean, (shape[1], *(1,) * (len(shape) - 2)))
    centred = emit.temp("subtract", data, sides)
    square = emit.temp("multiply", centred, centred, label="square")
    variance = emit.temp("reduce_mean", square, label="variance", axes=axes, keepdims=False)
    momentum = node.number("momentum", 0.9)
    for index, (old, new) in enumerate(zip(running, (mean, variance), strict=True), start=1):
        if node.has_output(index):
            kept = emit.temp("multiply", old, emit.scalar(momentum, old, "momentum"))
            added = emit.temp("multiply", new, emit.scalar(1 - momentum, new, "share"))
            emit.out("add", kept, added, index=index)
    statistics = (scale, bias, mean, variance)
    emit.out("batch_norm", data, *statistics, axis=1, epsilon=node.number("epsilon", 1e-5))


@onnx_op("LpNormalization")
def lp_normalization(node: OnnxNode, emit: Emitter) -> None:
    """x / norm of order 1 or 2 along an axis; zero where the norm is."""
    data, order = node.inputs[0], node.integer("p", 2)
    if order not in (1, 2):
        raise ModelError(f"p: expected a norm of order 1 or 2, got {order}")
    axis = positive_axis(node.integer("axis", -1), len(emit.shape(data)))
    sizes = emit.temp("abs", data) if order == 1 else emit.temp("multiply", data, data)
    norm = emit.temp("reduce_sum", sizes, label="norm", axes=(axis,), keepdims=True)
    norm = emit.temp("sqrt", norm) if order == 2 else norm
    nothing = emit.temp("equal", norm, emit.scalar(0.0, data, "zero"))
    divisor = emit.temp("where", nothing, emit.scalar(1.0, data, "one"), norm, label="divisor")
    emit.out("divide", data, divisor)


@onnx_op("InstanceNormalization")
def instance_normalization(node: OnnxNode, emit: Emitter) -> None:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, statistics over the positions."""
    data, scale, bias = node.inputs
    rank, epsilon = len(emit.shape(data)), node.number("epsilon", 1e-5)
    axes = tuple(range(2, rank))
    normal = emit.temp("standardise", data, axes=axes, epsilon=epsilon, centred=True)
    gain, shift = emit.known(scale), emit.known(bias)
    if gain is not None and shift is not None and np.all(gain == 1) and not np.any(shift):
        return emit.same(normal)  # exporters write a group norm so, and scale and shift behind it
    sides = (1, emit.shape(data)[1], *(1,) * (rank - 2))
    scaled = emit.temp("multiply", normal, emit.reshaped(scale, sides), label="scaled")
    return emit.out("add", scaled, emit.reshaped(bias, sides))


@onnx_op("LRN")
def lrn(node: OnnxNode, emit: Emitter) -> None:
    """Local response normalisation over the channels."""
    emit.out(
        "lrn",
        node.inputs[0],
        axis=1,
        size=node.integer("size", 1),
        alpha=node.number("alpha", 1e-4),
        beta=node.number("beta", 0.75),
        bias=node.number("bias", 1.0),
    )


SOFTMAX = {"Softmax": "softmax", "LogSoftmax": "log_softmax"}


@onnx_op(*SOFTMAX)
def softmax_of_matrix(node: OnnxNode, emit: Emitter) -> None:
    """Until opset 12: over all dimensions from `axis` on, as if they were one."""
    data, op = node.inputs[0], SOFTMAX[node.op_type]
    shape = emit.shape(data)
    axis = positive_axis(node.integer("axis", 1), len(shape))
    if prod(shape[axis + 1 :]) == 1:
        return emit.out(op, data, axis=axis)
    matrix = emit.reshaped(data, (prod(shape[:axis]), prod(shape[axis:])))
    return emit.out("reshape", emit.temp(op, matrix, axis=1), shape=shape)


@onnx_op(*SOFTMAX, since=13)
def softmax_of_axis(node: OnnxNode, emit: Emitter) -> None:
    """From opset 13 on: over one axis, the last by default."""
    rank = len(emit.shape(node.inputs[0]))
    axis = positive_axis(node.integer("axis", -1), rank)
    emit.out(SOFTMAX[node.op_type], node.inputs[0], axis=axis)

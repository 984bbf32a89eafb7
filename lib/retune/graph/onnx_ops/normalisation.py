"""Normalisation."""

from math import prod

from retune.graph.onnx_ops.registry import Emitter, OnnxNode, onnx_op, positive_axis


@onnx_op("BatchNormalization")
def batch_normalization(node: OnnxNode, emit: Emitter) -> None:
    """The inference form: statistics are inputs."""
    if node.integer("training_mode", 0):
        raise emit.refuse("BatchNormalization in training mode", "export the model for inference")
    if not node.integer("spatial", 1):
        raise emit.refuse("BatchNormalization with spatial=0", "use statistics of each channel")
    used = [output for output in node.outputs[1:] if output]
    if used:
        raise emit.refuse(f"the training outputs {', '.join(used)}", "export for inference")
    emit.out("batch_norm", *node.inputs[:5], axis=1, epsilon=node.number("epsilon", 1e-5))


@onnx_op("InstanceNormalization")
def instance_normalization(node: OnnxNode, emit: Emitter) -> None:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, statistics over the positions."""
    data, scale, bias = node.inputs
    rank = len(emit.shape(data))
    axes = tuple(range(2, rank))
    sides = (1, emit.shape(data)[1], *(1,) * (rank - 2))
    mean = emit.temp("reduce_mean", data, label="mean", axes=axes, keepdims=True)
    centred = emit.temp("subtract", data, mean)
    square = emit.temp("multiply", centred, centred, label="square")
    variance = emit.temp("reduce_mean", square, label="variance", axes=axes, keepdims=True)
    shifted = emit.temp("add", variance, emit.scalar(node.number("epsilon", 1e-5), data, "eps"))
    normal = emit.temp("divide", centred, emit.temp("sqrt", shifted), label="normal")
    scaled = emit.temp("multiply", normal, emit.reshaped(scale, sides), label="scaled")
    emit.out("add", scaled, emit.reshaped(bias, sides))


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

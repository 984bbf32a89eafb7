"""Layer, RMS and group normalisation: one `standardise` each, then scale and bias.

As one graph op it is one task, whose epilogue takes in what follows; spelt out in means and
squares, as in ONNX's functions of the same names, it would be five.
"""

from retune.core.errors import ModelError
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op, positive_axis
from retune.proto.file import element_type


@onnx_op("LayerNormalization")
def layer_normalization(node: OnnxNode, emit: Emitter) -> None:
    """Standardised over the dimensions from `axis` on, then scaled and shifted."""
    data, epsilon = _stash(node, emit), node.number("epsilon", 1e-5)
    axes = _trailing(node, emit)
    if node.has_output(1) or node.has_output(2):
        _layer_statistics(node, emit, data, axes)
    normal = emit.temp("standardise", data, axes=axes, epsilon=epsilon, centred=True)
    normal = _as_before(node, emit, normal)
    if not node.has_input(2):
        return emit.out("multiply", normal, node.inputs[1])
    scaled = emit.temp("multiply", normal, node.inputs[1], label="scaled")
    return emit.out("add", scaled, node.inputs[2])


def _layer_statistics(node: OnnxNode, emit: Emitter, data: str, axes: tuple[int, ...]) -> None:
    """The outputs Mean and InvStdDev."""
    mean = emit.temp("reduce_mean", data, label="mean", axes=axes, keepdims=True)
    if node.has_output(1):
        emit.out("identity", mean, index=1)
    if node.has_output(2):
        _inverse_deviation(node, emit, emit.temp("subtract", data, mean), axes, 2)


def _inverse_deviation(
    node: OnnxNode, emit: Emitter, data: str, axes: tuple[int, ...], index: int
) -> None:
    """The output `index`: 1 / the root of the data's mean square plus epsilon."""
    square = emit.temp("multiply", data, data, label="square")
    variance = emit.temp("reduce_mean", square, label="variance", axes=axes, keepdims=True)
    epsilon = emit.scalar(node.number("epsilon", 1e-5), data, "epsilon")
    deviation = emit.temp("sqrt", emit.temp("add", variance, epsilon))
    emit.out("reciprocal", deviation, index=index)


@onnx_op("RMSNormalization")
def rms_normalization(node: OnnxNode, emit: Emitter) -> None:
    """Divided by the root of the mean square over the dimensions from `axis` on, then scaled."""
    data, axes, epsilon = _stash(node, emit), _trailing(node, emit), node.number("epsilon", 1e-5)
    if node.has_output(1):
        _inverse_deviation(node, emit, data, axes, 1)
    normal = emit.temp("standardise", data, axes=axes, epsilon=epsilon, centred=False)
    scale = node.inputs[1]
    normal = emit.cast(_as_before(node, emit, normal), emit.type(scale).dtype)
    emit.out("multiply", normal, scale)


@onnx_op("GroupNormalization")
def group_normalization(node: OnnxNode, emit: Emitter) -> None:
    """Until opset 20: scale and bias for each group."""
    _group_normalization(node, emit, by_channel=False)


@onnx_op("GroupNormalization", since=21)
def group_normalization_by_channel(node: OnnxNode, emit: Emitter) -> None:
    """From opset 21 on: scale and bias for each channel."""
    _group_normalization(node, emit, by_channel=True)


def _group_normalization(node: OnnxNode, emit: Emitter, *, by_channel: bool) -> None:
    data, scale, bias = node.inputs
    shape, groups = emit.shape(data), node.integer("num_groups", 1)
    if groups < 1 or shape[1] % groups:
        raise ModelError(f"num_groups {groups} for {shape[1]} channels; expected a divisor")
    stashed = _stash(node, emit) if by_channel else data
    parted = (shape[0], groups, shape[1] // groups, *shape[2:])
    apart = emit.temp("reshape", stashed, label="groups", shape=parted)
    axes, epsilon = tuple(range(2, len(parted))), node.number("epsilon", 1e-5)
    normal = emit.temp("standardise", apart, axes=axes, epsilon=epsilon, centred=True)
    normal = _as_before(node, emit, normal)
    own = parted[1:3] if by_channel else (groups, 1)
    sides = (*own, *(1,) * (len(shape) - 2))
    scaled = emit.temp("multiply", normal, emit.reshaped(scale, sides), label="scaled")
    shifted = emit.temp("add", scaled, emit.reshaped(bias, sides), label="shifted")
    emit.out("reshape", shifted, shape=shape)


def _trailing(node: OnnxNode, emit: Emitter) -> tuple[int, ...]:
    """The dimensions from the attribute `axis` on."""
    rank = len(emit.shape(node.inputs[0]))
    return tuple(range(positive_axis(node.integer("axis", -1), rank), rank))


def _stash(node: OnnxNode, emit: Emitter) -> str:
    """The first input in the type that the attribute `stash_type` asks for."""
    return emit.cast(node.inputs[0], element_type(node.integer("stash_type", 1), "stash_type"))


def _as_before(node: OnnxNode, emit: Emitter, value: str) -> str:
    """The value in the first input's type."""
    return emit.cast(value, emit.type(node.inputs[0]).dtype)

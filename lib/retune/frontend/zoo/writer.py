"""Writing networks as ONNX, layer by layer, with weights from a seed."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from retune.ops import Array
from retune.ops.shapes import window_extent

OPSET = 13
IR_VERSION = 8
"""What the written files state: opset 13 models load everywhere."""

Size = int | tuple[int, ...]
"""One number for all spatial dimensions, or one for each."""
Shape = tuple[int, ...]


def he_normal(generator: np.random.Generator, shape: Sequence[int], fan_in: int) -> Array:
    """Weights whose sums over `fan_in` rectified inputs keep the variance."""
    scale = np.float32(np.sqrt(2.0 / fan_in))
    return generator.standard_normal(tuple(shape), np.float32) * scale


def small(generator: np.random.Generator, shape: Sequence[int]) -> Array:
    """Biases and means: normal with deviation 0.1."""
    return generator.standard_normal(tuple(shape), np.float32) * np.float32(0.1)


def around_one(generator: np.random.Generator, shape: Sequence[int]) -> Array:
    """Scales and variances: uniform in [0.5, 1.5), never near zero."""
    return generator.random(tuple(shape), np.float32) + np.float32(0.5)


def make_model(name: str, nodes: Any, inputs: Any, outputs: Any, weights: Any) -> onnx.ModelProto:
    """A model proto of the zoo's versions."""
    graph = helper.make_graph(nodes, name, inputs, outputs, initializer=weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version = IR_VERSION
    model.producer_name = "retune"
    return model


def open_axes(model: onnx.ModelProto, symbols: Mapping[int, str]) -> onnx.ModelProto:
    """The model itself, in which these axes of all inputs are open, by these names.

    Reshapes that state such an extent where they keep it, as for the batch, state that they do.
    """
    shapes = {node.input[1] for node in model.graph.node if node.op_type == "Reshape"}
    for axis, name in symbols.items():
        for entry in model.graph.input:
            dim = entry.type.tensor_type.shape.dim[axis]
            for tensor in model.graph.initializer:
                if tensor.name in shapes and tensor.dims[0] > axis:
                    stated = numpy_helper.to_array(tensor).copy()
                    stated[axis] = 0 if stated[axis] == dim.dim_value else stated[axis]
                    tensor.CopyFrom(numpy_helper.from_array(stated, tensor.name))
            dim.dim_param = name
    for entry in model.graph.output if symbols else ():
        entry.type.tensor_type.ClearField("shape")  # what reads the file infers it
    return model


class NetWriter:
    """Collects layers; each method gives the name of the value that it makes."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.rng = np.random.default_rng(seed)
        self.shapes: dict[str, Shape] = {}
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._count: dict[str, int] = {}

    def input(self, name: str, shape: Shape) -> str:
        """A float32 input."""
        self._inputs.append(helper.make_tensor_value_info(name, 1, shape))
        self.shapes[name] = shape
        return name

    def output(self, value: str, name: str) -> None:
        """The value as an output of that name."""
        self._nodes.append(helper.make_node("Identity", [value], [name], name=name))
        self._outputs.append(helper.make_tensor_value_info(name, 1, self.shapes[value]))

    def model(self) -> onnx.ModelProto:
        """What was written so far."""
        return make_model(self.name, self._nodes, self._inputs, self._outputs, self._weights)

    def constant(self, name: str, array: Array) -> str:
        """A stored array."""
        self._weights.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        self.shapes[name] = tuple(array.shape)
        return name

    def node(self, op: str, inputs: Sequence[str], shape: Shape, **attrs: Any) -> str:
        """A node with one output of that shape, named after the op and counted."""
        name = self._name(op.lower())
        self._nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attrs))
        self.shapes[name] = shape
        return name

    def conv(
        self,
        x: str,
        channels: int,
        kernel: Size,
        *,
        stride: int = 1,
        pad: Size = 0,
        groups: int = 1,
        bias: bool = False,
    ) -> str:
        """A convolution over as many dimensions as the data has beside batch and channels."""
        batch, depth, *extents = self.shapes[x]
        taps, pads = _each(kernel, len(extents)), _each(pad, len(extents))
        fan_in = depth // groups * prod(taps)
        name = self._name("weight")
        weight = he_normal(self.rng, (channels, depth // groups, *taps), fan_in)
        sources = [x, self.constant(name, weight)]
        if bias:
            sources.append(self.constant(f"{name}_bias", small(self.rng, (channels,))))
        shape = (
            batch,
            channels,
            *(
                window_extent(extent, tap, stride, 1, 2 * p)
                for extent, tap, p in zip(extents, taps, pads, strict=True)
            ),
        )
        return self.node(
            "Conv",
            sources,
            shape,
            kernel_shape=taps,
            strides=_each(stride, len(extents)),
            pads=(*pads, *pads),
            group=groups,
        )

    def conv_transpose(
        self, x: str, channels: int, kernel: int, *, stride: int, pad: int, bias: bool = False
    ) -> str:
        """A transposed convolution of images."""
        batch, depth, *extents = self.shapes[x]
        name = self._name("weight")
        fan_in = depth * max(1, kernel // stride) ** 2
        weight = he_normal(self.rng, (depth, channels, kernel, kernel), fan_in)
        sources = [x, self.constant(name, weight)]
        if bias:
            sources.append(self.constant(f"{name}_bias", small(self.rng, (channels,))))
        made = [(extent - 1) * stride + kernel - 2 * pad for extent in extents]
        window: dict[str, Any] = {"strides": (stride,) * 2, "pads": (pad,) * 4}
        shape = (batch, channels, *made)
        return self.node("ConvTranspose", sources, shape, kernel_shape=(kernel,) * 2, **window)

    def batch_norm(self, x: str, epsilon: float = 1e-5) -> str:
        """Batch normalisation with random but sane statistics."""
        channels, name = self.shapes[x][1], self._name("norm")
        sources = [x]
        for label, make in (
            ("scale", around_one),
            ("bias", small),
            ("mean", small),
            ("var", around_one),
        ):
            sources.append(self.constant(f"{name}_{label}", make(self.rng, (channels,))))
        return self.node("BatchNormalization", sources, self.shapes[x], epsilon=epsilon)

    def relu(self, x: str) -> str:
        """max(x, 0)."""
        return self.node("Relu", [x], self.shapes[x])

    def tanh(self, x: str) -> str:
        """Between -1 and 1."""
        return self.node("Tanh", [x], self.shapes[x])

    def conv_norm(self, x: str, channels: int, kernel: Size, **options: Any) -> str:
        """Convolution and batch norm."""
        return self.batch_norm(self.conv(x, channels, kernel, **options))

    def conv_norm_relu(self, x: str, channels: int, kernel: Size, **options: Any) -> str:
        """Convolution, batch norm, rectifier."""
        return self.relu(self.conv_norm(x, channels, kernel, **options))

    def conv_relu(self, x: str, channels: int, kernel: Size, **options: Any) -> str:
        """Convolution with bias, rectifier."""
        return self.relu(self.conv(x, channels, kernel, bias=True, **options))

    def pool(
        self, x: str, mode: str, kernel: int, *, stride: int = 1, pad: int = 0, ceil: bool = False
    ) -> str:
        """MaxPool or AveragePool (padding counts, as in the published networks)."""
        batch, channels, *extents = self.shapes[x]
        extra = stride - 1 if ceil else 0
        made = [window_extent(extent, kernel, stride, 1, 2 * pad + extra) for extent in extents]
        attrs: dict[str, Any] = {
            "kernel_shape": (kernel, kernel),
            "strides": (stride, stride),
            "pads": (pad,) * 4,
            "ceil_mode": int(ceil),
        }
        if mode == "AveragePool":
            attrs["count_include_pad"] = 1
        return self.node(mode, [x], (batch, channels, *made), **attrs)

    def global_avg_pool(self, x: str) -> str:
        """The mean over all positions, flattened to [batch, channels]."""
        batch, channels, *extents = self.shapes[x]
        pooled = self.node("GlobalAveragePool", [x], (batch, channels, *[1] * len(extents)))
        return self.flatten(pooled)

    def flatten(self, x: str) -> str:
        """[batch, everything else]."""
        batch, *rest = self.shapes[x]
        return self.node("Flatten", [x], (batch, int(np.prod(rest))), axis=1)

    def dense(self, x: str, units: int) -> str:
        """A fully connected layer with bias."""
        batch, depth = self.shapes[x]
        name = self._name("weight")
        weight = self.constant(name, he_normal(self.rng, (units, depth), depth))
        bias = self.constant(f"{name}_bias", small(self.rng, (units,)))
        return self.node("Gemm", [x, weight, bias], (batch, units), transB=1)

    def softmax(self, x: str) -> str:
        """Over the last dimension."""
        return self.node("Softmax", [x], self.shapes[x], axis=-1)

    def add(self, x: str, y: str) -> str:
        """Element by element."""
        return self.node("Add", [x, y], self.shapes[x])

    def concat(self, parts: Sequence[str], axis: int = 1) -> str:
        """Side by side along an axis."""
        shape = list(self.shapes[parts[0]])
        shape[axis] = sum(self.shapes[part][axis] for part in parts)
        return self.node("Concat", parts, tuple(shape), axis=axis)

    def transpose(self, x: str, perm: tuple[int, ...]) -> str:
        """Dimensions in another order."""
        return self.node("Transpose", [x], tuple(self.shapes[x][d] for d in perm), perm=perm)

    def reshape(self, x: str, shape: Shape) -> str:
        """The same elements under another shape."""
        target = self.constant(self._name("shape"), np.asarray(shape, np.int64))
        return self.node("Reshape", [x, target], shape)

    def _name(self, stem: str) -> str:
        self._count[stem] = self._count.get(stem, 0) + 1
        return f"{stem}_{self._count[stem]}"


def _each(size: Size, dimensions: int) -> tuple[int, ...]:
    return (size,) * dimensions if isinstance(size, int) else size

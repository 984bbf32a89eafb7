"""Six layers of different kinds, on which searches are compared without a device."""

import numpy as np

from retune.core.dtypes import TensorType
from retune.graph.graph import GraphBuilder
from retune.ops import AttrValue
from retune.search.extract import extract
from retune.search.task import Task


def _convolution(size: int, channels: int, filters: int, kernel: int, stride: int = 1) -> Task:
    build = GraphBuilder("layer")
    build.input("data", TensorType((1, size, size, channels)))
    build.constant("weight", np.zeros((kernel, kernel, channels, filters), np.float32))
    build.constant("bias", np.zeros((1, 1, 1, filters), np.float32))
    pad = (kernel - 1) // 2
    attrs: dict[str, AttrValue] = {**_window(stride, (pad,) * 4), "groups": 1}
    return _with_epilogue(build, build.add("conv2d", ["data", "weight"], attrs))


def _depthwise(size: int, channels: int) -> Task:
    build = GraphBuilder("layer")
    build.input("data", TensorType((1, size, size, channels)))
    build.constant("weight", np.zeros((3, 3, channels, 1), np.float32))
    build.constant("bias", np.zeros((1, 1, 1, channels), np.float32))
    attrs = _window(1, (1, 1, 1, 1))
    return _with_epilogue(build, build.add("depthwise_conv2d", ["data", "weight"], attrs))


def _dense(rows: int, inputs: int, outputs: int) -> Task:
    build = GraphBuilder("layer")
    build.input("data", TensorType((rows, inputs)))
    build.constant("weight", np.zeros((outputs, inputs), np.float32))
    build.constant("bias", np.zeros((1, outputs), np.float32))
    return _with_epilogue(build, build.add("dense", ["data", "weight"]))


def _window(stride: int, pads: tuple[int, ...]) -> dict[str, AttrValue]:
    return {"strides": (stride,) * 2, "pads": pads, "dilations": (1, 1), "layout": "NHWC"}


def _with_epilogue(build: GraphBuilder, result: str) -> Task:
    graph = build.finish([build.add("relu", [build.add("add", [result, "bias"])])])
    (task,) = extract(graph).tasks.values()
    return task


LAYERS = {
    "conv3x3_large": lambda: _convolution(56, 64, 64, 3),
    "conv3x3_small": lambda: _convolution(7, 512, 512, 3),
    "conv1x1": lambda: _convolution(14, 1024, 256, 1),
    "conv_first": lambda: _convolution(224, 3, 32, 3, stride=2),
    "depthwise": lambda: _depthwise(28, 256),
    "dense": lambda: _dense(64, 784, 128),
}
"""Name -> the layer's task, with bias and ReLU. Convolutions are of ResNet-50 and MobileNet."""

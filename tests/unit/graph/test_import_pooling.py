"""Pooling in one to three dimensions means what onnxruntime computes, positions included."""

from typing import Any

import numpy as np
import onnx
import pytest

from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import run_graph
from retune.graph.passes.pipeline import optimise
from tests.support.import_semantics import assert_as_onnxruntime, rand
from tests.support.networks import model, node

SHAPES = {1: (2, 3, 11), 2: (2, 3, 9, 8), 3: (1, 2, 6, 5, 7)}
WINDOWS: list[tuple[int, dict[str, Any]]] = [
    (1, {"kernel_shape": [3], "strides": [2], "dilations": [2], "pads": [1, 2]}),
    (1, {"kernel_shape": [4], "strides": [3], "ceil_mode": 1, "pads": [1, 1]}),
    (2, {"kernel_shape": [3, 2], "dilations": [2, 3], "pads": [1, 1, 1, 1]}),
    (2, {"kernel_shape": [3, 3], "strides": [2, 2], "dilations": [1, 2], "ceil_mode": 1}),
    (2, {"kernel_shape": [2, 3], "strides": [3, 2], "ceil_mode": 1, "pads": [1, 0, 0, 1]}),
    (2, {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    (3, {"kernel_shape": [2, 3, 2], "strides": [2, 1, 3], "ceil_mode": 1}),
    (3, {"kernel_shape": [2, 2, 3], "dilations": [2, 1, 2], "pads": [1, 0, 1, 0, 1, 1]}),
]


@pytest.mark.parametrize(("rank", "attrs"), WINDOWS)
@pytest.mark.parametrize("form", ["MaxPool", "AveragePool", "with pads"])
def test_windows_of_every_kind(rank, attrs, form):
    attrs = attrs | ({"count_include_pad": 1} if form == "with pads" else {})
    op = "MaxPool" if form == "MaxPool" else "AveragePool"
    made = model([node(op, ["x"], ["y"], **attrs)], {"x": SHAPES[rank]}, opset=19)
    assert_as_onnxruntime(made, {"x": rand(*SHAPES[rank])})


@pytest.mark.parametrize(("rank", "attrs"), WINDOWS)
@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("ties", [False, True])
def test_positions_of_the_maxima(rank, attrs, order, ties):
    x = rand(*SHAPES[rank])
    x = np.round(x) if ties else x
    nodes = [node("MaxPool", ["x"], ["y", "places"], storage_order=order, **attrs)]
    made = model(nodes, {"x": x.shape}, ["y", "places"], opset=12)
    made.graph.output[1].type.tensor_type.elem_type = onnx.TensorProto.INT64
    assert_as_onnxruntime(made, {"x": x})
    assert run_graph(import_model(made), {"x": x})["places"].dtype == np.int64


def test_positions_of_zeros_beside_the_padding_of_unsigned_integers():
    attrs: dict[str, Any] = {"kernel_shape": [2, 2], "pads": [1, 1, 1, 1]}
    nodes = [node("MaxPool", ["x"], ["y", "places"], **attrs)]
    made = model(nodes, {"x": (1, 1, 2, 2)}, ["y", "places"], element=onnx.TensorProto.UINT8)
    x = np.zeros((1, 1, 2, 2), np.uint8)
    found = run_graph(import_model(made), {"x": x})["places"]
    np.testing.assert_array_equal(found, [[[[0, 0, 1], [0, 0, 1], [2, 2, 3]]]])


def test_positions_after_a_convolution_stay_channels_last():
    weights = {"w": rand(4, 3, 3, 3, seed=1)}
    nodes = [
        node("Conv", ["x", "w"], ["a"]),
        node("MaxPool", ["a"], ["y", "places"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    made = model(nodes, {"x": (2, 3, 8, 8)}, ["y", "places"], weights)
    made.graph.output[1].type.tensor_type.elem_type = onnx.TensorProto.INT64
    assert_as_onnxruntime(made, {"x": rand(2, 3, 8, 8)})
    ops = [n.op for n in optimise(import_model(made), "NHWC").nodes]
    assert ops.index("max_pool2d_index") > ops.index("conv2d")
    assert ops.count("transpose") == 3


def test_unpooling_puts_maxima_back():
    attrs = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        node("MaxPool", ["x"], ["m", "places"], **attrs),
        node("MaxUnpool", ["m", "places"], ["y"], **attrs),
    ]
    assert_as_onnxruntime(model(nodes, {"x": (2, 3, 6, 8)}), {"x": rand(2, 3, 6, 8)})


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize(("rank", "attrs"), [WINDOWS[0], WINDOWS[2], WINDOWS[5], WINDOWS[7]])
def test_norms_of_windows(rank, attrs, p):
    shape = SHAPES[rank]
    made = model([node("LpPool", ["x"], ["y"], p=p, **attrs)], {"x": shape}, opset=18)
    assert_as_onnxruntime(made, {"x": rand(*shape)})


def test_norms_of_windows_in_the_first_version():
    attrs = {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}
    made = model([node("LpPool", ["x"], ["y"], **attrs)], {"x": SHAPES[2]}, opset=7)
    assert_as_onnxruntime(made, {"x": rand(*SHAPES[2])})


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("p", [1, 2, 3])
def test_norms_of_everything(rank, p):
    made = model([node("GlobalLpPool", ["x"], ["y"], p=p)], {"x": SHAPES[rank]})
    assert_as_onnxruntime(made, {"x": rand(*SHAPES[rank])})


CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 6, 11), (4, 3, 3), {"group": 2, "dilations": [2], "pads": [2, 1]}),
    ((2, 4, 11), (8, 1, 3), {"group": 4, "strides": [2]}),
    ((1, 3, 4, 5, 6), (3, 1, 2, 3, 2), {"group": 3, "pads": [1, 1, 0, 0, 1, 1]}),
    ((1, 3, 4, 5, 6), (6, 1, 3, 3, 3), {"group": 3, "strides": [1, 2, 2]}),
    ((1, 4, 4, 5, 6), (6, 2, 2, 2, 2), {"group": 2, "dilations": [2, 1, 3]}),
    ((1, 4, 5, 5, 6), (3, 4, 3, 3, 2), {"auto_pad": "SAME_UPPER", "strides": [2, 2, 2]}),
]


@pytest.mark.parametrize(("shape", "kernel", "attrs"), CONVOLUTIONS)
def test_convolution_in_one_and_three_dimensions(shape, kernel, attrs):
    weights = {"w": rand(*kernel, seed=1), "b": rand(kernel[0], seed=2)}
    nodes = [node("Conv", ["x", *weights], ["y"], **attrs)]
    assert_as_onnxruntime(model(nodes, {"x": shape}, weights=weights), {"x": rand(*shape)})


@pytest.mark.parametrize("opset", [9, 13, 21])
@pytest.mark.parametrize("width", [6, 7])
def test_maxima_go_back_to_their_positions_by_kernels(width: int, opset: int):
    """An output of odd width has its shape stated, and positions are those in it."""
    shape, attrs = (2, 2, 6, width), {"kernel_shape": [2, 2], "strides": [2, 2]}
    stated = {"shape": np.array(shape, np.int64)} if width == 7 else {}
    nodes = [
        node("MaxPool", ["x"], ["m", "i"], **attrs),
        node("MaxUnpool", ["m", "i", *stated], ["y"], **attrs),
    ]
    made = model(nodes, {"x": shape}, weights=stated, opset=opset)
    assert_as_onnxruntime(made, {"x": rand(*shape)})
    assert "host" not in {entry.op for entry in import_model(made).nodes}

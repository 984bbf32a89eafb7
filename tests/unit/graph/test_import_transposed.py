"""Transposed convolutions and columns mean what onnxruntime computes."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from retune.core.errors import ModelError
from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import run_graph
from retune.graph.passes.pipeline import optimise
from tests.support.import_semantics import assert_as_onnxruntime, rand
from tests.support.networks import model, node

Case = tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]

TRANSPOSED: list[Case] = [
    ((1, 3, 5, 4), (3, 2, 2, 2), {"strides": [2, 2]}),
    ((1, 3, 5, 4), (3, 2, 4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((2, 3, 5, 4), (3, 2, 3, 3), {"strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1]}),
    ((1, 3, 5, 4), (3, 2, 3, 5), {}),
    ((1, 3, 5, 4), (3, 2, 3, 3), {"pads": [1, 2, 0, 1]}),
    ((1, 3, 5, 4), (3, 2, 3, 3), {"pads": [2, 2, 2, 2], "dilations": [2, 1]}),
    ((1, 3, 5, 4), (3, 2, 1, 1), {"strides": [2, 3]}),
    ((1, 3, 5, 4), (3, 2, 2, 5), {"strides": [3, 2], "pads": [0, 1, 1, 3]}),
    ((1, 3, 5, 4), (3, 2, 3, 2), {"strides": [2, 3], "dilations": [2, 3], "pads": [1, 2, 3, 0]}),
    ((1, 3, 5, 4), (3, 2, 3, 3), {"strides": [1, 2], "dilations": [3, 1]}),
    ((1, 3, 5, 4), (3, 2, 9, 9), {"strides": [4, 4], "pads": [4, 3, 4, 3]}),
    ((1, 3, 5, 4), (3, 2, 3, 3), {"strides": [2, 2], "output_shape": [10, 8]}),
    ((1, 3, 5, 4), (3, 2, 3, 3), {"strides": [2, 2], "output_shape": [9, 7]}),
    ((1, 3, 5, 4), (3, 2, 3, 3), {"strides": [3, 2], "output_shape": [16, 9]}),
    ((1, 3, 5, 4), (3, 2, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((1, 3, 5, 4), (3, 2, 4, 3), {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ((1, 3, 5, 4), (3, 2, 3, 3), {"strides": [2, 2], "auto_pad": "VALID"}),
    ((1, 4, 5, 4), (4, 3, 3, 3), {"strides": [2, 2], "group": 2, "pads": [1] * 4}),
    ((2, 4, 5, 4), (4, 1, 4, 4), {"strides": [2, 2], "group": 4, "pads": [1] * 4}),
    ((1, 4, 5, 4), (4, 2, 3, 3), {"strides": [2, 1], "group": 4}),
    ((1, 4, 5, 4), (4, 3, 3, 3), {"group": 2}),
    ((2, 3, 7), (3, 2, 4), {"strides": [2], "pads": [1, 1]}),
    ((2, 4, 7), (4, 1, 3), {"strides": [2], "group": 4, "output_padding": [1]}),
    ((2, 3, 7), (3, 2, 3), {"dilations": [2]}),
    ((1, 2, 3, 4, 5), (2, 3, 2, 2, 2), {"strides": [2, 2, 2]}),
    ((1, 2, 3, 4, 3), (2, 2, 3, 3, 2), {"strides": [2, 1, 3], "pads": [1, 0, 0, 1, 1, 0]}),
    ((1, 4, 3, 4, 3), (4, 1, 3, 2, 2), {"strides": [2, 2, 1], "group": 4}),
]


def transposed(
    shape: tuple[int, ...], kernel: tuple[int, ...], attrs: dict[str, Any], *, opset: int = 13
):
    """A model of one ConvTranspose with a bias."""
    weights = {
        "w": rand(*kernel, seed=1),
        "b": rand(kernel[1] * attrs.get("group", 1), seed=2),
    }
    nodes = [node("ConvTranspose", ["x", *weights], ["y"], **attrs)]
    return model(nodes, {"x": shape}, weights=weights, opset=opset)


@pytest.mark.parametrize(("shape", "kernel", "attrs"), TRANSPOSED)
def test_transposed_convolution(shape, kernel, attrs):
    assert_as_onnxruntime(transposed(shape, kernel, attrs), {"x": rand(*shape)})


@pytest.mark.parametrize(("shape", "kernel", "attrs"), TRANSPOSED[:9])
def test_transposed_convolution_with_a_weight_that_is_computed(shape, kernel, attrs):
    inputs = {"x": rand(*shape), "w": rand(*kernel, seed=1)}
    made = model(
        [node("ConvTranspose", ["x", "w"], ["y"], **attrs)],
        {name: array.shape for name, array in inputs.items()},
    )
    assert_as_onnxruntime(made, inputs)


SIZES = [
    (taps, stride, pad, dilation)
    for taps, stride, pad, dilation in product((1, 2, 3, 4, 5), (1, 2, 3), (0, 1, 2), (1, 2))
    if stride * 5 + (taps - 1) * dilation + 1 > 2 * pad
]


@pytest.mark.parametrize(("taps", "stride", "pad", "dilation"), SIZES)
def test_every_size_of_a_row(taps, stride, pad, dilation):
    attrs = {"strides": [stride], "pads": [pad, pad], "dilations": [dilation]}
    made = transposed((1, 2, 6), (2, 3, taps), attrs, opset=11)
    assert_as_onnxruntime(made, {"x": rand(1, 2, 6)})


@pytest.mark.parametrize("opset", [7, 11, 22])
def test_every_version(opset):
    shape, kernel, attrs = TRANSPOSED[1]
    assert_as_onnxruntime(transposed(shape, kernel, attrs, opset=opset), {"x": rand(*shape)})


def test_a_decoder_stays_channels_last():
    """Upwards by a transposed convolution, beside a connection across, and a convolution."""
    weights = {
        "w": rand(4, 3, 3, 3, seed=1),
        "up": rand(4, 2, 2, 2, seed=2),
        "v": rand(2, 5, 3, 3, seed=3),
    }
    nodes = [
        node("Conv", ["x", "w"], ["a"], strides=[2, 2], pads=[1] * 4),
        node("ConvTranspose", ["a", "up"], ["b"], strides=[2, 2]),
        node("Relu", ["b"], ["c"]),
        node("Concat", ["c", "x"], ["d"], axis=1),
        node("Conv", ["d", "v"], ["y"], pads=[1] * 4),
    ]
    made = model(nodes, {"x": (1, 3, 8, 6)}, weights=weights)
    assert_as_onnxruntime(made, {"x": rand(1, 3, 8, 6)})
    graph = optimise(import_model(made), "NHWC")
    assert [n.op for n in graph.nodes] == [
        *("transpose", "conv2d", "conv2d", "depth_to_space", "relu", "concat", "conv2d"),
        "transpose",
    ]


@pytest.mark.parametrize(
    ("taps", "stride", "convolutions"), [(2, 2, 1), (4, 2, 1), (3, 2, 4), (5, 2, 1), (3, 1, 1)]
)
def test_phases_are_convolutions_of_their_own_where_that_spares_many_zeros(
    taps, stride, convolutions
):
    made = transposed((1, 3, 5, 4), (3, 2, taps, taps), {"strides": [stride] * 2})
    graph = optimise(import_model(made), "NHWC")
    assert sum(n.op == "conv2d" for n in graph.nodes) == convolutions
    assert sum(n.op == "transpose" for n in graph.nodes) == 2


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space_between_convolutions_needs_no_transposes(mode):
    weights = {"w": rand(8, 3, 1, 1, seed=1), "v": rand(3, 2, 1, 1, seed=2)}
    nodes = [
        node("Conv", ["x", "w"], ["a"]),
        node("DepthToSpace", ["a"], ["b"], blocksize=2, mode=mode),
        node("Conv", ["b", "v"], ["y"]),
    ]
    made = model(nodes, {"x": (2, 3, 4, 5)}, weights=weights)
    assert_as_onnxruntime(made, {"x": rand(2, 3, 4, 5)})
    graph = optimise(import_model(made), "NHWC")
    ops = [n.op for n in graph.nodes]
    assert ops == ["transpose", "conv2d", "depth_to_space", "conv2d", "transpose"]


@pytest.mark.parametrize(
    ("shape", "kernel", "attrs", "message"),
    [
        ((1, 3, 5, 5), (4, 2, 3, 3), {}, "the first has the data's 3 channels"),
        ((1, 3, 5, 5), (3, 2, 3), {}, "expected 4 dimensions"),
        ((1, 3, 5, 5), (3, 2, 3, 3), {"group": 2}, "a number of groups that divides them"),
        ((1, 3, 5, 5), (3, 2, 3, 3), {"strides": [2]}, "strides .2. has 1 entries; expected 2"),
    ],
)
def test_a_transposed_convolution_that_makes_no_sense_is_named(shape, kernel, attrs, message):
    with pytest.raises(ModelError, match=message):
        import_model(transposed(shape, kernel, attrs))


COLUMNS: list[tuple[tuple[int, ...], list[int], list[int], dict[str, Any]]] = [
    ((1, 9, 4), [5, 5], [3, 3], {"strides": [2, 2]}),
    ((2, 10, 25), [5, 5], [1, 5], {"pads": [0, 2, 0, 2]}),
    ((1, 8, 9), [6, 6], [2, 2], {"strides": [2, 2]}),
    ((1, 4, 25), [6, 6], [2, 2], {}),
    ((1, 4, 16), [6, 6], [2, 2], {"dilations": [2, 2]}),
    ((1, 25, 64), [8, 8], [5, 5], {"pads": [2, 2, 2, 2]}),
    ((1, 8, 8), [3, 3, 3], [2, 2, 2], {}),
]


@pytest.mark.parametrize(("shape", "image", "block", "attrs"), COLUMNS)
def test_columns_to_an_image(shape, image, block, attrs):
    weights = {"image": np.array(image), "block": np.array(block)}
    made = model(
        [node("Col2Im", ["x", *weights], ["y"], **attrs)], {"x": shape}, weights=weights, opset=18
    )
    assert_as_onnxruntime(made, {"x": rand(*shape)})


def test_columns_of_integers():
    weights = {"image": np.array([2, 3]), "block": np.array([2, 2])}
    made = model(
        [node("Col2Im", ["x", *weights], ["y"])], {"x": (1, 4, 2)}, weights=weights, opset=18
    )
    made.graph.input[0].type.tensor_type.elem_type = 6
    x = np.arange(8, dtype=np.int32).reshape(1, 4, 2)
    found = run_graph(import_model(made), {"x": x})["y"]
    np.testing.assert_array_equal(found, [[[[0, 1 + 2, 3], [4, 5 + 6, 7]]]])


def test_columns_that_do_not_fit_are_named():
    weights = {"image": np.array([5, 5]), "block": np.array([3, 3])}
    nodes = [node("Col2Im", ["x", *weights], ["y"])]
    with pytest.raises(ModelError, match="expected 9 blocks, of 9 elements a channel"):
        import_model(model(nodes, {"x": (1, 9, 4)}, weights=weights, opset=18))

"""Quantized ops give exactly the integers that onnxruntime gives, optimised or not."""

from typing import Any

import numpy as np
import onnx
import pytest

from retune.core.errors import ModelError
from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import run_graph
from retune.graph.passes.pipeline import optimise
from tests.support.networks import node
from tests.support.peer import (
    assert_as_peer,
    assert_computes,
    peer_outputs,
    typed_model,
)

RNG = np.random.default_rng(7)
BYTES = ("uint8", "int8")

Arrays = dict[str, np.ndarray]


def whole(dtype: str, *shape: int, low: int = -60, high: int = 60) -> np.ndarray:
    """Small enough that no kernel of the peer saturates sums of two products."""
    least = max(low, np.iinfo(dtype).min)
    return RNG.integers(least, high, shape).astype(dtype)


def scales(*shape: int) -> np.ndarray:
    return (RNG.random(shape) * 0.05 + 0.01).astype(np.float32)


GRANULARITIES: list[tuple[tuple[int, ...], dict[str, int]]] = [
    ((), {}),
    ((1,), {}),
    ((3,), {}),
    ((4,), {"axis": -1}),
    ((2,), {"axis": 0}),
]


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize(("shape", "attrs"), GRANULARITIES)
@pytest.mark.parametrize("zero", [False, True])
def test_quantizing_and_back(dtype, shape, attrs, zero):
    weights = {"s": scales(*shape), "z": whole(dtype, *shape)}
    names = ["s", "z"] if zero else ["s"]
    nodes = [
        node("QuantizeLinear", ["x", *names], ["q"], **attrs),
        node("DequantizeLinear", ["q", *names], ["y"], **attrs),
    ]
    x = RNG.standard_normal((2, 3, 4)).astype(np.float32) * 5
    made = typed_model(nodes, {"x": x}, ["q", "y"], weights)
    assert_as_peer(made, {"x": x}, 0)


def test_ties_go_to_the_even_integer_however_the_network_is_optimised():
    """A product with the reciprocal of 0.1 would send some of these to the other side."""
    x = (np.arange(-150, 150, dtype=np.float32) + np.float32(0.5)) * np.float32(0.1)
    weights = {"s": np.float32(0.1), "z": np.int8(3)}
    weights = {name: np.asarray(array) for name, array in weights.items()}
    nodes = [node("QuantizeLinear", ["x", "s", "z"], ["y"])]
    expected = np.clip(np.rint(x / np.float32(0.1)) + 3, -128, 127).astype(np.int8)
    made = typed_model(nodes, {"x": x}, ["y"], weights)
    assert_computes(made, {"x": x}, {"y": expected}, 0)
    assert_as_peer(made, {"x": x}, 0)


def test_scales_that_are_computed_keep_their_last_bit():
    """Dynamic quantization: the data's range divided by 255 decides where the ties are."""
    x = np.array([0, 2, -3, -2.5, 1.34, 0.5], np.float32)
    nodes = [node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])]
    assert_as_peer(typed_model(nodes, {"x": x}, ["y", "s", "z"]), {"x": x}, 0)


@pytest.mark.parametrize(("axis", "block", "blocks"), [(1, 2, 3), (1, 4, 2), (0, 3, 2), (-1, 3, 2)])
def test_blocks_of_an_axis_have_scales_of_their_own(axis, block, blocks):
    x = RNG.standard_normal((5, 6)).astype(np.float32)
    shape = [5, 6]
    shape[axis] = blocks
    scale, zero = scales(*shape), whole("int8", *shape)
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"], axis=axis, block_size=block),
        node("DequantizeLinear", ["q", "s", "z"], ["y"], axis=axis, block_size=block),
    ]
    made = typed_model(nodes, {"x": x}, ["q", "y"], {"s": scale, "z": zero}, opset=21)
    wide = np.repeat(scale, block, axis).take(range(x.shape[axis]), axis)
    shift = np.repeat(zero, block, axis).take(range(x.shape[axis]), axis).astype(np.float32)
    q = np.clip(np.rint(x / wide) + shift, -128, 127).astype(np.int8)
    assert_computes(made, {"x": x}, {"q": q, "y": (q - shift) * wide}, 0)


@pytest.mark.parametrize("opset", [10, 13, 21])
def test_int16_and_int32_as_the_opset_allows(opset):
    x = RNG.integers(-100_000, 100_000, (2, 3)).astype(np.int32)
    weights = {"s": np.asarray(0.25, np.float32)}
    nodes = [node("DequantizeLinear", ["x", "s"], ["y"])]
    outputs = ["y"]
    if opset == 21:
        weights["z"] = np.asarray(-7, np.int16)
        nodes.append(node("QuantizeLinear", ["y", "s", "z"], ["q"]))
        outputs.append("q")
    assert_as_peer(typed_model(nodes, {"x": x}, outputs, weights, opset), {"x": x}, 0)


def test_the_type_may_be_an_attribute():
    x = RNG.standard_normal((2, 3)).astype(np.float32) * 9
    weights = {"s": np.asarray(0.001, np.float32)}
    nodes = [node("QuantizeLinear", ["x", "s"], ["y"], output_dtype=5)]
    expected = np.clip(np.rint(x / weights["s"]), -32768, 32767).astype(np.int16)
    made = typed_model(nodes, {"x": x}, ["y"], weights, opset=21)
    assert_computes(made, {"x": x}, {"y": expected}, 0)


PAIRS = [("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8")]
"""Types of data and kernel; the peer has nothing for signed data with an unsigned kernel."""

CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 3, 7, 6), (4, 3, 3, 3), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
    ((2, 4, 6, 6), (6, 2, 3, 3), {"group": 2, "auto_pad": "SAME_UPPER"}),
    ((1, 4, 6, 5), (4, 1, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
    ((1, 3, 9), (5, 3, 3), {"dilations": [2], "pads": [2, 2]}),
    ((1, 8, 4, 4), (6, 8, 1, 1), {}),
]


@pytest.mark.parametrize(("own", "kernel_type"), PAIRS)
@pytest.mark.parametrize(("shape", "kernel", "attrs"), CONVOLUTIONS)
@pytest.mark.parametrize("by_channel", [False, True])
def test_quantized_convolution(own, kernel_type, shape, kernel, attrs, by_channel):
    sides = (kernel[0],) if by_channel else ()
    zero = np.zeros(sides, np.int8) if kernel_type == "int8" else np.full(sides, 9, np.uint8)
    weights = {
        "xs": scales(),
        "xz": whole(own),
        "w": whole(kernel_type, *kernel),
        "ws": scales(*sides),
        "wz": zero,
        "ys": np.asarray(0.2, np.float32),
        "yz": whole(own),
        "b": whole("int32", kernel[0], low=-500, high=500),
    }
    made = node("QLinearConv", ["x", *weights], ["y"], **attrs)
    assert_both_ways(made, {"x": whole(own, *shape)}, weights, ("xs", "ys"))


def assert_both_ways(
    made: onnx.NodeProto, inputs: Arrays, weights: Arrays, scales: tuple[str, str]
) -> None:
    """Exact as what it means; with rescaling by integers, for scales that are known, one step."""
    given = {name: np.asarray(weights[name]) for name in scales}
    rest = {name: array for name, array in weights.items() if name not in scales}
    assert_as_peer(typed_model([made], inputs | given, ["y"], rest), inputs | given, 0)
    model = typed_model([made], inputs, ["y"], weights)
    (expected,) = peer_outputs(model, inputs).values()
    graph = import_model(model)
    for network in (graph, optimise(graph, "NHWC")):
        found = run_graph(network, inputs)["y"]
        assert found.dtype == expected.dtype
        assert np.abs(found.astype(np.int32) - expected).max() <= 1


@pytest.mark.parametrize(("shape", "kernel", "attrs"), CONVOLUTIONS)
def test_integer_convolution(shape, kernel, attrs):
    """Padding counts as the zero point of the data."""
    x, weights = whole("uint8", *shape), {"w": whole("uint8", *kernel)}
    zeros = {"xz": np.asarray(11, np.uint8), "wz": np.asarray(5, np.uint8)}
    for given in ({}, {"xz": zeros["xz"]}, zeros):
        nodes = [node("ConvInteger", ["x", "w", *given], ["y"], **attrs)]
        made = typed_model(nodes, {"x": x}, ["y"], weights | given)
        assert_as_peer(made, {"x": x}, 0)


MATRICES = [((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((4,), (4, 5))]


@pytest.mark.parametrize(("left", "right"), MATRICES)
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("by_column", [False, True])
def test_integer_products(left, right, constant, by_column):
    a, b = whole("uint8", *left), whole("int8", *right)
    zeros = {
        "az": np.asarray(3, np.uint8),
        "bz": whole("int8", *(right[-1:] if by_column and len(right) == 2 else ())),
    }
    inputs = {"a": a} if constant else {"a": a, "b": b}
    weights = zeros | ({"b": b} if constant else {})
    made = typed_model(
        [node("MatMulInteger", ["a", "b", "az", "bz"], ["y"])], inputs, ["y"], weights
    )
    assert_as_peer(made, inputs, 0)


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize(("left", "right"), MATRICES[:3])
@pytest.mark.parametrize("by_column", [False, True])
def test_quantized_products(dtype, left, right, by_column):
    sides = right[-1:] if by_column and len(right) == 2 else ()
    weights = {
        "as": scales(),
        "az": whole(dtype),
        "b": whole(dtype, *right),
        "bs": scales(*sides),
        "bz": whole(dtype, *sides),
        "ys": np.asarray(0.1, np.float32),
        "yz": whole(dtype),
    }
    made = node("QLinearMatMul", ["a", *weights], ["y"])
    assert_both_ways(made, {"a": whole(dtype, *left)}, weights, ("as", "ys"))


def test_rows_of_the_left_may_have_zero_points_and_scales():
    """By the text of the specification: onnxruntime wants one element for the left matrix."""
    a, b = whole("uint8", 3, 4), whole("uint8", 4, 5)
    weights = {
        "as": scales(3),
        "az": whole("uint8", 3),
        "b": b,
        "bs": scales(),
        "bz": whole("uint8"),
        "ys": np.asarray(0.1, np.float32),
        "yz": whole("uint8"),
    }
    made = typed_model([node("QLinearMatMul", ["a", *weights], ["y"])], {"a": a}, ["y"], weights)
    wide = {name: array.astype(np.int32) for name, array in weights.items() if name[-1] == "z"}
    total = (a.astype(np.int32) - wide["az"][:, None]) @ (b.astype(np.int32) - wide["bz"])
    factor = weights["as"][:, None] * weights["bs"] / weights["ys"]
    value = np.rint(total.astype(np.float32) * factor) + wide["yz"]
    expected = np.clip(value, 0, 255).astype(np.uint8)
    assert_computes(made, {"a": a}, {"y": expected}, 0)


def test_a_scale_that_fits_no_granularity_is_said():
    x = np.zeros((2, 3, 4), np.float32)
    nodes = [node("QuantizeLinear", ["x", "s"], ["y"])]
    made = typed_model(nodes, {"x": x}, ["y"], {"s": scales(2)})
    with pytest.raises(ModelError, match=r"float32\[2\] for data \[2, 3, 4\] along axis 1"):
        import_model(made)

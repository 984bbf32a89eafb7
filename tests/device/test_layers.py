"""Recurrent, quantized and normalising layers through generated kernels, by default schedules."""

from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest

from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import run_graph
from retune.graph.passes.pipeline import Layout
from tests.external.on_device import compile_graph
from tests.support.networks import node
from tests.support.peer import Arrays, typed_model

pytestmark = pytest.mark.device

LAYOUTS: tuple[Layout, ...] = ("NHWC", "NCHW")


def assert_runs(made: onnx.ModelProto, inputs: Arrays, layout: Layout = "NHWC") -> None:
    """The device computes what numpy does, and integers exactly."""
    graph = import_model(made)
    found = compile_graph(graph, layout).run(inputs)
    for name, expected in run_graph(graph, inputs).items():
        assert found[name].dtype == expected.dtype
        tolerance = 1e-5 if expected.dtype.kind == "f" else 0
        np.testing.assert_allclose(found[name], expected, rtol=tolerance, atol=tolerance)


def rand(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def whole(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    return rng.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)


GATE = {("LSTM", "input"), ("GRU", "none"), ("RNN", "constant")}
"""All are computed by numpy in tests/unit/graph; kernels of one of each are here."""


@pytest.mark.parametrize(
    ("op", "lengths"),
    [
        pytest.param(*case, marks=() if case in GATE else pytest.mark.slow)
        for case in product(("LSTM", "GRU", "RNN"), ("none", "constant", "input"))
    ],
)
def test_recurrent_layers(op, lengths):
    """In both directions, over sequences that end at different steps."""
    steps, batch, width, hidden = 4, 3, 5, 16
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op] * hidden
    weights = {
        "w": rand(2, gates, width, seed=1) * 0.5,
        "r": rand(2, gates, hidden, seed=2) * 0.25,
        "b": rand(2, 2 * gates, seed=3),
    }
    inputs: dict[str, np.ndarray] = {"x": rand(steps, batch, width)}
    names = ["x", *weights]
    if lengths != "none":
        names.append("lengths")
        (inputs if lengths == "input" else weights)["lengths"] = np.array([4, 1, 2], np.int32)
    attrs: dict[str, Any] = {"hidden_size": hidden, "direction": "bidirectional"}
    if op == "GRU":
        attrs["linear_before_reset"] = 1
    outputs = ["y", "h", "c"] if op == "LSTM" else ["y", "h"]
    made = typed_model([node(op, names, outputs, **attrs)], inputs, outputs, weights, opset=14)
    assert_runs(made, inputs)


CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 6, 9, 9), (8, 6, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 6, 9, 9), (8, 3, 3, 3), {"strides": [2, 2], "group": 2}),
    ((1, 8, 7, 7), (8, 1, 3, 3), {"pads": [1, 1, 1, 1], "group": 8}),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("shape", "kernel", "attrs"), CONVOLUTIONS)
def test_quantized_convolutions_give_the_same_integers(shape, kernel, attrs, layout):
    weights = {
        "xs": np.asarray(0.02, np.float32),
        "xz": np.asarray(117, np.uint8),
        "w": whole("int8", *kernel, seed=1),
        "ws": np.abs(rand(kernel[0], seed=2)) * 0.01 + 0.001,
        "wz": np.zeros(kernel[0], np.int8),
        "ys": np.asarray(0.3, np.float32),
        "yz": np.asarray(128, np.uint8),
        "b": whole("int16", kernel[0], seed=3).astype(np.int32),
    }
    x = whole("uint8", *shape)
    nodes = [node("QLinearConv", ["x", *weights], ["y"], **attrs)]
    assert_runs(typed_model(nodes, {"x": x}, ["y"], weights), {"x": x}, layout)


def test_integer_products_give_the_same_integers():
    inputs = {"a": whole("uint8", 2, 5, 33), "b": whole("int8", 2, 33, 7, seed=1)}
    weights = {"az": np.asarray(100, np.uint8), "bz": np.asarray(-3, np.int8)}
    nodes = [node("MatMulInteger", ["a", "b", "az", "bz"], ["y"])]
    assert_runs(typed_model(nodes, inputs, ["y"], weights), inputs)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16"])
def test_ties_are_quantized_to_even(dtype):
    x = (np.arange(-300, 300, dtype=np.float32) + np.float32(0.5)) * np.float32(0.1)
    weights = {"s": np.asarray(0.1, np.float32), "z": np.asarray(3, dtype)}
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    assert_runs(typed_model(nodes, {"x": x}, ["q", "y"], weights, opset=21), {"x": x})


@pytest.mark.parametrize("constant", [False, True])
def test_quotients_that_are_rounded_are_right_to_the_last_bit(constant):
    """Each is next to a tie, for scales whose reciprocals are not exact."""
    scale = np.asarray(5 / 255, np.float32)
    x = ((np.arange(-128, 128, dtype=np.float32) + np.float32(0.5)) * scale).astype(np.float32)
    x = np.concatenate([x, np.nextafter(x, np.float32(9)), np.nextafter(x, np.float32(-9))])
    inputs = {"x": x} if constant else {"x": x, "s": scale}
    weights = {"z": np.asarray(0, np.int16)} | ({"s": scale} if constant else {})
    nodes = [node("QuantizeLinear", ["x", "s", "z"], ["y"])]
    assert_runs(typed_model(nodes, inputs, ["y"], weights, opset=21), inputs)


@pytest.mark.parametrize("op", ["LayerNormalization", "RMSNormalization"])
@pytest.mark.parametrize("shape", [(3, 7, 64), (2, 65), (1, 768)])
def test_normalised_rows(op, shape):
    weights = {"s": rand(shape[-1], seed=1)}
    if op == "LayerNormalization":
        weights["b"] = rand(shape[-1], seed=2)
    nodes = [node(op, ["x", *weights], ["n"]), node("Gelu", ["n"], ["y"])]
    x = rand(*shape) * 3 + 1
    assert_runs(typed_model(nodes, {"x": x}, ["y"], weights, opset=23), {"x": x})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_normalised_groups_of_channels(layout):
    weights = {"w": rand(12, 3, 3, 3) * 0.3, "s": rand(12, seed=1), "b": rand(12, seed=2)}
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("GroupNormalization", ["c", "s", "b"], ["n"], num_groups=3),
        node("Swish", ["n"], ["a"]),
        node("Mish", ["a"], ["y"]),
    ]
    x = rand(2, 3, 9, 11)
    assert_runs(typed_model(nodes, {"x": x}, ["y"], weights, opset=24), {"x": x}, layout)


def test_a_spectrogram():
    weights = {
        "step": np.asarray(40),
        "window": np.hanning(100).astype(np.float32),
        "filters": np.abs(rand(51, 10)),
        "axes": np.array([3]),
    }
    nodes = [
        node("STFT", ["x", "step", "window"], ["s"]),
        node("Mul", ["s", "s"], ["squares"]),
        node("ReduceSum", ["squares", "axes"], ["power"], keepdims=0),
        node("MatMul", ["power", "filters"], ["mel"]),
        node("Log", ["mel"], ["y"]),
    ]
    x = rand(1, 400, 1)
    assert_runs(typed_model(nodes, {"x": x}, ["y"], weights, opset=17), {"x": x})


@pytest.mark.parametrize("equation", ["bhqd,bhkd->bhqk", "bii->b", "...ij,j->...i", "ij,kj,k->i"])
def test_sums_of_products(equation):
    shapes = {"b": 2, "h": 3, "q": 4, "k": 5, "d": 8, "i": 6, "j": 7}
    terms = equation.partition("->")[0].split(",")
    arrays = {
        f"x{n}": rand(*(shapes[letter] for letter in term.replace("...", "h")), seed=n)
        for n, term in enumerate(terms)
    }
    made = typed_model([node("Einsum", arrays, ["y"], equation=equation)], arrays, ["y"])
    assert_runs(made, arrays)

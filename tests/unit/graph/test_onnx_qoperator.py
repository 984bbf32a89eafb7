"""Models of quantized operators: they compute as models of pairs do, with the same integers."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnxruntime.quantization import QuantType
from onnxruntime.quantization.shape_inference import quant_pre_process

from retune.core.errors import ModelError
from retune.frontend.models import resolve_model
from retune.frontend.onnx.importer import import_model
from retune.frontend.quantized.qoperator import in_pairs
from retune.graph.evaluate import run_graph
from retune.graph.passes.pipeline import optimise
from tests.support.device_networks import Net
from tests.support.networks import node
from tests.support.onnx_pairs import (
    CODING,
    DECODING,
    float_ops,
    inputs_of,
    last_scale,
    layers,
    peer,
    quantized,
    small,
)
from tests.support.onnx_qoperator import OPERATORS, RNG, WAYS, codes, lines, without_floats
from tests.support.peer import Arrays, peer_outputs, typed_model


def matrices() -> onnx.ModelProto:
    """Products with matrices, functions by tables, a product of two values, moves."""
    n = Net("matrices")
    x = n("Sigmoid", n("MatMul", n.input(4, 12), n.weight(12, 16)))
    y = n("LeakyRelu", n("Gemm", x, n.weight(16, 16), n.weight(16)), alpha=0.2)
    z = n("Transpose", n("Mul", x, y), perm=[1, 0])
    return n.model(n("MatMul", n("Reshape", z, n.ints(4, 16)), n.weight(16, 8)))


@pytest.mark.parametrize("network", [small, matrices, lines])
@pytest.mark.parametrize("way", WAYS)
def test_a_network_of_operators_stays_in_integers(network: Any, way: str, tmp_path: Path) -> None:
    model = quantized(network(), tmp_path, **(OPERATORS | WAYS[way]))
    assert any(n.op_type.startswith("QLinear") for n in model.graph.node)
    graph = import_model(model)
    assert layers(graph) == {"int32"}
    assert [op for op in float_ops(graph) if op != "identity"] == CODING + DECODING
    inputs = inputs_of(model, 9)
    found = run_graph(graph, inputs)[graph.outputs[0]]
    assert np.abs(found - peer(model, inputs)).max() <= 1.001 * last_scale(model)
    again = run_graph(optimise(graph, "NHWC"), inputs)[graph.outputs[0]]
    np.testing.assert_array_equal(again, found)


@pytest.mark.parametrize("way", ["per channel", "signed"])
@pytest.mark.parametrize("network", [small, matrices, lines])
def test_a_network_from_codes_to_codes_has_no_floats(
    network: Any, way: str, tmp_path: Path
) -> None:
    model = without_floats(quantized(network(), tmp_path, **(OPERATORS | WAYS[way])))
    graph = import_model(model)
    assert float_ops(graph) == []
    entry = graph.types[graph.inputs[0]]
    assert (
        entry.dtype
        == graph.types[graph.outputs[0]].dtype
        == ("int8" if way == "signed" else "uint8")
    )
    inputs = {graph.inputs[0]: codes(*entry.shape, dtype=entry.dtype)}
    found = run_graph(graph, inputs)[graph.outputs[0]]
    assert np.abs(found.astype(np.int32) - peer(model, inputs)).max() <= 1


def scale(number: float) -> np.ndarray:
    return np.asarray(number, np.float32)


def coding(prefix: str, step: float, zero: int, dtype: str) -> dict[str, np.ndarray]:
    """A scale and a zero point, which is lower for signed codes."""
    shift = 0 if dtype == "uint8" else 128
    return {f"{prefix}s": scale(step), f"{prefix}z": np.asarray(zero - shift, dtype)}


def assert_one_step(made: onnx.ModelProto, inputs: Arrays) -> None:
    """The codes of the output are those of onnxruntime, or next to them."""
    expected = peer_outputs(made, inputs)
    graph = import_model(made)
    for network in (graph, optimise(graph, "NHWC")):
        for name, found in run_graph(network, inputs).items():
            assert found.dtype == expected[name].dtype
            assert np.abs(found.astype(np.int32) - expected[name].astype(np.int32)).max() <= 1


def microsoft(op: str, inputs: list[str], **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, ["y"], domain="com.microsoft", **attrs)


def model_of(
    made: onnx.NodeProto, inputs: Arrays, known: Arrays, opset: int = 13
) -> onnx.ModelProto:
    model = typed_model([made], inputs, ["y"], known, opset)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


ONE_VALUE: list[tuple[str, dict[str, Any]]] = [
    ("QLinearSigmoid", {}),
    ("QLinearLeakyRelu", {"alpha": 0.3}),
    ("QLinearAveragePool", {"kernel_shape": [3, 2], "pads": [1, 0, 1, 0], "strides": [2, 2]}),
    ("QLinearAveragePool", {"kernel_shape": [2, 2], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
    ("QLinearGlobalAveragePool", {"channels_last": 0}),
    ("QLinearSoftmax", {"axis": 1, "opset": 13}),
]


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize(("op", "attrs"), ONE_VALUE)
def test_operators_of_one_value(op: str, attrs: dict[str, Any], dtype: str) -> None:
    known = coding("x", 0.03, 120, dtype) | coding("y", 0.02, 90, dtype)
    inputs = {"x": codes(2, 3, 6, 5, dtype=dtype)}
    assert_one_step(model_of(microsoft(op, ["x", *known], **attrs), inputs, known), inputs)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("constant", [False, True])
def test_operators_of_two_values(op: str, dtype: str, constant: bool) -> None:
    known = (
        coding("a", 0.03, 120, dtype) | coding("b", 0.02, 90, dtype) | coding("y", 0.04, 99, dtype)
    )
    a, b = codes(2, 3, 4, dtype=dtype), codes(3, 1, dtype=dtype)
    inputs = {"a": a} if constant else {"a": a, "b": b}
    made = microsoft(op, ["a", "as", "az", "b", "bs", "bz", "ys", "yz"])
    assert_one_step(model_of(made, inputs, known | ({"b": b} if constant else {})), inputs)


def test_zero_points_may_be_left_out() -> None:
    """By the text of the specification: onnxruntime wants them all."""
    known = {"as": scale(0.03), "bs": scale(0.05), "ys": scale(0.07)}
    inputs = {"a": codes(2, 3), "b": codes(2, 3)}
    made = microsoft("QLinearAdd", ["a", "as", "", "b", "bs", "", "ys"])
    found = run_graph(import_model(model_of(made, inputs, known)), inputs)["y"]
    whole = (inputs["a"] * np.float64(0.03) + inputs["b"] * np.float64(0.05)) / 0.07
    assert np.abs(found - np.clip(np.rint(whole), 0, 255)).max() <= 1


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_means_over_axes(dtype: str, keepdims: int) -> None:
    """By the text of the specification: onnxruntime has no kernel for it."""
    known = coding("x", 0.03, 120, dtype) | coding("y", 0.02, 90, dtype)
    inputs = {"x": codes(2, 3, 6, 5, dtype=dtype)}
    made = microsoft("QLinearReduceMean", ["x", *known], axes=[1, -1], keepdims=keepdims)
    found = run_graph(import_model(model_of(made, inputs, known)), inputs)["y"]
    values = (inputs["x"].astype(np.float64) - known["xz"]) * 0.03
    whole = values.mean((1, 3), keepdims=bool(keepdims)) / 0.02 + known["yz"]
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    assert found.dtype == dtype and found.shape == whole.shape
    assert np.abs(found - np.clip(np.rint(whole), least, most)).max() <= 1


def test_concatenation_of_values_in_codes_of_their_own() -> None:
    known = coding("y", 0.03, 120, "uint8") | coding("a", 0.02, 90, "uint8")
    known |= coding("b", 0.05, 128, "uint8")
    inputs = {"a": codes(2, 3, 4), "b": codes(2, 1, 4)}
    made = microsoft("QLinearConcat", ["ys", "yz", "a", "as", "az", "b", "bs", "bz"], axis=1)
    assert_one_step(model_of(made, inputs, known), inputs)


def test_a_choice_of_two_values() -> None:
    known = coding("a", 0.02, 90, "uint8") | coding("b", 0.05, 128, "uint8")
    known |= coding("y", 0.03, 120, "uint8")
    inputs = {"c": RNG.random((2, 3)) < 0.5, "a": codes(2, 3), "b": codes(2, 3)}
    made = microsoft("QLinearWhere", ["c", "a", "as", "az", "b", "bs", "bz", "ys", "yz"])
    assert_one_step(model_of(made, inputs, known), inputs)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize("floats", [False, True])
def test_general_products(turned: bool, by_column: bool, floats: bool) -> None:
    """Without a scale for what they make they make floats."""
    sides = (5,) if by_column else ()
    steps = (RNG.random(sides) * 0.02 + 0.01).astype(np.float32)
    known = coding("a", 0.02, 90, "uint8") | {
        "b": codes(*((5, 8) if turned else (8, 5)), dtype="int8") // 2,
        "bs": steps,
        "bz": np.zeros(sides, np.int8),
        "c": RNG.integers(-900, 900, 5).astype(np.int32),
    }
    made = [] if floats else ["ys", "yz"]
    known |= {} if floats else coding("y", 0.5, 120, "uint8")
    inputs = {"a": codes(3, 8)}
    names = ["a", "as", "az", "b", "bs", "bz", "c", *made]
    model = model_of(microsoft("QGemm", names, transB=int(turned), alpha=0.5), inputs, known)
    if floats:
        expected = peer_outputs(model, inputs)["y"]
        found = run_graph(import_model(model), inputs)["y"]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    else:
        assert_one_step(model, inputs)


def test_a_general_product_of_nothing_but_its_matrices_makes_floats() -> None:
    known = coding("a", 0.02, 90, "uint8") | coding("b", 0.01, 0, "int8") | {"b": codes(8, 5)}
    known["b"] = (known["b"].astype(np.int16) - 128).astype(np.int8)
    inputs = {"a": codes(3, 8)}
    model = model_of(microsoft("QGemm", ["a", "as", "az", "b", "bs", "bz"]), inputs, known)
    found = run_graph(import_model(model), inputs)["y"]
    np.testing.assert_allclose(found, peer_outputs(model, inputs)["y"], rtol=1e-5, atol=1e-5)


def test_a_bias_that_no_pair_says_is_added_in_integers() -> None:
    """One quantized value for each row, of columns with scales of their own."""
    known = coding("a", 0.02, 90, "uint8") | coding("y", 0.5, 120, "uint8")
    known |= {"b": codes(8, 5, dtype="int8") // 2, "bz": np.zeros(5, np.int8)}
    known |= {"bs": np.linspace(0.01, 0.02, 5, dtype=np.float32)}
    known |= {"c": np.array([[900], [-50], [7]], np.int32)}
    made = microsoft("QGemm", ["a", "as", "az", "b", "bs", "bz", "c", "ys", "yz"])
    inputs = {"a": codes(3, 8)}
    assert_one_step(model_of(made, inputs, known), inputs)


@pytest.mark.parametrize("dtype", ["uint8", "int16"])
def test_pairs_of_onnxruntimes_own_domain_are_pairs(dtype: str) -> None:
    known = {"s": scale(0.01), "z": np.asarray(3, dtype)}
    made = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"], domain="com.microsoft")
    inputs = {"x": RNG.standard_normal((2, 3)).astype(np.float32)}
    assert_one_step(model_of(made, inputs, known), inputs)


def test_a_pad_with_nothing_stated_pads_with_the_code_0() -> None:
    """Which stands for a number that is not zero."""
    known = {"s": scale(0.1), "z": np.asarray(40, np.uint8), "p": np.asarray([0, 1, 0, 1])}
    known |= {"w": codes(4, 4, dtype="int8"), "ws": scale(0.02), "wz": np.asarray(0, np.int8)}
    known |= coding("y", 0.3, 128, "uint8")
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("Pad", ["q", "p"], ["wide"]),
        node("QLinearMatMul", ["wide", "s", "z", "w", "ws", "wz", "ys", "yz"], ["y"]),
    ]
    inputs = {"x": RNG.standard_normal((3, 2)).astype(np.float32)}
    assert_one_step(typed_model(nodes, inputs, ["y"], known), inputs)


def test_scales_that_no_pair_has_leave_the_operator_as_it_is() -> None:
    """A scale for each row of the left matrix; see test_quantized.py for what it means."""
    known = {"as": np.full(3, 0.1, np.float32), "az": np.zeros(3, np.uint8), "b": codes(4, 5)}
    known |= {"bs": scale(0.1), "bz": np.asarray(3, np.uint8)} | coding("y", 0.1, 3, "uint8")
    names = ["a", "as", "az", "b", "bs", "bz", "ys", "yz"]
    model = typed_model([node("QLinearMatMul", names, ["y"])], {"a": codes(3, 4)}, ["y"], known)
    assert [n.op_type for n in in_pairs(model, Path()).graph.node] == ["QLinearMatMul"]


LAST: list[tuple[str, dict[str, Any]]] = [
    ("QLinearAveragePool", {"kernel_shape": [2, 2], "pads": [1, 1, 0, 0]}),
    ("QLinearGlobalAveragePool", {}),
]


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize(("op", "attrs"), LAST)
def test_pools_of_channels_last(op: str, attrs: dict[str, Any], dtype: str) -> None:
    known = coding("x", 0.03, 120, dtype) | coding("y", 0.02, 90, dtype)
    made = microsoft(op, ["x", *known], channels_last=1, **attrs)
    inputs = {"x": codes(2, 6, 5, 8, dtype=dtype)}
    assert_one_step(model_of(made, inputs, known), inputs)


def convolution(bias: bool, **attrs: Any) -> tuple[onnx.NodeProto, dict[str, np.ndarray]]:
    """Of data with eight channels."""
    known = coding("x", 0.03, 120, "uint8") | coding("y", 0.2, 90, "uint8")
    known |= {"w": codes(4, 8, 3, 3, dtype="int8") // 2, "wz": np.zeros(4, np.int8)}
    known |= {"ws": np.linspace(0.01, 0.02, 4, dtype=np.float32)}
    known |= {"c": np.array([90, -50, 7, 300], np.int32)} if bias else {}
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", *(["c"] if bias else [])]
    return microsoft("QLinearConv", names, **attrs), known


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("bias", [False, True])
def test_convolutions_of_onnxruntimes_own_domain(last: int, bias: bool) -> None:
    made, known = convolution(bias, channels_last=last, pads=[1, 1, 1, 1], strides=[2, 1])
    inputs = {"x": codes(*((1, 7, 6, 8) if last else (1, 8, 7, 6)))}
    model = model_of(made, inputs, known)
    assert_one_step(model, inputs)
    graph = import_model(model)
    assert layers(graph) == {"int32"}


def test_softmax_of_an_older_opset_than_the_models() -> None:
    known = coding("x", 0.03, 120, "uint8") | coding("y", 0.004, 0, "uint8")
    inputs = {"x": codes(2, 3, 4)}
    made = microsoft("QLinearSoftmax", ["x", *known], axis=1, opset=11)
    assert_one_step(model_of(made, inputs, known), inputs)


@pytest.mark.parametrize(
    ("op", "more"),
    [("QLinearAdd", ["b", "bs", "bz"]), ("QLinearSigmoid", []), ("QLinearConcat", None)],
)
def test_operators_inside_of_branches(op: str, more: list[str] | None) -> None:
    """The rules for whole networks are those for single nodes."""
    known = coding("a", 0.03, 120, "uint8") | coding("b", 0.02, 90, "uint8")
    known |= coding("y", 0.04, 99, "uint8")
    names = ["a", "as", "az", *(more or []), "ys", "yz"]
    attrs: dict[str, Any] = {}
    if more is None:
        names, attrs = ["ys", "yz", "a", "as", "az", "b", "bs", "bz"], {"axis": 1}
    body = helper.make_graph(
        [microsoft(op, names, **attrs)], "body", [], [onnx.ValueInfoProto(name="y")]
    )
    choice = node("If", ["c"], ["z"], then_branch=body, else_branch=body)
    inputs = {"a": codes(2, 3, 4), "b": codes(2, 3, 4), "c": np.array(True)}
    model = model_of(choice, inputs, known)
    model.graph.output[0].name = "z"
    assert_one_step(model, inputs)


def test_scales_that_are_computed() -> None:
    inputs = {"a": codes(2, 3, 4), "b": codes(2, 3, 4), "ys": scale(0.04)}
    known = coding("a", 0.03, 120, "uint8") | coding("b", 0.02, 90, "uint8")
    known |= {"yz": np.asarray(99, np.uint8)}
    made = microsoft("QLinearAdd", ["a", "as", "az", "b", "bs", "bz", "ys", "yz"])
    assert_one_step(model_of(made, inputs, known), inputs)


@pytest.mark.parametrize("zeros", [False, True])
def test_integers_are_multiplied(zeros: bool) -> None:
    """By the text of the specification: onnxruntime has no kernel of it."""
    inputs = {"a": codes(2, 3), "b": codes(3, dtype="int8")}
    known = {"az": np.asarray(7, np.uint8), "bz": np.asarray(-3, np.int8)} if zeros else {}
    names = ["a", "az", "b", "bz"] if zeros else ["a", "", "b"]
    found = run_graph(import_model(model_of(microsoft("MulInteger", names), inputs, known)), inputs)
    a, b = inputs["a"].astype(np.int32), inputs["b"].astype(np.int32)
    expected = (a - 7) * (b + 3) if zeros else a * b
    np.testing.assert_array_equal(found["y"], expected)
    assert found["y"].dtype == np.int32


@pytest.mark.parametrize("attrs", [{}, {"axes": [-1], "keepdims": 0}, {"axes": [0, 2]}])
def test_integers_are_added_up(attrs: dict[str, Any]) -> None:
    """By the text of the specification: onnxruntime has no kernel of it."""
    inputs = {"x": codes(2, 3, 4, dtype="int8")}
    model = model_of(microsoft("ReduceSumInteger", ["x"], **attrs), inputs, {})
    keep, axes = bool(attrs.get("keepdims", 1)), tuple(attrs.get("axes", (0, 1, 2)))
    found = run_graph(import_model(model), inputs)["y"]
    np.testing.assert_array_equal(found, inputs["x"].sum(axes, dtype=np.int32, keepdims=keep))


@pytest.mark.parametrize("op", ["QOrderedMatMul", "QuantizeWithOrder", "QuantizeBFP"])
def test_what_is_for_other_hardware_is_refused_with_advice(op: str) -> None:
    model = model_of(microsoft(op, ["x"]), {"x": np.zeros((2, 3), np.float32)}, {})
    with pytest.raises(ModelError, match=f"com.microsoft::{op} is not supported; .*model"):
        import_model(model)


@pytest.mark.slow
@pytest.mark.parametrize("signed", [False, True], ids=["u8s8", "s8s8"])
@pytest.mark.parametrize("by_channel", [False, True], ids=["one scale", "per channel"])
def test_resnet18_of_operators_stays_in_integers(
    signed: bool, by_channel: bool, tmp_path: Path
) -> None:
    """As near to onnxruntime as the same network in pairs: see test_onnx_pairs.py."""
    plain = tmp_path / "plain.onnx"
    quant_pre_process(resolve_model("zoo:resnet18_v1"), plain, skip_symbolic_shape=True)
    own = {"activation_type": QuantType.QInt8} if signed else {}
    options = OPERATORS | own | {"per_channel": by_channel}
    model = quantized(onnx.load(plain), tmp_path, **options)
    graph = import_model(model)
    assert layers(graph) == {"int32"}
    assert [op for op in float_ops(graph) if op != "identity"] == CODING + DECODING
    inputs = inputs_of(model, 9)
    found = run_graph(graph, inputs)[graph.outputs[0]]
    steps = np.rint(np.abs(found - peer(model, inputs)) / last_scale(model))
    assert np.mean(steps > 1) <= 0.002
    assert steps.max() <= 2

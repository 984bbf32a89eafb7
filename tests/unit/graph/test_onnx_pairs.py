"""Models that somebody else quantized: they keep their integers, and mean what onnxruntime says."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import QuantType
from onnxruntime.quantization.shape_inference import quant_pre_process

from retune.frontend.models import resolve_model
from retune.frontend.onnx.importer import import_model
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
    pair,
    peer,
    quantized,
    small,
)
from tests.support.peer import peer_outputs, typed_model


@pytest.mark.parametrize(
    "options",
    [
        {"per_channel": True},
        {"per_channel": False, "activation_type": QuantType.QInt8},
        {"per_channel": True, "weight_type": QuantType.QUInt8, "reduce_range": True},
        {"per_channel": True, "extra_options": {"AddQDQPairToWeight": True}},
        {"extra_options": {"UseQDQContribOps": True, "DedicatedQDQPair": True}},
    ],
    ids=["per channel", "signed", "unsigned weights", "float weights", "contrib operators"],
)
def test_a_network_of_pairs_stays_in_integers(options: dict[str, Any], tmp_path: Path) -> None:
    model = quantized(small(), tmp_path, **options)
    graph = import_model(model)
    assert layers(graph) == {"int32"}
    assert [op for op in float_ops(graph) if op != "identity"] == CODING + DECODING
    inputs = inputs_of(model, 9)
    found = run_graph(graph, inputs)[graph.outputs[0]]
    step = last_scale(model)
    assert np.abs(found - peer(model, inputs)).max() <= 1.001 * step
    again = run_graph(optimise(graph, "NHWC"), inputs)[graph.outputs[0]]
    np.testing.assert_array_equal(again, found)


def test_a_norm_of_a_single_channel_is_no_function_of_one_value(tmp_path: Path) -> None:
    """It is one to look at, as its numbers are single ones; but it needs an axis of channels."""
    n = Net("one channel")
    x = n("DepthToSpace", n.conv(n.input(1, 3, 6, 6), 3, 4), blocksize=2)
    made = quantized(n.model(n.conv(n.norm(x, 1), 1, 4)), tmp_path, per_channel=True)
    graph, inputs = import_model(made), inputs_of(made, 9)
    found = run_graph(graph, inputs)[graph.outputs[0]]
    assert np.abs(found - peer(made, inputs)).max() <= 1.001 * last_scale(made)


def test_weights_of_reduced_range_are_as_narrow_as_they_look(tmp_path: Path) -> None:
    graph = import_model(quantized(small(), tmp_path, per_channel=True, reduce_range=True))
    weights = [graph.types[n.inputs[1]].dtype for n in graph.nodes if n.op in ("conv2d", "dense")]
    assert set(weights) == {"int7"}


def test_what_is_left_in_floats_reads_rounded_values(tmp_path: Path) -> None:
    """The layer between two quantized ones computes with what their codes stand for."""
    model = small()
    names = [n.name for n in model.graph.node if n.op_type == "Conv"]
    model = quantized(model, tmp_path, per_channel=True, nodes_to_exclude=names[1:2])
    graph = import_model(model)
    assert layers(graph) == {"int32", "float32"}
    inputs = inputs_of(model, 9)
    found = run_graph(graph, inputs)[graph.outputs[0]]
    assert np.abs(found - peer(model, inputs)).max() <= 1.001 * last_scale(model)


WEIGHTS = {
    "s": np.asarray(0.05, np.float32), "z": np.asarray(7, np.int8),
    "w": np.arange(-12, 12).reshape(2, 3, 2, 2).astype(np.int8),
    "ws": np.asarray([0.01, 0.02], np.float32), "wz": np.zeros(2, np.int8),
}  # fmt: skip
X = np.random.default_rng(3).standard_normal((1, 3, 5, 5)).astype(np.float32)


def test_a_value_that_others_read_as_it_is_keeps_its_pair() -> None:
    """The sum reads what the convolution's operand was before it was rounded."""
    nodes = [
        node("Neg", ["x"], ["n"]),
        *pair("n", "rounded"),
        node("DequantizeLinear", ["w", "ws", "wz"], ["weight"], axis=0),
        node("Conv", ["rounded", "weight"], ["c"]),
        node("ReduceMean", ["n"], ["mean"], keepdims=1),
        node("Add", ["c", "mean"], ["y"]),
    ]
    model = typed_model(nodes, {"x": X}, ["y"], WEIGHTS)
    graph = import_model(model)
    assert layers(graph) == {"int32"}
    np.testing.assert_allclose(run_graph(graph, {"x": X})["y"], peer(model, {"x": X}), atol=1e-5)


@pytest.mark.parametrize("scale", [0.0, 1e-10])
def test_a_layer_whose_sums_do_not_fit_is_left_in_floats(scale: float) -> None:
    """A channel that is all zeros may have any scale; in that of its sums, a bias is too large."""
    weight = np.where(np.arange(2).reshape(2, 1, 1, 1) == 1, 0, WEIGHTS["w"]).astype(np.int8)
    more = {"dead": weight, "ds": np.asarray([0.01, scale], np.float32)}
    nodes = [
        *pair("x", "rounded"),
        node("DequantizeLinear", ["dead", "ds", "wz"], ["few"], axis=0),
        node("DequantizeLinear", ["w", "ws", "wz"], ["weight"], axis=0),
        node("Conv", ["rounded", "few", "bias"], ["c"]),
        node("Conv", ["rounded", "weight"], ["d"]),
        node("Add", ["c", "d"], ["y"]),
    ]
    more["bias"] = np.asarray([0.5, 20], np.float32)
    model = typed_model(nodes, {"x": X}, ["y"], WEIGHTS | more)
    graph = import_model(model)
    assert layers(graph) == {"int32", "float32"}
    np.testing.assert_allclose(run_graph(graph, {"x": X})["y"], peer(model, {"x": X}), atol=1e-5)


def test_pairs_of_each_reader_are_one_if_they_say_the_same() -> None:
    nodes = [
        node("Relu", ["x"], ["r"]),
        *pair("r", "left"),
        *pair("r", "right"),
        node("DequantizeLinear", ["w", "ws", "wz"], ["weight"], axis=0),
        node("Conv", ["left", "weight"], ["c"]),
        node("Conv", ["right", "weight"], ["d"]),
        node("Sub", ["c", "d"], ["y"]),
    ]
    model = typed_model(nodes, {"x": X}, ["y"], WEIGHTS)
    graph = import_model(model)
    assert layers(graph) == {"int32"}
    assert [n.op for n in graph.nodes].count("quotient") == 1
    np.testing.assert_array_equal(run_graph(graph, {"x": X})["y"], peer(model, {"x": X}))


@pytest.mark.parametrize("stated", ["by its zero point", "by itself"])
def test_codes_are_of_the_type_that_they_were_made_in(stated: str) -> None:
    """Who reads them need not say it: signed codes are not unsigned ones with the zero point 0."""
    own, of_node = ["s", "zero"], {}
    if stated == "by itself":
        own, of_node = ["s"], {"output_dtype": onnx.TensorProto.INT8}
    nodes = [
        node("QuantizeLinear", ["x", *own], ["codes"], **of_node),
        node("DequantizeLinear", ["codes", "s"], ["rounded"]),
        node("DequantizeLinear", ["w", "ws", "wz"], ["weight"], axis=0),
        node("Conv", ["rounded", "weight"], ["y"]),
    ]
    weights = WEIGHTS | {"zero": np.zeros((), np.int8)}
    model = typed_model(nodes, {"x": X}, ["y"], weights, opset=21)
    found = run_graph(import_model(model), {"x": X})["y"]
    np.testing.assert_allclose(found, peer(model, {"x": X}), atol=1e-5)


def unsigned_weights(by_channel: bool, groups: int = 1) -> onnx.ModelProto:
    """A convolution and a product of weights whose zero points no signed bytes make up for."""
    rng = np.random.default_rng(11)
    zeros = rng.integers(40, 220, 8) if by_channel else np.asarray(70)
    scales = rng.uniform(0.005, 0.02, 8) if by_channel else np.asarray(0.01)
    weights = WEIGHTS | {
        "u": rng.integers(0, 256, (8, 8 // groups, 3, 3)).astype(np.uint8),
        "v": rng.integers(0, 256, (8, 6)).astype(np.uint8),
        "us": scales.astype(np.float32), "uz": zeros.astype(np.uint8),
        "vs": np.asarray(0.01, np.float32), "vz": np.asarray(30, np.uint8),
        "b": rng.standard_normal(8).astype(np.float32), "ys": np.asarray(0.5, np.float32),
    }  # fmt: skip
    nodes = [
        *pair("x", "a"),
        node("DequantizeLinear", ["u", "us", "uz"], ["kernel"], axis=0),
        node("Conv", ["a", "kernel", "b"], ["c"], pads=[1, 1, 1, 1], group=groups),
        *pair("c", "d", scale="ys"),
        node("GlobalAveragePool", ["d"], ["p"]),
        node("Flatten", ["p"], ["f"]),
        *pair("f", "g", scale="ys"),
        node("DequantizeLinear", ["v", "vs", "vz"], ["matrix"]),
        node("MatMul", ["g", "matrix"], ["m"]),
        *pair("m", "y", scale="ys"),
    ]
    return typed_model(nodes, {"x": WIDE}, ["d", "y"], weights)


WIDE = np.random.default_rng(4).standard_normal((1, 8, 6, 6)).astype(np.float32)


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize(
    ("groups", "kinds"), [(1, {"int32"}), (8, {"int32"}), (2, {"int32", "float32"})]
)
def test_weights_with_a_zero_point_of_their_own_are_bytes(
    by_channel: bool, groups: int, kinds: set[str]
) -> None:
    """But for those of groups, whose data are summed group by group."""
    model = unsigned_weights(by_channel, groups)
    graph = optimise(import_model(model), "NHWC")
    assert layers(graph) == kinds
    found, wanted = run_graph(graph, {"x": WIDE}), peer_outputs(model, {"x": WIDE})
    for name, steps in (("d", 1), ("y", 2)):  # the product reads what is a step off
        assert np.abs(found[name] - wanted[name]).max() <= 1.001 * steps * 0.5


def test_pairs_around_no_layer_mean_what_they_say() -> None:
    nodes = [*pair("x", "a"), node("Relu", ["a"], ["r"]), *pair("r", "y")]
    model = typed_model(nodes, {"x": X}, ["y"], WEIGHTS)
    graph = import_model(model)
    np.testing.assert_array_equal(run_graph(graph, {"x": X})["y"], peer(model, {"x": X}))


def test_codes_of_sixteen_bits_are_rounded_in_floats(tmp_path: Path) -> None:
    """They mean what they say; no instruction multiplies them."""
    model = quantized(small(), tmp_path, activation_type=QuantType.QUInt16)
    graph = import_model(model)
    assert layers(graph) == {"float32"}
    inputs = inputs_of(model, 9)
    found = run_graph(graph, inputs)[graph.outputs[0]]
    assert np.abs(found - peer(model, inputs)).max() <= 2 * last_scale(model)


LAYER = [
    *pair("x", "rounded"),
    node("DequantizeLinear", ["w", "ws", "wz"], ["weight"], axis=0),
    node("Conv", ["rounded", "weight"], ["c"]),
]


@pytest.mark.parametrize("kept", [False, True])
def test_codes_that_are_coded_again_keep_their_layers_in_integers(kept: bool) -> None:
    """With another scale for the next reader; what was coded first may be an output too."""
    nodes = [*LAYER, *pair("c", "d"), *pair("d", "e", "t", "u"), node("Relu", ["e"], ["r"])]
    nodes += [*pair("r", "rounded again", "t", "u"), node("Add", ["rounded again", "e"], ["y"])]
    names = ["y", "e.codes"] if kept else ["y"]
    model = typed_model(nodes, {"x": X}, names, WEIGHTS | OTHER)
    graph = import_model(model)
    assert layers(graph) == {"int32"}
    found = run_graph(graph, {"x": X})["y"]
    step = float(WEIGHTS["s"] + OTHER["t"]) / 2  # as below, of each of the sum's two terms
    assert np.abs(found - peer(model, {"x": X})).max() <= 2 * 2 * step


OTHER = {"t": np.asarray(0.03, np.float32), "u": np.asarray(-128, np.int8)}
LIMITS = {
    "Relu": node("Relu", ["d"], ["r"]),
    "Clip": node("Clip", ["d", "low", "high"], ["r"]),
}
BETWEEN = {"low": np.asarray(-0.3, np.float32), "high": np.asarray(0.4, np.float32)}


@pytest.mark.parametrize("op", LIMITS)
def test_a_limit_between_two_pairs_of_the_same_codes_is_that_of_the_first(op: str) -> None:
    nodes = [*LAYER, *pair("c", "d"), LIMITS[op], *pair("r", "y")]
    model = typed_model(nodes, {"x": X}, ["y"], WEIGHTS | BETWEEN)
    graph = import_model(model)
    assert [n.op for n in graph.nodes if n.op in ("requantize", "relu", "lookup_codes")] == [
        "requantize"
    ]
    assert [op for op in float_ops(graph) if op != "identity"] == CODING + DECODING
    found = run_graph(graph, {"x": X})["y"]
    assert np.abs(found - peer(model, {"x": X})).max() <= 1.001 * float(WEIGHTS["s"])


@pytest.mark.parametrize("op", LIMITS)
def test_a_limit_between_other_codes_rescales_them(op: str) -> None:
    """As quantizers to symmetric codes write it: rounded once before the limit, and once after."""
    nodes = [*LAYER, *pair("c", "d"), LIMITS[op], *pair("r", "y", "t", "u")]
    model = typed_model(nodes, {"x": X}, ["y"], WEIGHTS | BETWEEN | OTHER)
    graph = import_model(model)
    assert [n.op for n in graph.nodes if n.op in ("requantize", "relu", "lookup_codes")] == [
        *["requantize"] * 2
    ]
    found = run_graph(graph, {"x": X})["y"]
    step = float(WEIGHTS["s"] + OTHER["t"]) / 2  # as far as one step before can lead, and a tie
    assert np.abs(found - peer(model, {"x": X})).max() <= 2 * step


@pytest.mark.slow
def test_resnet18_stays_in_integers_from_its_first_to_its_last_convolution(tmp_path: Path) -> None:
    """Quantized by onnxruntime, and as near to it as it is to itself, optimised or not.

    That is one step of the output's scale, and two for one output in a few thousand.
    """
    plain = tmp_path / "plain.onnx"  # its batch norms folded, as the quantizer asks for
    quant_pre_process(resolve_model("zoo:resnet18_v1"), plain, skip_symbolic_shape=True)
    model = quantized(onnx.load(plain), tmp_path, per_channel=True)
    graph = import_model(model)
    assert layers(graph) == {"int32"}
    assert [op for op in float_ops(graph) if op != "identity"] == CODING + DECODING
    inputs = inputs_of(model, 9)
    found = run_graph(graph, inputs)[graph.outputs[0]]
    steps = np.rint(np.abs(found - peer(model, inputs)) / last_scale(model))
    assert np.mean(steps > 1) <= 0.002
    assert steps.max() <= 2

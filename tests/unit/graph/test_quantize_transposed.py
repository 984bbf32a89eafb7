"""Transposed convolutions of integers: exact zero points, phases of codes, files of others."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import QuantType

from retune.core.dtypes import FLOAT32, INT8, INT32, UINT8, TensorType
from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import run_graph
from retune.graph.graph import Graph, GraphBuilder
from retune.graph.passes.pipeline import optimise
from retune.graph.quantize.recipe import calibrated, qdq, quantize
from retune.graph.quantize.recipe import quantized as quantized_graph
from retune.graph.quantize.settings import POWER2, QuantizeSettings
from retune.ops import lookup
from tests.support.device_networks import Net
from tests.support.onnx_pairs import float_ops, inputs_of, last_scale, peer, quantized
from tests.support.quantize_networks import samples, upwards

SETTINGS = [QuantizeSettings(), QuantizeSettings(activations=INT8), POWER2]
LAYERS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 4, 5, 4), (6, 4, 4, 4), {"strides": (2, 2), "pads": (1,) * 4, "groups": 1}),
    ((2, 4, 5, 4), (6, 2, 3, 3), {"strides": (2, 3), "pads": (1, 0, 0, 2), "groups": 2}),
    ((1, 4, 5, 4), (4, 1, 3, 2), {"strides": (2, 2), "pads": (0, 1, -1, 0), "groups": 4}),
    ((1, 4, 5, 4), (3, 4, 3, 3), {"strides": (1, 2), "dilations": (2, 1), "groups": 1}),
    ((1, 2, 2, 3, 2), (3, 2, 2, 3, 2), {"strides": (2, 1, 2), "groups": 1}),
]


def layer(
    shape: tuple[int, ...], kernel: tuple[int, ...], attrs: dict[str, Any], zero: int
) -> tuple[Graph, np.ndarray, np.ndarray, dict[str, Any]]:
    """A transposed convolution of codes with that zero point, its data and its kernel."""
    rank = len(shape) - 2
    usual: dict[str, Any] = {
        "pads": (0,) * 2 * rank,
        "dilations": (1,) * rank,
        "layout": "NCDHW" if rank == 3 else "NCHW",
    }
    attrs = {**usual, **attrs}
    rng = np.random.default_rng(4)
    data = rng.integers(0, 256, shape).astype(np.uint8)
    weight = rng.integers(-127, 128, kernel).astype(np.int8)
    build = GraphBuilder("layer")
    inputs = build.input("x", TensorType(shape, UINT8)), build.constant("w", weight)
    made = build.add("conv_transpose", inputs, {**attrs, **({"border": zero} if zero else {})})
    return build.finish([made]), data, weight, attrs


@pytest.mark.parametrize("zero", [0, 131])
@pytest.mark.parametrize(("shape", "kernel", "attrs"), LAYERS)
def test_zeros_between_the_data_are_the_zero_point(shape, kernel, attrs, zero):
    """So that what it adds is the same everywhere; phases make up for the taps they do not have."""
    graph, data, weight, attrs = layer(shape, kernel, attrs, zero)
    (found,) = run_graph(graph, {"x": data}).values()
    floats = data.astype(np.float64) - zero, weight.astype(np.float64)
    (exact,) = lookup("conv_transpose").reference(floats, attrs)
    added = zero * weight.reshape(len(weight), -1).sum(axis=1, dtype=np.int64)
    expected = exact + added.reshape(-1, *[1] * (len(shape) - 2))
    np.testing.assert_array_equal(found, expected.astype(np.int32))
    for layout in ("NCHW", "NHWC"):
        (again,) = run_graph(optimise(graph, layout), {"x": data}).values()
        np.testing.assert_array_equal(again, found)


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_network_upwards_is_one_of_integers_and_close_to_the_float_network(settings):
    graph, data = upwards()
    made = quantize(graph, data, settings)
    heavy = [node for node in made.nodes if node.op in ("conv2d", "conv_transpose")]
    assert len(heavy) == 7
    assert {made.types[node.outputs[0]].dtype for node in heavy} == {INT32}
    one = {name: array[:1] for name, array in data.items()}
    expected, found = (run_graph(g, one)[graph.outputs[0]] for g in (graph, made))
    bound = 0.3 if settings.scheme == "power2" else 0.06
    np.testing.assert_allclose(found, expected, rtol=0, atol=bound * float(np.abs(expected).max()))
    for layout in ("NCHW", "NHWC"):
        again = run_graph(optimise(made, layout), one)[graph.outputs[0]]
        np.testing.assert_allclose(again, found, rtol=1e-6, atol=1e-6)


def test_codes_are_moved_and_not_sums():
    """What makes codes of sums is done for each phase, so that a kernel takes it in."""
    graph, data = upwards()
    made = optimise(quantize(graph, data, QuantizeSettings()), "NHWC")
    moved = [made.types[n.inputs[0]].dtype for n in made.nodes if n.op == "depth_to_space"]
    assert moved == [UINT8] * 5
    makers = {value: node for node in made.nodes for value in node.outputs}
    rescaled = [n for n in made.nodes if n.op == "requantize"]
    assert {makers[n.inputs[0]].op for n in rescaled} == {"add"}  # and never two


def small(groups: int = 1) -> onnx.ModelProto:
    """Up by a plain one, one in groups and one of a row."""
    n = Net("pairs of transposed ones")
    x = n("Relu", n.transposed(n("Relu", n.conv(n.input(1, 3, 6, 6), 3, 8)), 8, 12))
    x = n.transposed(x, 12, 8, (3, 3), group=groups)
    return n.model(n.transposed(n("Reshape", x, n.ints(1, 8, -1)), 8, 3, (4,)))


@pytest.mark.parametrize(
    "options",
    [
        {"per_channel": True},
        {"per_channel": False, "activation_type": QuantType.QInt8},
        {"per_channel": True, "weight_type": QuantType.QUInt8, "reduce_range": True},
    ],
    ids=["per channel", "signed", "unsigned weights"],
)
def test_a_network_that_onnxruntime_quantized_stays_in_integers(
    options: dict[str, Any], tmp_path: Path
) -> None:
    groups = 1 if options["per_channel"] else 2  # it has no scales by channel for biases of groups
    model = quantized(small(groups), tmp_path, **options)
    graph = import_model(model)
    heavy = [n for n in graph.nodes if n.op in ("conv2d", "conv_transpose")]
    assert [graph.types[n.outputs[0]].dtype for n in heavy] == [INT32] * 4
    assert [op for op in float_ops(graph) if op != "identity"] == [
        *("quotient", "round", "add", "clip"),
        *("cast", "multiply"),
    ]
    inputs = inputs_of(model, 9)
    found = run_graph(graph, inputs)[graph.outputs[0]]
    apart = np.abs(found - peer(model, inputs))
    assert apart.max() <= 2.001 * last_scale(model)  # steps of values on the way add up
    assert np.mean(apart > 0.001 * last_scale(model)) < 0.05
    np.testing.assert_array_equal(
        run_graph(optimise(graph, "NHWC"), inputs)[graph.outputs[0]], found
    )


def pairs_in_groups(groups: int) -> onnx.ModelProto:
    """A transposed convolution with a scale for each output channel of a group, as ONNX has it."""
    n = Net("groups", 13)
    rng = np.random.default_rng(2)

    def coded(value: str, scale: np.ndarray, zero: np.ndarray, axis: int) -> str:
        return n("DequantizeLinear", value, n.stored(scale), n.stored(zero), axis=axis)

    def pair(value: str, scale: float) -> str:
        given = np.asarray(scale, np.float32), np.asarray(100, np.uint8)
        codes = n("QuantizeLinear", value, *map(n.stored, given))
        return coded(codes, *given, 0)

    codes = n.stored(rng.integers(-127, 128, (8, 3, 4, 4)).astype(np.int8))
    scales = rng.uniform(0.001, 0.004, 3).astype(np.float32)
    weight = coded(codes, scales, np.zeros(3, np.int8), 1)
    x = pair(n.input(1, 8, 5, 6), 0.03)
    y = n("ConvTranspose", x, weight, strides=[2, 2], pads=[1, 1, 1, 1], group=groups)
    return n.model(pair(y, 0.02))


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_groups_share_the_scales_of_their_channels(groups: int) -> None:
    model = pairs_in_groups(groups)
    graph = import_model(model)
    (layer,) = (n for n in graph.nodes if n.op == "conv_transpose")
    assert graph.types[layer.outputs[0]].dtype == INT32
    inputs = inputs_of(model, 3)
    found = run_graph(graph, inputs)[graph.outputs[0]]
    assert np.abs(found - peer(model, inputs)).max() <= 1.001 * 0.02
    np.testing.assert_array_equal(
        run_graph(optimise(graph, "NHWC"), inputs)[graph.outputs[0]], found
    )


def test_scales_along_the_input_channels_leave_the_layer_in_floats(tmp_path: Path) -> None:
    """Sums of products with scales of their own are none of integers."""
    model = quantized(small(), tmp_path, per_channel=True)
    first = next(n for n in model.graph.node if n.op_type == "ConvTranspose")
    (stored,) = (n for n in model.graph.node if n.output[0] == first.input[1])
    known = {t.name: t for t in model.graph.initializer}
    channels = onnx.numpy_helper.to_array(known[stored.input[0]]).shape[0]
    for name, kind in zip(stored.input[1:], (np.float32, np.int8), strict=True):
        array = np.full(channels, 0.01 if kind is np.float32 else 0, kind)
        known[name].CopyFrom(onnx.numpy_helper.from_array(array, name))
    (axis,) = (a for a in stored.attribute if a.name == "axis")
    axis.i = 0
    graph = import_model(model)
    heavy = [n for n in graph.nodes if n.op in ("conv2d", "conv_transpose")]
    assert [graph.types[n.outputs[0]].dtype for n in heavy] == [INT32, FLOAT32, *[INT32] * 2]
    inputs = inputs_of(model, 9)
    found = run_graph(graph, inputs)[graph.outputs[0]]
    assert np.abs(found - peer(model, inputs)).max() <= 2.001 * last_scale(model)


@pytest.mark.parametrize("settings", SETTINGS)
def test_onnxruntime_computes_nearly_the_same_from_what_is_written(settings):
    """Six layers deep, each rounds otherwise by a step in a few places."""
    graph, data = upwards()
    recipe = calibrated(graph, data, settings)
    inputs = {name: array[:1] for name, array in samples(graph, 3).items()}
    name, step = graph.outputs[0], 1 / 16 if settings.scheme == "power2" else 1 / 127
    expected = peer(qdq(graph, recipe), inputs)
    assert (
        np.abs(run_graph(quantized_graph(graph, recipe), inputs)[name] - expected).max() <= 6 * step
    )
    assert np.mean(run_graph(quantized_graph(graph, recipe), inputs)[name] == expected) > 0.9


def test_what_is_written_has_the_scales_where_onnx_has_them():
    graph, data = upwards()
    model = qdq(graph, calibrated(graph, data, QuantizeSettings()))
    makers = {n.output[0]: n for n in model.graph.node}
    plain = [
        makers[n.input[1]]
        for n in model.graph.node
        if n.op_type == "ConvTranspose" and next(a.i for a in n.attribute if a.name == "group") == 1
    ]
    axes = [next(a.i for a in n.attribute if a.name == "axis") for n in plain]
    assert axes == [1] * 4

"""A quantized network computes with integers, and nearly what the float network computes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retune.core.dims import Size, dim_of
from retune.core.errors import InputError, ModelError, RecordError
from retune.core.target import GENERIC_CPU
from retune.frontend.onnx.importer import import_model, load_file
from retune.graph.evaluate import random_inputs, run_graph
from retune.graph.graph import Graph, GraphBuilder
from retune.graph.passes.pipeline import optimise
from retune.graph.quantize.annotate import annotate, means_over_sizes
from retune.graph.quantize.arithmetic import (
    QuantParams,
    common_point,
    fixed_point,
    rescaled,
    whole_weights,
)
from retune.graph.quantize.calibrate import calibrate, values_over
from retune.graph.quantize.fitting import fitted
from retune.graph.quantize.quality import layer_noise
from retune.graph.quantize.recipe import calibrated, quantize, quantized
from retune.graph.quantize.settings import POWER2, QuantizeSettings
from tests.support.device_networks import Net
from tests.support.networks import model, node, normal
from tests.support.quantize_networks import moving, residual, resizing, samples, squeezing

DIGITS = Path(__file__).parents[2] / "data" / "digits"
METHODS = ("minmax", "percentile", "kl", "mse", "global_scale")


@pytest.mark.parametrize("activations", ["uint8", "int8"])
@pytest.mark.parametrize("weights", ["channel", "tensor"])
@pytest.mark.parametrize("method", METHODS)
def test_a_quantized_network_is_close_to_the_float_network(method, weights, activations):
    graph, data = residual()
    settings = QuantizeSettings(method=method, weights=weights, activations=activations)
    made = quantize(graph, data, settings)
    assert made.inputs == graph.inputs
    assert made.outputs == graph.outputs
    heavy = [node for node in made.nodes if "conv2d" in node.op or node.op == "dense"]
    assert {made.types[node.outputs[0]].dtype for node in heavy} == {"int32"}
    one = {name: array[:1] for name, array in data.items()}
    expected, found = (run_graph(g, one)[graph.outputs[0]] for g in (graph, made))
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.05 * float(np.abs(expected).max()))


def test_the_recipe_of_another_network_is_refused_by_what_it_lacks():
    graph, data = residual()
    recipe = calibrated(graph, data, QuantizeSettings())
    with pytest.raises(
        RecordError, match="of another network or of another version: quantize again"
    ):
        quantized(resizing()[0], recipe)


def test_weights_of_seven_bits_have_a_type_that_instructions_can_ask_for():
    graph, data = residual()
    made = optimise(quantize(graph, data, QuantizeSettings(weight_bits=7)), "NHWC")
    weights = [n.inputs[1] for n in made.nodes if n.op in ("conv2d", "dense")]
    assert {made.types[weight].dtype for weight in weights} == {"int7"}
    assert max(np.abs(made.constants[weight]).max() for weight in weights) == 63


@pytest.mark.parametrize(
    ("instructions", "bits"),
    [(("dot4.avx2_narrow", "dot4.avx2"), 7), (("dot4.avx2",), 8), (("dot4.vnni",), 8), ((), 8)],
)
def test_bits_of_weights_are_those_that_a_device_is_faster_with(instructions, bits):
    spec = replace(GENERIC_CPU, vector_bits=256, instructions=instructions)
    assert fitted(QuantizeSettings(), spec).weight_bits == bits
    assert fitted(QuantizeSettings(weight_bits=8), spec).weight_bits == 8
    assert fitted(QuantizeSettings(activations="int8"), spec).weight_bits == 8


@pytest.mark.parametrize(
    ("instructions", "made"),
    [
        (("dot4.sdot",), "int8"),
        (("dot4.usdot", "dot4.sdot"), "uint8"),
        (("dot4.packed",), "uint8"),
        ((), "uint8"),
    ],
)
def test_activations_are_of_the_type_that_a_device_has_an_instruction_for(instructions, made):
    spec = replace(GENERIC_CPU, vector_bits=128, instructions=instructions)
    assert fitted(QuantizeSettings(), spec).activations == made
    assert fitted(QuantizeSettings(activations="uint8"), spec).activations == "uint8"
    assert fitted(POWER2, spec).activations == "int8"


def test_shifts_alone_rescale_where_all_scales_are_powers_of_two():
    graph, data = residual()
    made = quantize(graph, data, replace(POWER2, method="minmax"))
    rescaled = [node for node in made.nodes if node.op == "requantize"]
    assert rescaled
    assert {len(node.inputs) for node in rescaled} == {3}


def test_residual_sums_and_concatenations_stay_in_integers():
    graph, data = residual()
    made = quantize(graph, data, QuantizeSettings())
    (concat,) = (node for node in made.nodes if node.op == "concat")
    assert made.types[concat.outputs[0]].dtype == "uint8"
    floats = [n.op for n in made.nodes if made.types[n.outputs[0]].dtype == "float32"]
    assert floats.count("quotient") == 1
    assert "max_pool2d" not in floats


@pytest.mark.parametrize("keepdims", [0, 1])
def test_means_stay_in_integers_however_they_are_written(keepdims):
    n = Net("means")
    x = n("ReduceMean", n.conv(n.input(1, 3, 8, 8), 3, 16), axes=[2, 3], keepdims=keepdims)
    y = n("Gemm", n("Flatten", x), n.weight(10, 16), n.weight(10), transB=1)
    graph = import_model(n.model(y))
    data = samples(graph)
    made = quantize(graph, data, QuantizeSettings())
    assert [made.types[n.outputs[0]].dtype for n in made.nodes if n.op == "reduce_sum"] == ["int32"]
    one = {name: array[:1] for name, array in data.items()}
    expected, found = (run_graph(g, one)[y] for g in (graph, made))
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.05 * float(np.abs(expected).max()))


@pytest.mark.parametrize("counted", [0, 1])
@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 1, 1, 1]])
def test_windows_products_and_sums_by_channel_stay_in_integers(counted, pads):
    n = Net("norms")
    x = n.conv(n.input(1, 3, 12, 12), 3, 16)
    x = n("AveragePool", x, kernel_shape=[3, 3], pads=pads, count_include_pad=counted)
    x = n("Relu", n("Add", n("Mul", x, n.weight(16, 1, 1)), n.weight(16, 1, 1)))
    y = n.conv(x, 16, 8)
    graph = import_model(n.model(y))
    data = samples(graph)
    made = quantize(graph, data, QuantizeSettings())
    floats = [n.op for n in made.nodes if made.types[n.outputs[0]].dtype == "float32"]
    assert floats.count("quotient") == 1
    assert not {"avg_pool2d", "relu"} & set(floats)
    one = {name: array[:1] for name, array in data.items()}
    expected, found = (run_graph(g, one)[y] for g in (graph, made))
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.05 * float(np.abs(expected).max()))


@pytest.mark.parametrize("counted", [0, 1])
def test_one_recipe_quantizes_a_network_of_every_size(counted):
    """Means whose numbers of elements depend on sizes stay in floats, all others in integers."""
    n = Net("sizes")
    x = n.conv(n.input("n", 3, "h", "w"), 3, 16)
    x = n("AveragePool", x, kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=counted)
    gate = n("Sigmoid", n.conv(n("GlobalAveragePool", x), 16, 16, (1, 1)))
    x = n("GlobalAveragePool", n.conv(n("Mul", x, gate), 16, 16))
    y = n("Gemm", n("Flatten", x), n.weight(10, 16), n.weight(10), transB=1)
    model = n.model(y)
    open_axes = {name: (dim_of(Size(name, 2, 16)),) for name in "nhw"}
    graph = import_model(model, open_axes)
    fixed = graph.at({"n": 4, "h": 12, "w": 10})
    means = means_over_sizes(optimise(graph, "NCHW", whole=True))
    settings = QuantizeSettings(skip=means)
    made = quantized(graph, calibrated(fixed, samples(fixed), settings))
    assert counted == ("avg_pool2d" not in {node.op for node in made.nodes})
    assert [node.op for node in made.nodes].count("global_avg_pool") == 2
    for sizes in ({"n": 4, "h": 12, "w": 10}, {"n": 2, "h": 5, "w": 16}):
        data = random_inputs(graph.at(sizes), 3)
        expected, found = (run_graph(g.at(sizes), data)[y] for g in (graph, made))
        spread = float(np.abs(expected).max())
        np.testing.assert_allclose(found, expected, rtol=0, atol=0.05 * spread)


@pytest.mark.parametrize("settings", [QuantizeSettings(), QuantizeSettings(activations="int8")])
def test_channels_with_small_factors_lose_no_bits_beside_those_with_large_ones(settings):
    """A norm that follows no layer: what is rescaled is a code, and no sum with bits to spare."""
    n = Net("factors")
    x = n("Reshape", n("Relu", n.conv(n.input(1, 3, 8, 8), 3, 8)), n.ints(1, 8, 16, 4))
    factor = np.exp2(-np.arange(8) / 1.3).astype(np.float32).reshape(8, 1, 1)
    y = n("Add", n("Mul", x, n.stored(factor)), n.weight(8, 1, 1))
    graph = import_model(n.model(n.conv(y, 8, 4)))
    data = samples(graph)
    made = quantize(graph, data, settings)
    first, second = (node.outputs[0] for node in made.nodes if node.op == "requantize")
    seen = {
        v: a.astype(np.float64)
        for v, a in values_over(made, (first, second), [{k: a[:1] for k, a in data.items()}])
    }
    by = seen[second].reshape(8, -1), seen[first].reshape(8, -1)
    for channel, (found, codes) in enumerate(zip(*by, strict=True)):
        slope, rest = np.polyfit(codes, found, 1)
        assert np.abs(found - slope * codes - rest).max() < 0.6, channel  # as rounding alone has it


@pytest.mark.parametrize(
    "settings", [QuantizeSettings(), QuantizeSettings(activations="int8"), POWER2]
)
def test_activations_and_gates_stay_in_integers(settings):
    """In networks like MobileNetV3 and EfficientNet floats only code the input and are scores."""
    graph, data = squeezing()
    made = quantize(graph, data, settings)
    floats = [n.op for n in made.nodes if made.types[n.outputs[0]].dtype == "float32"]
    quantization, scores = ["quotient", "round", "add", "clip"], ["cast", "multiply", "identity"]
    assert floats == [*quantization, *scores]
    assert sum(n.op == "lookup_codes" for n in made.nodes) == 9
    one = {name: array[:1] for name, array in data.items()}
    expected, found = (run_graph(g, one)[graph.outputs[0]] for g in (graph, made))
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.05 * float(np.abs(expected).max()))


@pytest.mark.parametrize(
    ("network", "ops"),
    [
        (moving, {"repeat", "extend", "pad", "slice", "max_pool2d"}),
        (resizing, {"resample", "depth_to_space"}),
    ],
)
@pytest.mark.parametrize("settings", [QuantizeSettings(), POWER2])
def test_moves_and_resizing_stay_in_integers(network, ops, settings):
    graph, data = network()
    made = quantize(graph, data, settings)
    floats = [n.op for n in made.nodes if made.types[n.outputs[0]].dtype == "float32"]
    quantization, scores = ["quotient", "round", "add", "clip"], ["cast", "multiply", "identity"]
    assert floats == [*quantization, *scores]
    assert ops <= {n.op for n in made.nodes}
    one = {name: array[:1] for name, array in data.items()}
    expected, found = (run_graph(g, one)[graph.outputs[0]] for g in (graph, made))
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.05 * float(np.abs(expected).max()))


@pytest.mark.parametrize("shape", [(1, 8, 1, 1), (8,), (8, 1), (1, 8, 8, 8), ()])
def test_only_a_sum_by_channel_is_a_bias(shape: tuple[int, ...]):
    """Also one whose numbers are as many as channels, along another axis."""
    n = Net("sums")
    shift = n.stored(np.random.default_rng(3).standard_normal(shape).astype(np.float32))
    x = n("Add", n("Conv", n.input(1, 4, 8, 8), n.weight(8, 4, 3, 3), pads=[1, 1, 1, 1]), shift)
    graph = import_model(n.model(n.conv(n("Relu", x), 8, 8)))
    data = samples(graph)
    made = quantize(graph, data, QuantizeSettings())
    first = {name: array[:1] for name, array in data.items()}
    (found,), (wanted,) = run_graph(made, first).values(), run_graph(graph, first).values()
    assert np.abs(found - wanted).max() < 0.05 * np.abs(wanted).max()
    whole = {made.types[node.outputs[0]].dtype for node in made.nodes if node.op == "conv2d"}
    assert whole == {"int32"}


def test_weights_of_resizing_are_whole_or_none():
    found = whole_weights([np.asarray([[0.25, 0.75]]), np.asarray([[0.125, 0.875]])])
    assert found is not None
    whole, shift = found
    assert [array.tolist() for array in whole] == [[[1, 3]], [[1, 7]]]
    assert shift == 5
    assert whole_weights([np.asarray([[1 / 3, 2 / 3]], np.float32)]) is None


def test_moves_share_a_scale():
    graph, _ = residual()
    graph = optimise(graph, "NCHW")
    scales = annotate(graph, QuantizeSettings()).scales
    (concat,) = (node for node in graph.nodes if node.op == "concat")
    assert len({scales[value] for value in (*concat.inputs, *concat.outputs)}) == 1


@pytest.mark.parametrize(
    "settings", [QuantizeSettings(skip_conv_layers=(0,)), QuantizeSettings(skip=("dense",))]
)
def test_skipped_layers_stay_in_floats(settings):
    graph, data = residual()
    made = quantize(graph, data, settings)
    heavy = [made.types[n.outputs[0]].dtype for n in made.nodes if n.op in ("conv2d", "dense")]
    assert heavy.count("float32") == 1


def folded() -> tuple[Graph, dict[str, np.ndarray]]:
    """Conv, norm and ReLU, which become one layer; then a second convolution."""
    rng = np.random.default_rng(0)
    norm = dict.fromkeys("abcd", np.ones(4, np.float32))
    nodes = [
        node("Conv", ["x", "v"], ["conv"]),
        node("BatchNormalization", ["conv", *norm], ["norm"]),
        node("Relu", ["norm"], ["relu"]),
        node("Conv", ["relu", "w"], ["y"]),
    ]
    weights = {"v": normal(rng, 4, 3, 1, 1), "w": normal(rng, 4, 4, 1, 1), **norm}
    made = model(nodes, {"x": [1, 3, 4, 4]}, weights=weights)
    return import_model(made), {"x": normal(rng, 8, 3, 4, 4)}


def integer_layers(graph: Graph) -> list[bool]:
    heavy = [n for n in graph.nodes if n.op == "conv2d"]
    return [graph.types[n.outputs[0]].dtype != "float32" for n in heavy]


def test_a_layer_is_skipped_by_any_value_of_it():
    graph, data = folded()
    assert integer_layers(quantize(graph, data, QuantizeSettings())) == [True, True]
    for name in ("norm", "relu"):
        made = quantize(graph, data, QuantizeSettings(skip=(name,)))
        assert integer_layers(made) == [False, True], name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("conv", r"got conv; merged with others .*: conv \(now part of 'norm'\); close"),
        ("batch_norm", r"batch_norm \(now part of 'norm'\)"),
        ("relu_op", "got relu_op; close names: relu"),
        ("add", "each add is computed by the layer that it follows; name those .* as 'conv.mul"),
    ],
)
def test_what_was_merged_is_not_skipped_in_silence(name: str, message: str):
    graph, data = folded()
    for ask in (quantize, lambda *given: layer_noise(given[0], data, *given[1:])):
        with pytest.raises(InputError, match=message):
            ask(graph, data, QuantizeSettings(skip=(name,)))


def test_a_cut_range_is_within_the_whole_range():
    graph, data = residual()
    graph = optimise(graph, "NCHW")
    scales = annotate(graph, QuantizeSettings()).scales
    whole = calibrate(graph, scales, data, QuantizeSettings())
    for method in ("percentile", "kl", "mse"):
        found = calibrate(graph, scales, data, QuantizeSettings(method=method))
        for value, entry in found.items():
            assert whole[value].low <= entry.low <= 0 <= entry.high <= whole[value].high


@pytest.mark.parametrize("factor", [0.3, 1 / 3, 2.0**-7, 1.7, 3e-5, 300.0])
@pytest.mark.parametrize("zero", [0, 3])
def test_rescaling_is_the_product_to_fifteen_bits(factor, zero):
    codes = QuantParams(scale=1.0, zero=zero, dtype="uint8")
    reach = 2**31 - 1
    total = np.unique(np.rint(np.linspace(-300 / factor, 300 / factor, 4001))).astype(np.int32)
    total = np.concatenate([total, np.asarray([-reach - 1, -reach, reach - 1, reach], np.int32)])
    build = GraphBuilder("one")
    build.constant("x", total)
    y = rescaled(build, "x", np.asarray(factor), codes, codes.limits)
    found = run_graph(build.finish([y]), {})[y]
    exact = np.clip(total * factor + zero, 0, 255)
    assert np.abs(found - exact).max() <= 0.5 + 2**-6


def test_sums_of_which_one_is_beyond_all_codes_are_rescaled_to_the_limits():
    """As where what was nearly the same number in all samples has codes: no reason to refuse it."""
    build, codes = GraphBuilder("one"), QuantParams(scale=1.0, zero=7, dtype="uint8")
    x = build.constant("x", np.asarray([-(2**30), -1, 0, 1, 2**30], np.int32))
    y = rescaled(build, x, np.asarray(1e9), codes, codes.limits)
    (found,) = run_graph(build.finish([y]), {}).values()
    assert found.tolist() == [0, 0, 7, 255, 255]
    with pytest.raises(ModelError, match="expected less than 2"):
        rescaled(build, x, np.asarray(1e9), codes, codes.limits, bias=-1.0)


def test_a_factor_with_a_sign_does_not_say_that_it_has_none():
    codes = QuantParams(scale=1.0, zero=3, dtype="int8")
    total = np.arange(-900, 900, dtype=np.int32)
    for factors, bits in (([0.3], 15), ([-0.3], None)):
        build = GraphBuilder("one")
        build.constant("x", total)
        y = rescaled(build, "x", np.asarray(factors), codes, codes.limits)
        made = build.finish([y])
        assert made.nodes[-1].attrs.get("bits") == bits
        exact = np.clip(total * factors[0] + 3, -128, 127)
        assert np.abs(run_graph(made, {})[y] - exact).max() <= 0.5 + 2**-6


@pytest.mark.parametrize("below", [0, 1, 2, 3, 2**20])
@pytest.mark.parametrize("exponent", [-31, -7, 0, 1, 14])
def test_factors_just_below_a_power_of_two_round_to_fifteen_bits(exponent, below):
    factor = np.ldexp(1 - below * 2.0**-17, exponent)
    if below == 2**20:
        factor = np.ldexp(2 / 3, exponent)
    found = fixed_point(np.asarray([factor, factor / 3]))
    assert found.multiplier is not None
    assert found.multiplier.max() < 2**15
    exact = np.ldexp(found.multiplier.astype(float), -(found.pre + found.shift))
    np.testing.assert_allclose(exact[0], factor, rtol=2**-15)
    for others in ([], [factor * 2.0**-16], [factor / 3]):
        multipliers, shift = common_point([factor, *others])
        assert max(multipliers) < 2**15
        near = np.ldexp(np.asarray(multipliers, float), -shift)
        limit = sum([factor, *others]) * 2**-15 + 2.0**-22
        np.testing.assert_allclose(near, [factor, *others], rtol=0, atol=limit)


def test_factors_of_channels_each_have_fifteen_bits():
    factors = np.asarray([1e-6, 3e-4, 0.011, 0.3])
    found = fixed_point(factors)
    assert found.multiplier is not None
    exact = np.ldexp(found.multiplier.astype(float), -(found.pre + found.shift))
    np.testing.assert_allclose(exact, factors, rtol=2**-15)
    assert found.multiplier.min() >= 2**14
    assert found.multiplier.max() < 2**15


def test_powers_of_two_need_no_multiplier():
    found = fixed_point(np.asarray([2.0**-9, 2.0**-12]))
    assert found.multiplier is None
    assert [int(p) + found.shift for p in found.pre] == [9, 12]
    (one, two), shift = common_point([2.0**-9, 2.0**-7])
    assert (one, two, shift) == (1, 4, 9)


@pytest.mark.parametrize(
    "wrong",
    [
        {"method": "guess"},
        {"scheme": "power2"},
        {"global_scale": 0.0},
        {"percentile": 1.5},
        {"skip_conv_layers": (-1,)},
    ],
)
def test_settings_say_what_does_not_go_together(wrong):
    with pytest.raises(InputError):
        QuantizeSettings(**wrong)


def test_calibration_needs_samples_of_each_input():
    graph, _ = residual()
    with pytest.raises(InputError, match="has no samples"):
        quantize(graph, {}, QuantizeSettings())
    with pytest.raises(InputError, match="at least"):
        quantize(graph, samples(graph, 0), QuantizeSettings())


@pytest.mark.parametrize(
    ("settings", "lost"),
    [
        (QuantizeSettings(), 0.005),
        (QuantizeSettings(weight_bits=7), 0.005),
        (POWER2, 0.02),
        *((QuantizeSettings(method=method), 0.02) for method in METHODS[1:4]),
    ],
)
def test_handwritten_digits_are_still_read(settings, lost):
    """Against the float network, on the third of the images that it was not trained on."""
    with np.load(DIGITS / "digits.npz") as stored:
        images, digits = stored["images"].astype(np.float32) / 16, stored["digits"]
    count = 2 * len(images) // 3
    known, new, answers = images[:count], images[count:], digits[count:]
    graph = load_file(DIGITS / "digits.onnx", {"image": new.shape})
    made = quantize(graph, {"image": known[: len(new)]}, settings)
    accuracy = [
        float(np.mean(run_graph(g, {"image": new})["scores"].argmax(axis=1) == answers))
        for g in (graph, made)
    ]
    assert accuracy[0] > 0.97
    assert accuracy[1] >= accuracy[0] - lost

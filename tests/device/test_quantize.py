"""A quantized network's bundle computes exactly the integers that numpy computes."""

from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import QuantType

from retune.core.dtypes import INT8, INT32, UINT8, DType, TensorType
from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import run_graph
from retune.graph.graph import Graph, GraphBuilder
from retune.graph.passes.pipeline import Layout
from retune.graph.quantize.arithmetic import QuantParams, added, rescaled
from retune.graph.quantize.recipe import quantize
from retune.graph.quantize.settings import POWER2, QuantizeSettings
from tests.external.on_device import compile_graph
from tests.support.bytewise import dynamically
from tests.support.onnx_pairs import inputs_of, peer, quantized, small
from tests.support.onnx_qoperator import OPERATORS, WAYS, codes, lines, without_floats
from tests.support.quantize_networks import (
    Samples,
    integer_ends,
    moving,
    residual,
    resizing,
    samples,
    squeezing,
    upwards,
)
from tests.support.sampling import one_of_each

pytestmark = pytest.mark.device


def test_ranges_that_are_found_while_it_runs_multiply_by_instructions(tmp_path: Path) -> None:
    """A network as onnxruntime's dynamic quantizer writes it."""
    model = dynamically(tmp_path, weight_type=QuantType.QInt8, reduce_range=True)
    module, inputs = compile_graph(import_model(model)), inputs_of(model, 9)
    if module.device.spec.instructions:
        assert "dot4_u" in module.plan.text
    (found,) = module.run(inputs).values()
    np.testing.assert_allclose(found, peer(model, inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("way", "network"),
    [
        ("per channel", lines),
        ("signed", small),
        pytest.param("per channel", small, marks=pytest.mark.slow),
        pytest.param("signed", lines, marks=pytest.mark.slow),
    ],
)
def test_networks_of_operators_are_exact_from_codes_to_codes(
    network: Callable[[], onnx.ModelProto], way: str, tmp_path: Path
) -> None:
    """Signed codes too go by the instructions for unsigned ones, which more devices have.

    Those of layers with few channels do where the vectors are long enough.
    """
    graph = import_model(without_floats(quantized(network(), tmp_path, **(OPERATORS | WAYS[way]))))
    module, entry = compile_graph(graph), graph.types[graph.inputs[0]]
    spec = module.device.spec
    if spec.instructions and (network is small or spec.vector_lanes() >= 16):
        assert "dot4_u" in module.plan.text
    inputs = {graph.inputs[0]: codes(*entry.shape, dtype=entry.dtype)}
    for name, array in run_graph(graph, inputs).items():
        np.testing.assert_array_equal(module.run(inputs)[name], array)


SETTINGS = {
    "int8": QuantizeSettings(),
    "7 bits": QuantizeSettings(weight_bits=7),
    "signed": QuantizeSettings(activations="int8"),
    "power2": POWER2,
}
LAYOUTS: tuple[Layout, ...] = ("NHWC", "NCHW")
GRAPHS = {made.__name__: made for made in (residual, squeezing, moving, resizing)}


@pytest.mark.parametrize(
    ("settings", "case"), one_of_each(SETTINGS, tuple(product(GRAPHS, LAYOUTS)))
)
def test_bundles_are_exact(settings: str, case: tuple[str, Layout]) -> None:
    name, layout = case
    check_exact(*GRAPHS[name](), SETTINGS[settings], layout)


@pytest.mark.parametrize("settings", [QuantizeSettings(), POWER2])
def test_transposed_convolutions_are_exact(settings: QuantizeSettings) -> None:
    check_exact(*upwards(), settings, "NHWC")


def test_transposed_convolutions_multiply_by_instructions() -> None:
    graph, data = upwards()
    module = compile_graph(integer_ends(quantize(graph, data, QuantizeSettings())))
    if module.device.spec.instructions:  # five of the layers have sums over channels
        assert sum("dot4" in kernel.text for kernel in module.plan.kernels) >= 5


@pytest.mark.parametrize("factors", [[0.01], [3e-5, 0.011, 0.3, 0.9999999, 1.7]])
@pytest.mark.parametrize("dtype", [UINT8, INT8])
def test_sums_of_all_sizes_become_the_codes_of_numpy(dtype: DType, factors: list[float]) -> None:
    """Extremes, halves between codes, and what the limits of 16 and of eight bits cut off."""
    zero, channels = (128 if dtype == UINT8 else -3), 32
    scale = np.resize(factors, channels if len(factors) > 1 else 1)
    own = QuantParams(scale=1.0, zero=zero, dtype=dtype)
    other = QuantParams(scale=0.7, zero=5, dtype=UINT8)
    build = GraphBuilder("rescaling")
    total = build.input("total", TensorType((1, 600, channels), INT32))
    data = build.input("data", TensorType((1, 600, channels), UINT8))
    codes = rescaled(build, total, scale, own, own.limits, np.linspace(-30, 30, len(scale)))
    out = QuantParams(scale=1.3, zero=zero, dtype=dtype)
    made = build.finish([codes, added(build, [(codes, own), (data, other)], out, out.limits)])
    rng = np.random.default_rng(3)
    edges = (np.arange(-300, 300)[:, None] + 0.5) / np.resize(scale, channels)
    sums = np.rint(edges) + rng.integers(-1, 2, edges.shape)
    sums[::7] = rng.integers(-(2**31), 2**31, sums[::7].shape)
    sums[0], sums[1] = -(2**31), 2**31 - 1
    inputs = {
        total: np.clip(sums, -(2**31), 2**31 - 1).astype(np.int32)[None],
        data: rng.integers(0, 256, (1, *sums.shape), np.uint8),
    }
    found = compile_graph(made).run(inputs)
    for name, array in run_graph(made, inputs).items():
        np.testing.assert_array_equal(found[name], array)


def check_exact(graph: Graph, data: Samples, settings: QuantizeSettings, layout: Layout) -> None:
    """The integers of the quantized network, as far as there are any, on PoCL."""
    made = integer_ends(quantize(graph, data, settings))
    inputs = {name: array[:1] for name, array in samples(graph, 2).items()}
    found = compile_graph(made, layout).run(inputs)
    expected = run_graph(made, inputs)
    assert expected
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)

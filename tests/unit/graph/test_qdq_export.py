"""Quantized networks as files of pairs: onnxruntime computes from them what we compute."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from retune.core.dtypes import TensorType
from retune.core.errors import ModelError
from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import run_graph
from retune.graph.graph import Graph, GraphBuilder
from retune.graph.onnx_nodes import NodeWriter, write_node
from retune.graph.quantize.recipe import calibrated, qdq, quantized
from retune.graph.quantize.settings import POWER2, QuantizeSettings
from tests.support.device_networks import Net
from tests.support.onnx_pairs import peer
from tests.support.peer import peer_outputs
from tests.support.quantize_networks import (
    Samples,
    moving,
    residual,
    samples,
    squeezing,
    upwards,
)

Network = Callable[[], tuple[Graph, Samples]]
SETTINGS = [
    QuantizeSettings(),
    QuantizeSettings(weight_bits=7, weights="tensor"),
    QuantizeSettings(activations="int8", skip_conv_layers=(1,)),
    POWER2,
]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("network", [residual, squeezing, moving])
def test_onnxruntime_computes_the_same(network: Network, settings: QuantizeSettings) -> None:
    graph, data = network()
    recipe = calibrated(graph, data, settings)
    made, ours = qdq(graph, recipe), quantized(graph, recipe)
    onnx.checker.check_model(made, full_check=True)
    assert [v.name for v in made.graph.output] == list(graph.outputs)
    inputs = {name: array[:1] for name, array in samples(graph, 3).items()}
    found, expected = run_graph(ours, inputs), peer(made, inputs)
    scores = graph.outputs[0]
    assert np.abs(found[scores] - expected).max() <= 0.02 * np.abs(expected).max()


def pooling() -> tuple[Graph, Samples]:
    """What onnxruntime has operators on integers for, and makes of pairs around them."""
    n = Net("pooling")
    x = n("LeakyRelu", n.conv(n.input(1, 3, 12, 12), 3, 8), alpha=0.1)
    y = n("AveragePool", n("Sigmoid", x), kernel_shape=[2, 2], strides=[2, 2])
    z = n("Mul", n("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), y)
    z = n("Flatten", n("GlobalAveragePool", n.conv(n("Concat", z, y, axis=1), 16, 8)))
    graph = import_model(n.model(n("Gemm", z, n.weight(10, 8), n.weight(10), transB=1)))
    return graph, samples(graph)


@pytest.mark.parametrize("network", [residual, squeezing, moving, pooling, upwards])
def test_onnxruntime_takes_it_with_all_its_optimisations(network: Network) -> None:
    """It wants scales of one number to have no dimension."""
    graph, data = network()
    made = qdq(graph, calibrated(graph, data, QuantizeSettings()))
    shapes = {t.name: tuple(t.dims) for t in made.graph.initializer}
    pairs = [n for n in made.graph.node if n.op_type == "QuantizeLinear"]
    assert {shapes[name] for n in pairs for name in n.input[1:]} == {()}
    inputs = {name: array[:1] for name, array in samples(graph, 3).items()}
    scores = graph.outputs[0]
    found, expected = peer_outputs(made, inputs)[scores], run_graph(graph, inputs)[scores]
    assert np.abs(found - expected).max() <= 0.1 * np.abs(expected).max()


@pytest.mark.parametrize("network", [residual, squeezing, moving, upwards])
def test_what_was_written_is_read_as_the_same_integers(network: Network) -> None:
    graph, data = network()
    recipe = calibrated(graph, data, QuantizeSettings())
    ours, again = quantized(graph, recipe), import_model(qdq(graph, recipe))
    inputs = {name: array[:1] for name, array in samples(graph, 3).items()}
    for name, array in run_graph(ours, inputs).items():
        np.testing.assert_allclose(run_graph(again, inputs)[name], array, rtol=1e-5, atol=1e-6)
    for kind in ("int32", "uint8"):
        one, two = (
            sum(g.types[n.outputs[0]].dtype == kind for n in g.nodes) for g in (ours, again)
        )
        assert one == two


def test_ops_without_a_form_are_refused_by_name() -> None:
    build = GraphBuilder("net")
    graph = build.finish([build.add("gelu", [build.input("x", TensorType((2, 3)))])])
    with pytest.raises(ModelError, match="'gelu' has no form in ONNX here; expected one of abs, "):
        write_node(graph.nodes[0], ["x"], "y", NodeWriter(graph))

"""Biases make up for what rounding adds on average."""

from dataclasses import replace

import numpy as np
import pytest

from retune.core.schema import from_json, to_json
from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import run_graph
from retune.graph.graph import Graph, without_dead
from retune.graph.passes.pipeline import optimise
from retune.graph.quantize.recipe import Recipe, calibrated, qdq, quantized
from retune.graph.quantize.settings import QuantizeSettings
from tests.support.device_networks import Net
from tests.support.onnx_pairs import peer
from tests.support.quantize_networks import Samples, residual, samples, squeezing

COARSE = QuantizeSettings(weight_bits=7, weights="tensor", bias_correction=False)
CORRECTED = replace(COARSE, bias_correction=True)


def bare() -> tuple[Graph, Samples]:
    """Layers without biases."""
    n = Net("bare")
    x = n("Relu", n("Conv", n.input(1, 3, 8, 8), n.weight(16, 3, 3, 3)))
    x = n("Flatten", n("Relu", n("Conv", x, n.weight(8, 16, 3, 3))))
    graph = import_model(n.model(n("Gemm", x, n.weight(10, 128), transB=1)))
    return graph, samples(graph)


@pytest.mark.parametrize("network", [bare, residual, squeezing])
def test_the_mean_error_of_the_scores_vanishes(network):
    """The last layer's, over the samples: it is corrected after all layers before it."""
    graph, data = network()
    scores = graph.outputs[0]

    def errors(settings: QuantizeSettings) -> np.ndarray:
        made = quantized(graph, calibrated(graph, data, settings))
        found = []
        for i in range(len(next(iter(data.values())))):
            one = {name: array[i : i + 1] for name, array in data.items()}
            found.append(run_graph(made, one)[scores] - run_graph(graph, one)[scores])
        return np.mean(found, axis=0)

    before, after = np.abs(errors(COARSE)).max(), np.abs(errors(CORRECTED)).max()
    assert after < 0.01 * before


@pytest.mark.parametrize(("network", "layers"), [(bare, 3), (residual, 6), (squeezing, 13)])
def test_each_layer_has_a_number_for_each_channel(network, layers):
    graph, data = network()
    recipe = calibrated(graph, data, CORRECTED)
    assert len(recipe.corrections) == layers
    types = optimise(graph, "NCHW").types
    for name, numbers in recipe.corrections:
        assert len(numbers) == types[name].shape[1]


def test_the_same_recipe_makes_the_same_integers_again():
    graph, data = residual()
    recipe = calibrated(graph, data, CORRECTED)
    again = from_json(Recipe, to_json(recipe))
    assert again == recipe
    one, two = quantized(graph, recipe), quantized(graph, again)
    for name, array in one.constants.items():
        np.testing.assert_array_equal(array, two.constants[name])
    assert without_dead(one).nodes == without_dead(two).nodes


@pytest.mark.parametrize("network", [bare, residual])
def test_files_for_other_programs_are_corrected_too(network):
    graph, data = network()
    recipe = calibrated(graph, data, CORRECTED)
    inputs = {name: array[:1] for name, array in samples(graph, 3).items()}
    expected, scores = peer(qdq(graph, recipe), inputs), graph.outputs[0]
    found = run_graph(quantized(graph, recipe), inputs)[scores]
    assert np.abs(found - expected).max() <= 0.02 * np.abs(expected).max()

"""A quantized network's bundle computes exactly the integers that numpy computes."""

import numpy as np
import pytest

from retune.graph.evaluate import run_graph
from retune.graph.graph import Graph
from retune.graph.passes import Layout
from retune.graph.quantize.recipe import quantize
from retune.graph.quantize.settings import POWER2, QuantizeSettings
from tests.external.on_device import compile_graph
from tests.unit.graph.quantize_networks import (
    Samples,
    integer_ends,
    moving,
    residual,
    resizing,
    samples,
    squeezing,
)

pytestmark = pytest.mark.device


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize(
    "settings",
    [
        QuantizeSettings(),
        QuantizeSettings(weight_bits=7),
        QuantizeSettings(activations="int8"),
        POWER2,
    ],
)
def test_bundles_are_exact(settings: QuantizeSettings, layout: Layout) -> None:
    for graph, data in (residual(), squeezing(), moving(), resizing()):
        check_exact(graph, data, settings, layout)


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

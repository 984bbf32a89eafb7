"""Networks whose values are far from each other, from one, or no numbers: quantized all the same,
or refused by name."""

from collections.abc import Callable

import numpy as np
import pytest

from retune.core.errors import InputError
from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import run_graph
from retune.graph.graph import Graph
from retune.graph.quantize.recipe import quantize
from retune.graph.quantize.settings import POWER2, QuantizeSettings
from tests.support.device_networks import Net
from tests.support.networks import normal
from tests.support.quantize_networks import samples

METHODS = ("minmax", "percentile", "kl", "mse")


def number(n: Net, value: float) -> str:
    """A constant of one element."""
    return n.stored(np.asarray(value, np.float32))


def apart() -> Graph:
    """A sum that is cut off at a part in 10**8 of its terms, and a layer of it."""
    n = Net("apart")
    x = n.input(1, 4, 8, 8)
    one = n("Conv", x, n.stored(np.float32(1e5) * normal(n.rng, 4, 4, 1, 1)))
    two = n(
        "Conv", n("Relu", n.conv(x, 4, 4)), n.stored(np.float32(1e5) * normal(n.rng, 4, 4, 1, 1))
    )
    total = n("Clip", n("Add", one, two), number(n, 0), number(n, 1e-3))
    return import_model(n.model(n.conv(total, 4, 4)))


def shifted() -> Graph:
    """A product with a large number, less another, which leave little of each other."""
    n = Net("shifted")
    x = n("Sigmoid", n.conv(n.input(1, 4, 8, 8), 4, 4))
    far = (n.stored(np.full((1, 4, 1, 1), s * 1e8, np.float32)) for s in (1, -1))
    factor, less = far
    x = n("Relu", n("Add", n("Mul", x, factor), less))
    return import_model(n.model(n.conv(x, 4, 4)))


@pytest.mark.parametrize("network", [apart, shifted])
@pytest.mark.parametrize("settings", [QuantizeSettings(), QuantizeSettings(activations="int8")])
def test_values_whose_scales_are_too_far_from_their_terms_are_rounded_from_floats(
    network: Callable[[], Graph], settings: QuantizeSettings
):
    """A network is not refused for one of them: its layers stay in integers."""
    graph = network()
    data = samples(graph)
    made = quantize(graph, data, settings)
    heavy = [node for node in made.nodes if "conv2d" in node.op]
    assert {made.types[node.outputs[0]].dtype for node in heavy} == {"int32"}
    one = {name: array[:1] for name, array in data.items()}
    expected, found = (run_graph(g, one)[graph.outputs[0]] for g in (graph, made))
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.05 * float(np.ptp(expected)))


@pytest.mark.parametrize("method", METHODS[:4])
def test_what_is_infinite_for_a_sample_is_named(method: str):
    n = Net("infinite")
    x = n("Exp", n("Mul", n.conv(n.input(1, 3, 4, 4), 3, 4), number(n, 1e3)))
    graph = import_model(n.model(n.conv(x, 4, 4)))
    with (
        np.errstate(over="ignore", invalid="ignore"),
        pytest.raises(InputError, match=r"'Exp_\d' is infinite .* leave in floats, by skip"),
    ):
        quantize(graph, samples(graph), QuantizeSettings(method=method))


@pytest.mark.parametrize("method", METHODS[:4])
def test_what_a_device_takes_for_zeros_has_the_codes_of_zeros(method: str):
    n = Net("denormal")
    graph = import_model(n.model(n.conv(n("Relu", n.conv(n.input(1, 3, 4, 4), 3, 4)), 4, 4)))
    data = {name: np.float32(1e-43) * array for name, array in samples(graph).items()}
    made = quantize(graph, data, QuantizeSettings(method=method))
    small = np.finfo(np.float32).tiny
    floats = [a for a in made.constants.values() if a.dtype == np.float32]
    assert all(np.abs(a[a != 0]).min(initial=1.0) >= small for a in floats)
    one = {name: array[:1] for name, array in data.items()}
    expected, found = (run_graph(g, one)[graph.outputs[0]] for g in (graph, made))
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.02 * float(np.ptp(expected)))


def test_a_correction_that_no_codes_reach_is_no_overflow():
    """A range that is not the network's: the codes of all values are their limits."""
    n = Net("beyond")
    x = n(
        "Relu",
        n("Conv", n.input(1, 4, 8, 8), n.stored(np.float32(1e30) * normal(n.rng, 4, 4, 3, 3))),
    )
    graph = import_model(n.model(n.conv(x, 4, 4)))
    quantize(graph, samples(graph), POWER2)

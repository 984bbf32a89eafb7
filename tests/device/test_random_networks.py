"""Random networks in every layout, as floats and as integers, agree with their numpy meaning.

A failure names the seed; `random_model(seed, steps)` with fewer steps is the beginning of the same
network. The numpy meaning is compared with onnxruntime's in `tests/unit/graph/test_random.py`.
"""

import numpy as np
import pytest

from retune.graph.evaluate import random_inputs, run_graph
from retune.graph.graph import Graph
from retune.graph.ops import Array
from retune.graph.quantize.recipe import quantize
from retune.graph.quantize.samples import random_samples
from retune.graph.quantize.settings import POWER2, QuantizeSettings
from tests.device.random_ways import compiled, ways
from tests.unit.graph.networks import random_network
from tests.unit.graph.quantize_networks import exact_part

pytestmark = pytest.mark.device

WAYS = ways()
SETTINGS = (
    QuantizeSettings(),
    QuantizeSettings(weight_bits=7),
    QuantizeSettings(activations="int8"),
    POWER2,
)
MANY = range(1000, 1008)
"""Seeds of networks for each way, where there is time."""


def assert_runs(graph: Graph, inputs: dict[str, Array], way: tuple[str, str], seed: int) -> None:
    """What the network computes, compiled so, is what numpy computes; of integers bit by bit."""
    found = compiled(graph, *way, seed, for_blocks=seed % 2 == 0).run(inputs)
    for name, expected in run_graph(graph, inputs).items():
        assert found[name].dtype == expected.dtype
        if not expected.dtype.name.startswith("float"):
            np.testing.assert_array_equal(found[name], expected, err_msg=f"{seed} {way} {name}")
            continue
        scale = max(float(np.ptp(expected)), 0.1)  # norms make differences of last bits large
        np.testing.assert_allclose(
            found[name] / scale, expected / scale, rtol=0, atol=5e-4, err_msg=f"{seed} {way} {name}"
        )


def floats(way: tuple[str, str], seed: int) -> None:
    graph = random_network(seed)
    assert_runs(graph, random_inputs(graph, seed), way, seed)


def integers(way: tuple[str, str], seed: int) -> None:
    graph = random_network(seed)
    made = quantize(graph, random_samples(graph, 2, seed), SETTINGS[seed % len(SETTINGS)])
    assert_runs(*exact_part(made, seed), way, seed)


@pytest.mark.parametrize("number", range(6))
def test_a_random_network(number: int):
    floats(WAYS[(3 * number + 1) % len(WAYS)], 100 + number)


@pytest.mark.parametrize("number", range(3))
def test_a_random_network_in_integers(number: int):
    integers(WAYS[5 * number + 2], 200 + number)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids=" ".join)
@pytest.mark.parametrize("seed", MANY)
def test_many_random_networks(seed: int, way: tuple[str, str]):
    floats(way, seed + 50 * WAYS.index(way))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids=" ".join)
@pytest.mark.parametrize("seed", MANY)
def test_many_random_networks_in_integers(seed: int, way: tuple[str, str]):
    integers(way, seed + 50 * WAYS.index(way))

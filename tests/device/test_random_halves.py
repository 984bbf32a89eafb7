"""Random networks of float16, on devices that keep it, agree with what is computed in float32."""

import numpy as np
import pytest

from retune.core.dtypes import FLOAT16, FLOAT32, TensorType
from retune.graph.evaluate import random_inputs, run_graph
from retune.graph.graph import Graph, GraphBuilder
from retune.graph.passes.pipeline import optimise
from retune.graph.passes.precision import Precision
from retune.graph.passes.storage import in_compute_types
from retune.search.extract import extract
from tests.external.on_device import compile_network
from tests.support.networks import random_network

pytestmark = pytest.mark.device

PROFILES = ("mali-g76", "adreno-6xx")
"""Without local memory, and with it."""


def halved(graph: Graph) -> Graph:
    """The network with float16 in place of float32."""
    build = GraphBuilder(graph.name, reserved=graph.types)

    def narrow(dtype: str) -> str:
        return FLOAT16 if dtype == FLOAT32 else dtype

    for name in graph.inputs:
        entry = graph.types[name]
        build.input(name, TensorType(entry.shape, narrow(entry.dtype)))
    for name, array in graph.constants.items():
        dtype = narrow(graph.types[name].dtype)
        build.constant(name, array.astype(FLOAT16) if dtype == FLOAT16 else array, dtype)
    for node in graph.nodes:
        attrs = {key: FLOAT16 if value == FLOAT32 else value for key, value in node.attrs.items()}
        build.add(node.op, node.inputs, attrs, outputs=node.outputs, name=node.name)
    return build.finish(graph.outputs).verify()


def assert_agrees(seed: int) -> None:
    graph = halved(random_network(seed))
    inputs = random_inputs(graph, seed)
    meant = run_graph(in_compute_types(graph), inputs)
    for profile in PROFILES:
        network = extract(optimise(graph, precision=Precision(own=frozenset({FLOAT16}))))
        found = compile_network(network, device=f"profile:{profile}@pocl").run(inputs)
        for name, expected in meant.items():
            where = f"seed {seed}, {profile}: {name}"
            assert found[name].dtype == expected.dtype, where
            ours, theirs = (a.astype(np.float64) for a in (found[name], expected))
            scale = max(float(np.ptp(theirs)), 0.1)
            assert np.abs(ours - theirs).max() <= 1e-2 * scale, where


@pytest.mark.parametrize("seed", range(2))
def test_a_random_network(seed: int):
    assert_agrees(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1060, 10))
def test_random_networks(first: int):
    for seed in range(first, first + 10):
        assert_agrees(seed)

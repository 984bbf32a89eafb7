"""Random networks mean to onnxruntime what they mean here, before and after all passes."""

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest

from retune.core.dtypes import INT8, UINT8
from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import random_inputs, run_graph
from retune.graph.fuse import partition
from retune.graph.graph import Graph
from retune.graph.passes.pipeline import optimise
from retune.graph.quantize.recipe import quantize
from retune.graph.quantize.samples import random_samples
from retune.graph.quantize.settings import POWER2, QuantizeSettings
from retune.ops import Array
from tests.support.quantize_networks import exact_part
from tests.support.random_blocks import random_blocks, random_recurrent
from tests.support.random_networks import random_model

LEAST_RANGE = 0.1
"""Outputs of a smaller range are compared as if they had this one: differences of equal values,
made large by a norm, are their last bits."""


def assert_alike(found: dict[str, Array], expected: dict[str, Array], what: str) -> None:
    for name, array in expected.items():
        scale = max(float(np.ptp(array)), LEAST_RANGE)
        np.testing.assert_allclose(
            found[name] / scale, array / scale, rtol=0, atol=5e-4, err_msg=f"{what}: {name}"
        )


def check(seed: int, make: Callable[[int], onnx.ModelProto] = random_model) -> None:
    model = make(seed)
    graph = import_model(model).verify()
    inputs = random_inputs(graph, seed)
    meaning = run_graph(graph, inputs)
    assert_alike(meaning, as_onnxruntime(model, inputs), f"import of seed {seed}")
    settings = POWER2 if seed % 3 == 0 else QuantizeSettings(activations=(UINT8, INT8)[seed % 2])
    whole = quantize(graph, random_samples(graph, 2, seed), settings)
    for network, given in ((graph, inputs), exact_part(whole, seed)):
        before = run_graph(network.verify(), given)
        for layout in ("NHWC", "NCHW"):
            after = optimise(network, layout).verify()
            assert_alike(run_graph(after, given), before, f"{layout} of seed {seed}")


def as_onnxruntime(model: onnx.ModelProto, inputs: dict[str, Array]) -> dict[str, Array]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    known = {entry.name for entry in session.get_inputs()}
    names = [entry.name for entry in session.get_outputs()]
    given = {name: array for name, array in inputs.items() if name in known}
    found = (np.asarray(array) for array in session.run(names, given))
    return dict(zip(names, found, strict=True))


@pytest.mark.parametrize("seed", range(24))
def test_a_random_network_means_the_same_all_the_way(seed: int):
    check(seed)


@pytest.mark.parametrize("seed", range(10))
def test_random_blocks_mean_the_same_all_the_way(seed: int):
    check(seed, random_blocks)


@pytest.mark.parametrize("seed", range(3))
def test_random_recurrent_layers_mean_the_same_all_the_way(seed: int):
    check(seed, random_recurrent)


@pytest.mark.slow
@pytest.mark.parametrize("make", [random_model, random_blocks, random_recurrent])
@pytest.mark.parametrize("first", range(1000, 3000, 100))
def test_many_random_networks_mean_the_same(first: int, make: Callable[[int], onnx.ModelProto]):
    for seed in range(first, first + 100):
        check(seed, make)


def test_the_generator_reaches_what_it_aims_at():
    """Each of its ops, and each thing that passes do with them, several times in a hundred."""
    graphs: list[Graph] = [import_model(random_model(seed)) for seed in range(100)]
    after = [optimise(graph) for graph in graphs]

    def convolutions(some: list[Graph]) -> int:
        return sum("conv" in node.op for graph in some for node in graph.nodes)

    assert convolutions(graphs) > convolutions(after) + 10  # parallel ones are merged
    ops = {node.op for graph in graphs for node in graph.nodes}
    assert ops >= {"conv_transpose", "depthwise_conv2d", "standardise", "resample", "slice", "pad"}


def test_blocks_have_convolutions_of_all_kinds_that_compute_before():
    """Elements that several read, pads that differ, groups, volumes, and indices of any axis."""
    graphs = [optimise(import_model(random_blocks(seed))) for seed in range(60)]
    groups = [group for graph in graphs for group in partition(graph)]
    computing = [g for g in groups if "conv" in g.anchor.op and g.nodes.index(g.anchor)]
    assert {g.anchor.op for g in computing} == {"conv2d", "depthwise_conv2d", "conv3d"}
    pads = [g.anchor.attrs["pads"] for g in computing]
    assert sum(p[: len(p) // 2] != p[len(p) // 2 :] for p in pads if isinstance(p, tuple)) > 40
    ops = {node.op for graph in graphs for node in graph.nodes}
    assert ops >= {"gather", "matmul", "softmax", "reduce_mean", "slice", "concat"}

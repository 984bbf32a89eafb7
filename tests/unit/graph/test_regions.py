"""NHWC where it pays: transposes at the ends of a region against what windows cost in NCHW."""

import numpy as np
import pytest

from retune.core.dtypes import TensorType
from retune.graph.evaluate import random_inputs, run_graph
from retune.graph.graph import Graph, GraphBuilder
from retune.graph.passes.pipeline import optimise
from tests.support.networks import normal

NHWC, BACK = {"perm": (0, 2, 3, 1)}, {"perm": (0, 3, 1, 2)}


def images(*shape: int) -> GraphBuilder:
    build = GraphBuilder("net")
    build.input("x", TensorType(shape))
    return build


def pooled(build: GraphBuilder, value: str, kernel: int, stride: int = 1) -> str:
    window = {"kernel": (kernel,) * 2, "strides": (stride,) * 2, "pads": (kernel // 2,) * 4}
    return build.add("max_pool2d", [value], {**window, "dilations": (1, 1), "layout": "NCHW"})


def convolved(build: GraphBuilder, value: str, shape: tuple[int, ...], groups: int = 1) -> str:
    weight = build.constant(f"w of {value}", normal(np.random.default_rng(0), *shape))
    attrs = {"strides": (1, 1), "pads": (shape[-1] // 2,) * 4, "dilations": (1, 1)}
    return build.add("conv2d", [value, weight], {**attrs, "groups": groups, "layout": "NCHW"})


def layouts(graph: Graph) -> tuple[list[object], int]:
    """Of the layers of the optimised network, which computes the same; and how many transposes."""
    made, data = optimise(graph, "NHWC"), random_inputs(graph, 1)
    made.verify()
    expected, found = run_graph(graph, data), run_graph(made, data)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-4)
    of_layers = [node.attrs["layout"] for node in made.nodes if "layout" in node.attrs]
    return of_layers, sum(node.op == "transpose" for node in made.nodes)


def test_a_pool_by_itself_is_not_transposed():
    build = images(1, 16, 12, 12)
    relu = build.add("relu", ["x"])
    assert layouts(build.finish([pooled(build, relu, 3)])) == (["NCHW"], 0)


def test_a_large_window_is_worth_transposes():
    build = images(1, 16, 12, 12)
    assert layouts(build.finish([pooled(build, "x", 9)])) == (["NHWC"], 2)


def test_a_pool_follows_the_convolution_of_its_region():
    build = images(1, 16, 12, 12)
    graph = build.finish([pooled(build, convolved(build, "x", (8, 16, 3, 3)), 3)])
    assert layouts(graph) == (["NHWC"] * 2, 2)


@pytest.mark.parametrize(("groups", "layout"), [(8, "NCHW"), (2, "NHWC")])
def test_groups_of_few_channels_do_not_fill_vectors(groups: int, layout: str):
    build = images(1, 64, 16, 16)
    found, _ = layouts(build.finish([convolved(build, "x", (16, 64 // groups, 3, 3), groups)]))
    assert found == [layout]


def test_data_in_nhwc_stay_so():
    """As of a TensorFlow model: transposes around each layer, of which none remains."""
    build = images(1, 12, 12, 16)
    value = pooled(build, build.add("transpose", ["x"], BACK), 3)
    graph = build.finish([build.add("transpose", [value], NHWC)])
    assert layouts(graph) == (["NHWC"], 0)


def test_regions_of_a_network_are_judged_one_by_one():
    """A convolution of one input, a pool of the other."""
    build = images(1, 16, 12, 12)
    build.input("y", TensorType((1, 16, 12, 12)))
    first = convolved(build, "x", (8, 16, 3, 3))
    graph = build.finish([first, pooled(build, "y", 3)])
    assert layouts(graph) == (["NHWC", "NCHW"], 2)

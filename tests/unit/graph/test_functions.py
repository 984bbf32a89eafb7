"""Functions of one value: which nodes they are, and what they make of each code."""

import numpy as np
import pytest

from retune.core.dtypes import TensorType
from retune.graph.evaluate import run_graph
from retune.graph.graph import Graph, GraphBuilder
from retune.graph.quantize.annotate import annotate
from retune.graph.quantize.arithmetic import QuantParams
from retune.graph.quantize.functions import Finder, table
from retune.graph.quantize.recipe import quantize
from retune.graph.quantize.settings import QuantizeSettings

SHAPE = (1, 4, 3, 3)


def half(build: GraphBuilder) -> str:
    return build.constant("half", np.asarray(0.5, np.float32))


def silu(build: GraphBuilder, x: str) -> str:
    return build.add("multiply", (x, build.add("sigmoid", (x,))))


def gelu(build: GraphBuilder, x: str) -> str:
    scaled = build.add("multiply", (x, half(build)))
    return build.add("multiply", (scaled, build.add("erf", (scaled,))))


def square(build: GraphBuilder, x: str) -> str:
    return build.add("multiply", (x, x))


def graph_of(write) -> Graph:
    build = GraphBuilder("function")
    return build.finish([write(build, build.input("x", TensorType(SHAPE)))])


@pytest.mark.parametrize(("write", "count"), [(silu, 2), (gelu, 3), (square, 1)])
def test_all_nodes_of_one_value_are_one_function(write, count):
    graph = graph_of(write)
    found = Finder(graph, (), ()).follow(graph.nodes[0], "x")
    assert len(found) == count
    assert found[-1].outputs == graph.outputs


@pytest.mark.parametrize("write", [silu, gelu, square])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_a_table_holds_what_the_function_makes_of_each_code(write, dtype):
    graph = graph_of(write)
    codes = QuantParams(scale=0.03, zero=100 if dtype == "uint8" else 0, dtype=dtype)
    made = table(graph.nodes, "x", graph.constants, codes)
    numbers = np.resize((np.arange(256) + codes.limits[0] - codes.zero) * 0.03, (8, *SHAPE))
    expected = [run_graph(graph, {"x": x.astype(np.float32)})[graph.outputs[0]] for x in numbers]
    np.testing.assert_allclose(made, np.ravel(expected)[:256], rtol=1e-5, atol=1e-6)


def test_a_function_ends_at_what_others_read_and_at_values_with_codes():
    graph = graph_of(silu)
    (sigmoid, _) = graph.nodes
    for apart in (Finder(graph, (), sigmoid.outputs), Finder(graph, {graph.outputs[0]}, ())):
        assert apart.follow(sigmoid, "x") == (sigmoid,)


def test_sums_and_products_with_numbers_need_no_table():
    graph = graph_of(lambda build, x: build.add("multiply", (x, half(build))))
    assert Finder(graph, (), ()).follow(graph.nodes[0], "x") == ()


def test_functions_that_only_floats_read_are_of_floats():
    """Their codes would lose bits for nobody."""
    build = GraphBuilder("scores")
    x = build.input("x", TensorType(SHAPE))
    weight = build.constant("w", np.ones((4, 4, 1, 1), np.float32))
    attrs = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
    y = build.add("conv2d", (x, weight), {**attrs, "groups": 1, "layout": "NCHW"})
    graph = build.finish([build.add("sigmoid", (y,))])
    kinds = [region.kind for region in annotate(graph, QuantizeSettings()).regions.values()]
    assert kinds == ["layer"]
    data = {"x": np.random.default_rng(0).standard_normal((4, *SHAPE[1:]), np.float32)}
    made = quantize(graph, data, QuantizeSettings())
    assert "lookup_codes" not in {node.op for node in made.nodes}

"""Networks of float16 without such arithmetic: the same interface, float32 inside."""

import numpy as np
import pytest
from onnx import TensorProto

from retune.core.dtypes import BFLOAT16, FLOAT16, FLOAT32, DType, TensorType
from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import random_inputs, run_graph
from retune.graph.graph import Graph, GraphBuilder
from retune.graph.passes.pipeline import optimise
from retune.graph.passes.precision import Precision
from retune.graph.passes.storage import computed_wide, in_compute_types
from tests.support.networks import model, node

HALF = np.float16


def layer(*extra_outputs: str) -> Graph:
    """relu(dense(x, w) + b) of float16, and the values named."""
    build = GraphBuilder("net")
    build.input("x", TensorType((4, 8), "float16"))
    rng = np.random.default_rng(0)
    build.constant("w", rng.standard_normal((5, 8)).astype(HALF))
    build.constant("b", rng.standard_normal((1, 5)).astype(HALF))
    build.add("dense", ["x", "w"], outputs=["d"])
    build.add("add", ["d", "b"], outputs=["s"])
    build.add("relu", ["s"], outputs=["y"])
    return build.finish(["y", *extra_outputs]).verify()


def inner_types(graph: Graph) -> set[str]:
    """Types of all that is neither an input nor an output."""
    outer = {*graph.inputs, *graph.outputs}
    return {entry.dtype for name, entry in graph.types.items() if name not in outer}


def test_only_the_interface_is_left_of_float16():
    wide = in_compute_types(layer()).verify()
    assert [n.op for n in wide.nodes] == ["cast", "dense", "add", "relu", "cast"]
    assert (str(wide.types["x"]), str(wide.types["y"])) == ("float16[4, 8]", "float16[4, 5]")
    assert inner_types(wide) == {"float32"}


def test_the_meaning_is_that_of_more_exact_arithmetic():
    graph = layer("s")
    inputs = random_inputs(graph)
    exact = {n: a.astype(np.float64) for n, a in {**graph.constants, **inputs}.items()}
    expected = exact["x"] @ exact["w"].T + exact["b"]
    found = run_graph(in_compute_types(graph), inputs)
    np.testing.assert_allclose(found["s"], expected.astype(HALF), rtol=2**-10)
    np.testing.assert_array_equal(found["y"], np.maximum(found["s"], 0))


def test_a_network_without_float16_stays_itself():
    build = GraphBuilder("net")
    build.input("x", TensorType((2,)))
    graph = build.finish([build.add("relu", ["x"])])
    assert in_compute_types(graph) is graph


def test_a_device_that_computes_with_float16_keeps_it():
    assert inner_types(optimise(layer(), precision=Precision(own=frozenset({FLOAT16})))) == {
        "float16"
    }
    assert inner_types(optimise(layer())) == {"float32"}


@pytest.mark.parametrize("to", ["float16", "float32", "int32"])
def test_casts_inside_lose_nothing(to: str):
    build = GraphBuilder("net")
    build.input("x", TensorType((3,)))
    build.add("cast", ["x"], {"to": "float16"}, outputs=["h"])
    build.add("cast", ["h"], {"to": to}, outputs=["y"])
    graph = build.finish(["y"])
    wide = optimise(graph).verify()
    assert wide.types["y"].dtype == to
    x = np.array([1.25, -2, 1000], np.float32)
    np.testing.assert_array_equal(run_graph(wide, {"x": x})["y"], x.astype(to))


def test_constants_may_be_outputs_and_operands():
    build = GraphBuilder("net")
    build.input("x", TensorType((2,), "float16"))
    build.constant("c", np.array([1, 2], HALF))
    build.add("add", ["x", "c"], outputs=["y"])
    graph = build.finish(["y", "c"])
    found = run_graph(optimise(graph).verify(), {"x": np.array([1, 1], HALF)})
    assert {name: str(array.dtype) for name, array in found.items()} == dict.fromkeys(
        "yc", "float16"
    )
    assert (found["y"].tolist(), found["c"].tolist()) == ([2, 3], [1, 2])


def test_no_name_is_taken_twice():
    build = GraphBuilder("net")
    build.input("x", TensorType((2,), "float16"))
    build.add("relu", ["x"], outputs=["x.wide"])
    build.add("negative", ["x.wide"], outputs=["y.wide"])
    build.add("abs", ["y.wide"], outputs=["y"])
    graph = build.finish(["y", "y.wide"])
    found = run_graph(in_compute_types(graph).verify(), {"x": np.array([-1, 3], HALF)})
    assert (found["y"].tolist(), found["y.wide"].tolist()) == ([0, 3], [0, -3])


def test_host_steps_read_and_make_float16():
    """What is not zero is found on the host, between the layers of a network of float16."""
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("NonZero", ["r"], ["where"]),
        node("Compress", ["r", "keep"], ["y"], axis=0),
        node("Compress", ["x", "keep"], ["z"], axis=0),
    ]
    weights = {"keep": np.array([True, False, True])}
    made = model(nodes, {"x": [3, 2]}, ["where", "y", "z"], weights, element=TensorProto.FLOAT16)
    inputs = {"x": np.array([[1, -2], [3, 4], [0, 0.5]], HALF)}
    graph = import_model(made)
    assert "host" in {n.op for n in graph.nodes}
    expected = run_graph(graph, inputs)
    for name, array in run_graph(optimise(graph).verify(), inputs).items():
        np.testing.assert_array_equal(array, expected[name])
        assert array.dtype == expected[name].dtype


def test_a_kernel_that_computes_is_wide_inside_and_one_that_moves_stays():
    wide = computed_wide(layer())
    assert (str(wide.types["x"]), str(wide.types["y"])) == ("float16[4, 8]", "float16[4, 5]")
    assert inner_types(wide) == {"float32"}
    build = GraphBuilder("net")
    build.input("x", TensorType((2, 3), "float16"))
    graph = build.finish([build.add("transpose", ["x"], {"perm": (1, 0)})])
    assert computed_wide(graph) is graph


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_a_network_casts_to_a_stored_type_is_rounded(dtype: str):
    """There and back in one kernel, whether devices keep the type or not."""
    build = GraphBuilder("net")
    x = build.input("x", TensorType((64,)))
    narrow = build.add("cast", [build.add("multiply", [x, x])], {"to": DType(dtype)})
    build.add("cast", [narrow], {"to": FLOAT32}, outputs=["y"])
    graph = build.finish(["y"]).verify()
    inputs = {"x": np.float32([np.nan, np.inf, 300, 1e-4, *np.linspace(-2, 2, 60)])}
    with np.errstate(over="ignore"):
        expected = (inputs["x"] ** 2).astype(DType(dtype).numpy).astype(np.float32)
    for wide in (graph, in_compute_types(graph), computed_wide(graph)):
        np.testing.assert_array_equal(run_graph(wide, inputs)["y"], expected)
    assert [n.op for n in computed_wide(graph).nodes][-2:] == [f"round_to_{dtype}", "cast"]


def test_a_cast_that_is_stored_at_once_is_rounded_by_that():
    build = GraphBuilder("net")
    build.add("cast", [build.input("x", TensorType((4,)))], {"to": DType("float16")}, outputs=["y"])
    assert [n.op for n in in_compute_types(build.finish(["y"])).nodes] == ["cast", "cast"]


@pytest.mark.parametrize("calculated", [False, True])
def test_a_cast_that_is_moved_before_it_is_stored_is_rounded_by_that(calculated: bool):
    """As the images of a network are; not where something else calculates with it."""
    build = GraphBuilder("net")
    narrow = build.add("cast", [build.input("x", TensorType((2, 32)))], {"to": BFLOAT16})
    build.add("transpose", [narrow], {"perm": (1, 0)}, outputs=["y"])
    if calculated:
        build.add("relu", [narrow], outputs=["z"])
    graph = build.finish(["y", "z"] if calculated else ["y"]).verify()
    inputs = {"x": np.random.default_rng(0).standard_normal((2, 32)).astype(np.float32)}
    for wide in (graph, in_compute_types(graph), computed_wide(graph)):
        found = run_graph(wide, inputs)["y"]
        np.testing.assert_array_equal(found, inputs["x"].astype(BFLOAT16.numpy).T)
    assert (computed_wide(graph) is graph) == (not calculated)
    assert any(n.op.startswith("round_to") for n in computed_wide(graph).nodes) == calculated

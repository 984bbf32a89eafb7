"""Networks of float32 whose values lie in 16 bits between kernels."""

import numpy as np
import pytest

from retune.core.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT64, TF32, DType, TensorType
from retune.graph.evaluate import random_inputs, run_graph
from retune.graph.fuse import partition
from retune.graph.graph import Graph, GraphBuilder
from retune.graph.passes.pipeline import optimise
from retune.graph.passes.precision import Precision, in_precision, layers
from tests.support.networks import random_network

RNG = np.random.default_rng(0)


def weights(*shape: int) -> np.ndarray:
    """Constants of float32 that 16 bits do not hold."""
    return RNG.standard_normal(shape).astype(np.float32)


def perceptron() -> Graph:
    """softmax(dense(relu(dense(x) + b)))."""
    build = GraphBuilder("net")
    x = build.input("x", TensorType((4, 8)))
    build.constant("w", weights(16, 8))
    build.constant("b", weights(16))
    build.constant("v", weights(5, 16))
    d = build.add("add", [build.add("dense", [x, "w"], name="first"), "b"])
    h = build.add("relu", [d], name="hidden")
    s = build.add("dense", [h, "v"], name="second")
    build.add("softmax", [s], {"axis": 1}, outputs=["y"])
    return build.finish(["y"]).verify()


def types(graph: Graph) -> dict[str, DType]:
    """The types of all that nodes make."""
    return {value: graph.types[value].dtype for node in graph.nodes for value in node.outputs}


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16])
def test_values_and_weights_are_stored_in_16_bits_and_the_interface_stays(dtype: DType):
    graph = perceptron()
    made = in_precision(graph, Precision(stored=dtype)).verify()
    assert {made.types[name].dtype for name in (*made.inputs, *made.outputs)} == {FLOAT32}
    assert types(made) == {
        f"x.{dtype}": dtype, "first": dtype, "add": dtype, "hidden": dtype, "second": dtype,
        f"y.{dtype}": dtype, "y": FLOAT32,
    }  # fmt: skip
    np.testing.assert_array_equal(made.constants[f"w.{dtype}"], graph.constants["w"].astype(dtype))
    assert made.types["b"].dtype is FLOAT32, "a bias is a small vector"
    inputs = random_inputs(graph)
    expected, found = (run_graph(each, inputs)["y"] for each in (graph, made))
    assert 0 < np.abs(found - expected).max() <= 4 * dtype.tolerance


def test_as_many_kernels_as_in_float32():
    """Conversions are a part of the kernels beside them; that of an input is one of its own."""
    graph = perceptron()
    made = in_precision(graph, Precision(stored=BFLOAT16))
    kinds = [group.kind for group in partition(made)]
    assert kinds == ["elementwise", *(group.kind for group in partition(graph))]


def test_what_is_kept_reads_and_makes_float32():
    made = in_precision(perceptron(), Precision(stored=BFLOAT16, kept=("second",))).verify()
    found = types(made)
    assert (found["hidden"], found["second"]) == (FLOAT32, FLOAT32)
    assert found["first"] is BFLOAT16 and "v" in made.constants
    assert [node.outputs[0] for node in layers(perceptron())] == ["first", "second"]


def norm_in_parts() -> Graph:
    """(d - mean(d)) / sqrt(mean((d - mean(d)) ** 2) + 1e-5) * g, behind a product."""
    build = GraphBuilder("norm")
    x = build.input("x", TensorType((6, 16)))
    build.constant("w", weights(32, 16))
    build.constant("two", np.float32(2))
    build.constant("epsilon", np.float32(1e-5))
    build.constant("g", weights(32))
    over = {"axes": (1,), "keepdims": True}
    d = build.add("dense", [x, "w"], name="data")
    mean = build.add("reduce_mean", [d], over, name="mean")
    away = build.add("subtract", [d, mean], name="away")
    square = build.add("power", [away, "two"], name="square")
    variance = build.add("reduce_mean", [square], over, name="variance")
    root = build.add("sqrt", [build.add("add", [variance, "epsilon"])], name="root")
    build.add("multiply", [build.add("divide", [away, root]), "g"], name="scaled")
    build.constant("v", weights(4, 32))
    build.add("dense", ["scaled", "v"], outputs=["y"])
    return build.finish(["y"]).verify()


def test_statistics_stay_in_float32_and_norms_one_kernel():
    graph = norm_in_parts()
    made = in_precision(graph, Precision(stored=BFLOAT16)).verify()
    found = types(made)
    whole = {"mean", "square", "variance", "root"}
    assert {found[name] for name in whole} == {FLOAT32}
    assert {found[name] for name in ("data", "away", "scaled")} == {BFLOAT16}
    groups = {group.outputs[0]: group for group in partition(made)}
    assert len(groups) == len(partition(graph)) + 1  # the conversion of the input
    norm = groups["scaled"]
    assert norm.inputs == ("data",) and whole <= {v for n in norm.nodes for v in n.outputs}


def test_a_conversion_is_no_kernel_between_a_reduction_and_a_product():
    build = GraphBuilder("pooled")
    x = build.input("x", TensorType((2, 5, 5, 8)))
    build.constant("w", weights(3, 3, 8, 16))
    window = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "groups": 1}
    c = build.add("conv2d", [x, "w"], {**window, "layout": "NHWC"}, name="conv")
    pooled = build.add("reduce_mean", [c], {"axes": (1, 2), "keepdims": False}, name="pooled")
    build.constant("v", weights(4, 16))
    build.add("dense", [pooled, "v"], outputs=["y"])
    made = in_precision(build.finish(["y"]), Precision(stored=BFLOAT16)).verify()
    groups = partition(made)
    assert [g.kind for g in groups] == ["elementwise", "conv2d", "reduce_mean", "dense"]
    mean = groups[2]
    assert [node.op for node in mean.nodes] == ["cast", "reduce_mean", "cast"]
    assert mean.anchor.op == "reduce_mean" and mean.inputs == ("conv",)


def test_positions_and_numbers_out_of_range_stay_in_float32():
    build = GraphBuilder("masked")
    x = build.input("x", TensorType((4, 8)))
    mask = build.input("mask", TensorType((4, 4), INT64))
    build.constant("w", weights(4, 8))
    build.constant("one", np.float32(1))
    build.constant("lowest", np.float32(-1e9))
    build.constant("grid", np.arange(4, dtype=np.float32))
    scores = build.add("dense", [x, "w"], name="scores")
    taken = build.add("cast", [mask], {"to": FLOAT32}, name="taken")
    away = build.add("multiply", [build.add("subtract", ["one", taken]), "lowest"], name="away")
    build.add("add", [scores, away], outputs=["masked"])
    build.add("add", [scores, "grid"], name="corners")
    build.add("relu", ["corners"], outputs=["boxes"])
    graph = build.finish(["masked", "boxes"])
    found = types(in_precision(graph, Precision(stored=FLOAT16)).verify())
    assert found["scores"] is FLOAT16
    assert {found[name] for name in ("taken", "away", "corners")} == {FLOAT32}


def test_sums_that_are_divided_by_stay_in_float32():
    """Linear attention: its sums are beyond float16, and their quotients are not."""
    build = GraphBuilder("linear")
    q, k, v = (build.input(n, TensorType((12, 8))) for n in "qkv")
    turned = build.add("transpose", [k], {"perm": (1, 0)})
    total = build.add("matmul", [q, build.add("matmul", [turned, v], name="inner")], name="sums")
    one = {"begins": (0, 7), "extents": (12, 1), "steps": (1, 1)}
    some = build.add("slice", [total], one)
    some = build.add("add", [some, build.constant("e", np.asarray(1e-5, np.float32))])
    graph = build.finish([build.add("divide", [total, some], outputs=["y"])])
    made = in_precision(graph, Precision(stored=FLOAT16)).verify()
    assert (made.types["inner"].dtype, made.types["sums"].dtype) == (FLOAT32, FLOAT32)
    inputs = {n: 100 + np.arange(96, dtype=np.float32).reshape(12, 8) for n in "qkv"}
    expected, found = (run_graph(each, inputs)["y"] for each in (graph, made))
    assert np.abs(found - expected).max() <= 4 * FLOAT16.tolerance


def test_float32_stays_as_it_is():
    graph = perceptron()
    assert in_precision(graph, Precision()) is graph
    assert optimise(graph, precision=Precision(own=frozenset({BFLOAT16}))) == optimise(graph)


@pytest.mark.parametrize("seed", range(8))
def test_random_networks_stay_close(seed: int):
    graph = optimise(random_network(seed))
    made = in_precision(graph, Precision(stored=BFLOAT16)).verify()
    inputs = random_inputs(graph, seed)
    expected, found = run_graph(graph, inputs), run_graph(made, inputs)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        if made.types[name].dtype.is_float:
            scale = max(float(np.ptp(array)), 0.1)
            assert np.abs(found[name] - array).max() <= 5 * BFLOAT16.tolerance * scale, name
    partition(made)


def test_tf32_rounds_what_products_read_to_ten_bits():
    graph = perceptron()
    made = in_precision(graph, Precision(operands=TF32)).verify()
    assert made.types == graph.types
    inputs = random_inputs(graph)
    x, w, v = (a.astype(np.float64) for a in (inputs["x"], *map(graph.constants.get, "wv")))
    hidden = np.maximum(tf32(x) @ tf32(w).T + graph.constants["b"], 0)
    scores = tf32(hidden) @ tf32(v).T
    shares = np.exp(scores - scores.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    found = run_graph(made, inputs)["y"]
    np.testing.assert_allclose(found, shares, atol=1e-6)
    assert np.abs(found - run_graph(graph, inputs)["y"]).max() > 1e-6


def tf32(numbers: np.ndarray) -> np.ndarray:
    """The nearest numbers of ten bits behind the first."""
    mantissa, exponent = np.frexp(numbers)
    return np.ldexp(np.rint(np.ldexp(mantissa, 11)), exponent - 11)

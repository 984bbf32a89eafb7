"""Values without elements disappear before anything is scheduled."""

import itertools

import numpy as np
import pytest

from retune.core.dtypes import DType, TensorType
from retune.graph.evaluate import random_inputs, run_graph
from retune.graph.graph import Graph, GraphBuilder
from retune.graph.passes.empty import fold_empty
from retune.graph.passes.pipeline import optimise


def network(*shapes: tuple[int, ...], dtype: DType = "float32") -> GraphBuilder:
    build = GraphBuilder("net")
    for position, shape in enumerate(shapes):
        build.input(f"x{position}", TensorType(shape, dtype))
    return build


def assert_same(graph: Graph, *ops: str) -> None:
    """Folded and optimised, the graph means the same; folded, it has these ops."""
    folded = fold_empty(graph).verify()
    assert tuple(node.op for node in folded.nodes) == ops
    inputs = random_inputs(graph)
    expected = run_graph(graph, inputs)
    for after in (folded, optimise(graph).verify()):
        assert after.inputs == graph.inputs
        found = run_graph(after, inputs)
        for name, array in expected.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_array_equal(found[name], array)


def test_a_concat_leaves_out_what_is_empty():
    build = network((2, 3), (2, 0), (2, 5))
    attrs = {"begins": (0, 0), "extents": (2, 0), "steps": (1, 1)}
    part = build.add("slice", ["x0"], attrs)
    joined = build.add("concat", ["x0", part, "x1", "x2"], {"axis": 1})
    assert_same(build.finish([build.add("relu", [joined])]), "concat", "relu")


def test_an_empty_network_is_constants():
    build = network((0, 3), (3, 4))
    assert_same(build.finish([build.add("relu", [build.add("matmul", ["x0", "x1"])])]))


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        *itertools.product(("reduce_max", "reduce_min"), ("float32", "int32", "uint8", "bool")),
        *itertools.product(("reduce_sum", "reduce_prod"), ("float32", "int32", "uint8")),
    ],
)
def test_a_reduction_over_nothing_is_its_neutral_value(op: str, dtype: DType):
    build = network((2, 0, 3), dtype=dtype)
    graph = build.finish([build.add(op, ["x0"], {"axes": (1,), "keepdims": True})])
    assert_same(graph)
    (made,) = run_graph(graph, {"x0": np.zeros((2, 0, 3), dtype)}).values()
    kind = np.dtype(dtype).kind
    limits = (-np.inf, np.inf) if kind == "f" else (False, True)
    if kind in "iu":
        limits = (np.iinfo(dtype).min, np.iinfo(dtype).max)
    neutral = {"reduce_sum": 0, "reduce_prod": 1, "reduce_max": limits[0], "reduce_min": limits[1]}
    assert made.tolist() == np.full((2, 1, 3), neutral[op], dtype).tolist()


def test_other_networks_are_left_alone():
    build = network((2, 3))
    graph = build.finish([build.add("relu", ["x0"])])
    assert fold_empty(graph) is graph

"""Random indices are valid, and reach as far as valid ones do."""

import numpy as np
import pytest

from retune.core.dtypes import INT32, DType, TensorType
from retune.graph.evaluate import random_inputs, run_graph
from retune.graph.graph import Graph, GraphBuilder
from retune.graph.passes.indices import index_counts, index_extents


def lookup(rows: int, dtype: DType = "int64", *moves: tuple[str, dict[str, object]]) -> Graph:
    """Rows of a table by indices that go through the moves."""
    build = GraphBuilder("net")
    value = build.input("ids", TensorType((2, 3), dtype))
    build.constant("table", np.arange(rows * 4, dtype=np.float32).reshape(rows, 4))
    for op, attrs in moves:
        value = build.add(op, [value], attrs)  # type: ignore[arg-type]
    return build.finish([build.add("gather", ["table", value], {"axis": 0})])


@pytest.mark.parametrize("rows", [1, 2, 30_000])
def test_indices_reach_the_whole_table(rows: int):
    graph = lookup(rows)
    assert index_counts(graph) == {"ids": rows}
    ids = random_inputs(graph)["ids"]
    assert 0 <= ids.min() <= ids.max() < rows
    assert run_graph(graph, {"ids": ids})


@pytest.mark.parametrize(
    ("dtype", "count"), [("int32", 1000), ("uint8", 256), ("int8", 128), ("bool", 2)]
)
def test_no_type_gets_values_that_it_does_not_have(dtype: DType, count: int):
    graph = lookup(1000, dtype, ("cast", {"to": "int64"}))
    assert index_counts(graph) == {"ids": count}


def test_moves_pass_indices_on():
    moves = (
        ("cast", {"to": "int32"}),
        ("reshape", {"shape": (3, 2)}),
        ("transpose", {"perm": (1, 0)}),
        ("slice", {"begins": (0, 1), "steps": (1, 1), "extents": (2, 2)}),
    )
    assert index_counts(lookup(77, "int64", *moves)) == {"ids": 77}


def test_indices_of_other_arithmetic_are_careful():
    assert index_counts(lookup(77, "int64", ("negative", {}))) == {"ids": 2}
    assert index_counts(lookup(1, "int64", ("abs", {}))) == {"ids": 1}


def test_the_smallest_table_counts():
    build = GraphBuilder("net")
    build.input("ids", TensorType((3,), "int64"))
    for name, rows in (("a", 9), ("b", 4)):
        build.constant(name, np.zeros((rows, 2), np.float32))
    found = [build.add("gather", [name, "ids"], {"axis": 0}) for name in "ab"]
    assert index_counts(build.finish([build.add("add", found)])) == {"ids": 4}


def test_extents_are_known_of_inputs_that_are_indices_as_they_are():
    moves = (("cast", {"to": "int32"}), ("reshape", {"shape": (6,)}), ("abs", {}))
    assert index_extents(lookup(77, "int64", *moves[:2])) == {"ids": 77}
    assert index_extents(lookup(77, "int64", *moves)) == {}
    part = ("slice", {"begins": (0, 1), "steps": (1, 1), "extents": (2, 2)})
    assert index_extents(lookup(77, "int64", part)) == {}
    assert index_extents(lookup(77, "float32", moves[0])) == {}


def test_what_is_no_index_is_free():
    build = GraphBuilder("net")
    build.input("n", TensorType((3,), "int64"))
    build.input("x", TensorType((3,)))
    build.add("cast", ["n"], {"to": "float32"}, outputs=["f"])
    graph = build.finish([build.add("add", ["f", "x"])])
    assert index_counts(graph) == {}
    assert set(random_inputs(graph)["n"].tolist()) <= {0, 1}


@pytest.mark.parametrize(("axis", "extent"), [(0, 5), (1, 7)])
def test_indices_of_elements_and_of_places_are_known(axis: int, extent: int):
    build = GraphBuilder("net")
    build.input("i", TensorType((5, 7), "int64"))
    build.constant("data", np.zeros((5, 7), np.float32))
    build.add("gather_elements", ["data", "i"], {"axis": axis}, outputs=["y"])
    assert index_counts(build.finish(["y"])) == {"i": extent}
    build = GraphBuilder("net")
    build.input("i", TensorType((1, 3), "int64"))
    build.add("last_writers", ["i"], {"places": 4}, outputs=["y"])
    assert index_counts(build.finish(["y"])) == {"i": 4}


@pytest.mark.parametrize(("axis", "along", "extent"), [(0, 1, 30), (1, 0, 64)])
def test_indices_into_packed_tables_reach_all_of_them(axis: int, along: int, extent: int):
    build = GraphBuilder("net")
    build.input("ids", TensorType((2, 3), "int64"))
    build.constant("table", np.zeros((30, 32), np.uint8))
    blocks = (30, 4) if along else (2, 64)
    for name in ("scale", "zero"):
        build.constant(name, np.ones(blocks, np.float32))
    attrs = {"axis": axis, "along": along, "bits": 4, "block": 16}
    graph = build.finish([build.add("gather_blocks", ["table", "ids", "scale", "zero"], attrs)])
    assert index_counts(graph) == index_extents(graph) == {"ids": extent}


def test_joined_indices_count_together():
    build = GraphBuilder("net")
    for name in "ab":
        build.input(name, TensorType((2,), "int64"))
    build.constant("table", np.zeros((6, 2), np.float32))
    both = build.add("concat", ["a", "b"], {"axis": 0})
    graph = build.finish([build.add("gather", ["table", both], {"axis": 0})])
    assert index_counts(graph) == {"a": 6, "b": 6}


def test_trees_of_a_task_stay_inside_of_their_arrays():
    """Tasks are measured with random constants: features, nodes and leaves that there are."""
    build = GraphBuilder("net")
    types = {"x": ("float32", 5, 7), "splits": ("int32", 9), "limits": ("float32", 9)}
    types |= {"children": ("int32", 9, 2), "roots": ("int32", 4), "weights": ("float32", 9, 3)}
    inputs = [
        build.input(n, TensorType(tuple(shape), DType(dtype)))
        for n, (dtype, *shape) in types.items()
    ]
    leaves = build.add("tree_leaves", inputs[:5], {"depth": 3, "flags": 3})
    groups = build.add("reshape", [leaves], {"shape": (5, 1, 4)})
    graph = build.finish([build.add("leaf_sums", [groups, "weights"], {"reducer": "sum"})])
    assert index_counts(graph) == {"splits": 28, "children": 9, "roots": 9}
    assert run_graph(graph, random_inputs(graph))


@pytest.mark.parametrize("columns", [False, True])
def test_features_that_a_task_reads_are_there(columns: bool):
    build = GraphBuilder("net")
    shapes = {"keys": (1, 7, 5) if columns else (1, 5, 7), "features": (3, 8)}
    shapes |= {"limits": (1, 3, 8), "masks": (3, 8)}
    inputs = [build.input(name, TensorType(shape, INT32)) for name, shape in shapes.items()]
    made = build.add("tree_exits", inputs, {"parts": 2, "columns": columns})
    assert index_counts(build.finish([made])) == {"features": 7}


def test_leaves_that_a_task_reads_are_nodes():
    build = GraphBuilder("net")
    leaves = build.input("leaves", TensorType((5, 1, 4), "int32"))
    build.constant("weights", np.zeros((9, 3), np.float32))
    made = build.add("leaf_sums", [leaves, "weights"], {"reducer": "max"})
    assert index_counts(build.finish([made])) == {"leaves": 9}

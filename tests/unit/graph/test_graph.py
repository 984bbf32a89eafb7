"""Graph values: invariants, text, keys, and what the builder does."""

import dataclasses

import numpy as np
import pytest

from retune.core.dtypes import INT7, INT8, UINT8, TensorType
from retune.core.errors import InputError, LookupFailed, ModelError
from retune.graph.evaluate import run_graph
from retune.graph.graph import Graph, GraphBuilder, Node
from retune.ops import lookup


def small() -> Graph:
    build = GraphBuilder("small")
    build.input("x", TensorType((2, 3)))
    build.constant("w", np.ones((4, 3), np.float32))
    build.add("dense", ["x", "w"], outputs=["d"])
    build.add("relu", ["d"], outputs=["y"])
    return build.finish(["y"])


def test_text_is_deterministic():
    assert str(small()) == (
        "graph small\n"
        "  input x: float32[2, 3]\n"
        "  constant w: float32[4, 3]\n"
        "  d = dense(x, w): float32[2, 4]\n"
        "  y = relu(d): float32[2, 4]\n"
        "  return y\n"
    )


def test_the_key_follows_the_content():
    graph = small()
    assert graph.key == small().key
    assert graph.key == dataclasses.replace(graph, name="other").key
    changed = dataclasses.replace(graph, constants={"w": np.zeros((4, 3), np.float32)})
    assert changed.key != graph.key


def test_neighbours():
    graph = small()
    assert graph.producer("x") is None
    assert graph.producer("y") is graph.nodes[1]
    assert graph.consumers("d") == (graph.nodes[1],)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: {"nodes": g.nodes[::-1]}, "reads 'd', which no earlier node"),
        (lambda g: {"outputs": ("z",)}, "output 'z' is never made"),
        (lambda g: {"inputs": ("x", "d")}, "'d' is made more than once"),
        (lambda g: {"types": {**g.types, "y": TensorType((2, 5))}}, "the graph states"),
        (lambda g: {"constants": {"w": np.ones(3, np.float32)}}, "constant 'w' holds"),
        (lambda g: {"types": {k: v for k, v in g.types.items() if k != "y"}}, "'y' has no type"),
    ],
)
def test_verify_names_what_is_wrong(change, message):
    graph = small()
    with pytest.raises(ModelError, match=message):
        dataclasses.replace(graph, **change(graph)).verify()


def test_dead_nodes_are_dropped():
    build = GraphBuilder("net")
    build.input("x", TensorType((2,)))
    build.constant("unused", np.ones(2, np.float32))
    build.add("relu", ["x"], outputs=["dead"])
    graph = build.finish([build.add("exp", ["x"])])
    assert [node.op for node in graph.nodes] == ["exp"]
    assert not graph.constants


def test_a_folding_builder_computes_constants():
    build = GraphBuilder("net", fold=True)
    build.constant("a", np.array([1.0, 2.0], np.float32))
    graph = build.finish([build.add("add", ["a", "a"])])
    assert not graph.nodes
    np.testing.assert_array_equal(graph.constants["add"], [2.0, 4.0])


def test_a_narrow_type_is_kept_only_where_the_values_have_it():
    """As passes move and fold a constant: its transpose is as narrow."""
    build = GraphBuilder("net", fold=True)
    x = build.input("x", TensorType((2, 3), UINT8))
    weight = np.asarray([[64, -64, 0], [1, 2, 3]], np.int8)
    narrow, wide = (build.constant("w", weight + more, INT7) for more in (np.int8(0), np.int8(1)))
    assert [build.types[name].dtype for name in (narrow, wide)] == [INT7, INT8]
    turned = build.add("transpose", (narrow,), {"perm": (1, 0)})
    assert build.types[turned] == TensorType((3, 2), INT7)
    graph = build.finish([build.add("dense", (x, narrow))]).verify()
    stated = {**graph.types, "w": TensorType((2, 3), INT7)}
    broken = dataclasses.replace(graph, types=stated, constants={"w": weight + np.int8(1)})
    with pytest.raises(ModelError, match="constant 'w' holds int8"):
        broken.verify()


def test_a_builder_refuses_a_name_twice():
    build = GraphBuilder("net")
    build.input("x", TensorType((2,)))
    with pytest.raises(ModelError, match="'x' is made more than once"):
        build.add("relu", ["x"], outputs=["x"])


def test_an_unknown_op_lists_close_ones():
    with pytest.raises(LookupFailed, match="conv2d"):
        lookup("conv2")


def test_running_checks_the_inputs():
    with pytest.raises(InputError, match="input 'x' is missing; expected float32"):
        run_graph(small(), {})
    with pytest.raises(InputError, match=r"should be float32\[2, 3\]; got float64\[3, 2\]"):
        run_graph(small(), {"x": np.zeros((3, 2))})


def test_a_node_prints_as_an_assignment():
    node = Node(op="lrn", name="n", inputs=("x",), outputs=("y",), attrs={"size": 3, "axis": 1})
    assert str(node) == "y = lrn(x, axis=1, size=3)"

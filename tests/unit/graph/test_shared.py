"""What several nodes compute from the same values is computed once."""

import numpy as np

from retune.core.dtypes import TensorType
from retune.graph.evaluate import random_inputs, run_graph
from retune.graph.graph import GraphBuilder
from retune.graph.passes.shared import share_equal


def test_equal_nodes_are_one_but_for_moves_and_outputs():
    build = GraphBuilder("repeated")
    build.input("x", TensorType((2, 3)))
    build.input("y", TensorType((3, 2)))
    parts: list[str] = []
    for scale in (2.0, 2.0, 3.0):
        factor = build.constant("factor", np.asarray(scale, np.float32))
        turned = build.add("transpose", ["x"], {"perm": (1, 0)})
        scaled = build.add("multiply", [build.add("relu", [turned]), factor])
        parts.append(build.add("add", [scaled, "y"]))
    moved = [build.add("transpose", ["x"], {"perm": (1, 0)}) for _ in range(2)]
    outputs = [build.add("add", [moved[0], "y"], outputs=["a"])]
    outputs += [build.add("add", [moved[1], "y"], outputs=["b"])]
    total = build.add("add", [parts[0], parts[1]])
    graph = build.finish([*outputs, build.add("add", [total, parts[2]], outputs=["c"])])
    shared = share_equal(graph).verify()
    ops = sorted(node.op for node in shared.nodes)
    assert ops == sorted(
        ["transpose"] * 3 + ["relu"] + ["multiply"] * 2 + ["add"] * 2 + ["add"] * 4
    )
    data = random_inputs(graph)
    for name, array in run_graph(graph, data).items():
        np.testing.assert_array_equal(array, run_graph(shared, data)[name])


def test_a_graph_without_repetitions_stays_as_it_is():
    build = GraphBuilder("plain")
    build.input("x", TensorType((4,)))
    graph = build.finish([build.add("relu", [build.add("negative", ["x"])], outputs=["y"])])
    assert share_equal(graph) is graph

"""Very wide joins and cuts mean the same in levels, and no level is wide."""

from collections import Counter

import numpy as np
import pytest

from retune.core.dtypes import TensorType
from retune.graph.evaluate import run_graph
from retune.graph.graph import Graph, GraphBuilder
from retune.graph.passes.wide import LEVEL_PARTS, MOST_PARTS, narrow_joins


def joined(parts: int, width: int, step: int) -> Graph:
    """Slices of columns that begin `step` apart, each with its own factor, side by side."""
    build = GraphBuilder("wide")
    x = build.input("x", TensorType((2, step * (parts - 1) + width)))
    made: list[str] = []
    for number in range(parts):
        cut = {"begins": (0, number * step), "extents": (2, width), "steps": (1, 1)}
        factor = build.constant(f"w{number}", np.float32(number + 1))
        made.append(build.add("multiply", [build.add("slice", [x], cut), factor]))
    return build.finish([build.add("concat", made, {"axis": 1})])


def widths(graph: Graph) -> tuple[int, int]:
    """Most parts of a concatenation, most slices of a value."""
    joins = [len(node.inputs) for node in graph.nodes if node.op == "concat"]
    cuts = Counter(node.inputs[0] for node in graph.nodes if node.op == "slice")
    return max(joins), max(cuts.values())


@pytest.mark.parametrize(("parts", "width", "step"), [(300, 1, 1), (129, 3, 2), (300, 2, 3)])
def test_levels_compute_the_same(parts, width, step):
    graph = joined(parts, width, step)
    narrow = narrow_joins(graph).verify()
    assert max(widths(narrow)) <= LEVEL_PARTS
    shape = graph.types["x"].shape
    feeds = {"x": np.arange(np.prod(shape), dtype=np.float32).reshape(shape)}
    (output,) = graph.outputs
    np.testing.assert_array_equal(run_graph(narrow, feeds)[output], run_graph(graph, feeds)[output])


def test_there_are_as_many_levels_as_it_takes():
    build = GraphBuilder("wide")
    x = build.input("x", TensorType((1, 1)))
    graph = build.finish([build.add("concat", [x] * (LEVEL_PARTS**2 + 1), {"axis": 1})])
    assert widths_of_joins(narrow_joins(graph)) == [LEVEL_PARTS] * (LEVEL_PARTS + 1) + [2]


def widths_of_joins(graph: Graph) -> list[int]:
    return [len(node.inputs) for node in graph.nodes]


def test_slices_that_share_no_range_stay_as_they_are():
    """Each is nearly all of the value: what many of them lie in is no less."""
    graph = joined(4 * MOST_PARTS, 10 * MOST_PARTS, 1)
    assert widths(narrow_joins(graph))[1] == 4 * MOST_PARTS


def test_usual_joins_and_cuts_stay_as_they_are():
    graph = joined(MOST_PARTS, 2, 2)
    assert [str(n) for n in narrow_joins(graph).nodes] == [str(n) for n in graph.nodes]

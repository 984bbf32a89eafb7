"""Extents that depend on data are sizes of the graph: their bounds, and what runs on the host."""

import numpy as np
import pytest

from retune.core.dims import Size, apart
from retune.frontend.host.step import step_of
from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import run_graph
from retune.graph.fuse import partition
from retune.graph.graph import Graph
from retune.graph.passes.pipeline import optimise
from retune.ops.registry import HOST
from tests.support.counted import NETWORKS, SHARES
from tests.support.host import model


def _counts(graph: Graph) -> dict[str, int]:
    return {size.name: size.most for size in graph.sizes}


@pytest.mark.parametrize("name", NETWORKS)
def test_kernels_compute_behind_a_count(name: str) -> None:
    made, feeds = NETWORKS[name]
    with apart() as assumed:
        graph = import_model(made, counts=True)
        after = optimise(graph).verify()
    assert not assumed.conditions
    assert all(len(step_of(node.attrs).ops) == 1 for node in after.nodes if node.op == HOST)
    plain, rng = import_model(made), np.random.default_rng(3)
    for share in SHARES:
        inputs = feeds(rng, share)
        expected = run_graph(plain, inputs)
        for each in (graph, after):
            found = run_graph(each, inputs)
            for value, array in expected.items():
                np.testing.assert_allclose(found[value], array, rtol=1e-5)


def test_what_reads_a_count_alone_comes_behind_the_step_that_finds_it() -> None:
    """The smaller one of a count and a number: how many the largest are, of which one is read."""
    text = """
    <ir_version: 8, opset_import: ["": 17]>
    net (float[64] x) => (int64[n] y) <int64[1] few = {5}, int64[1] none = {0}> {
      at = NonZero (x) row = Squeeze (at, none) g = Gather (x, row) r = Exp (g)
      count = Shape (r) k = Min (count, few) v, i = TopK (r, k) y = Neg (i) }"""
    graph = optimise(import_model(model(text), counts=True))
    assert {size.name: value for size, (value, _) in graph.sizes.items()} == {
        "count_at": "at",
        "count_v": "i",
    }
    ops = [group.anchor.op for group in partition(graph)]
    assert ops.index("host") < ops.index("minimum")
    found = run_graph(graph, {"x": (np.arange(64) % 8 == 7).astype(np.float32)})
    assert found["y"].shape == (5,)


@pytest.mark.parametrize(
    ("node", "most"),
    [
        ("v = NonZero (x)", 24),
        ("v = Unique <axis = 1> (x)", 6),
        ("v, i = TopK (x, k)", 6),
        ("v = NonMaxSuppression (boxes, scores, kept)", 2 * 3 * 5),
        ("v = Range (zero, limit, one)", 4096),
    ],
)
def test_a_count_has_a_bound(node: str, most: int) -> None:
    text = f"""
    <ir_version: 8, opset_import: ["": 17]>
    net (float[4, 6] x, int64[1] k, float[2, 9, 4] boxes, float[2, 3, 9] scores, int64 limit)
      => (float[n] y)
    <int64[1] kept = {{5}}, int64 zero = {{0}}, int64 one = {{1}}>
    {{ {node} f = Cast <to = 1> (v) y = Flatten <axis = 0> (f) }}"""
    graph = import_model(model(text), counts=True)
    assert _counts(graph) == {"count_v": most}
    assert graph.sizes[Size("count_v", 0, most, counted=True)][0] == "v"


def test_axes_that_are_computed_may_be_any() -> None:
    """The extents of such a slice are counts along all axes."""
    text = """
    <ir_version: 8, opset_import: ["": 17]>
    net (float[4, 6] x, int64[1] start, int64[1] end, int64[1] axis) => (float[n, m] y)
    { v = Slice (x, start, end, axis) y = Exp (v) }"""
    graph = import_model(model(text), counts=True)
    assert sorted(_counts(graph).values()) == [4, 6]
    x = np.arange(24, dtype=np.float32).reshape(4, 6) / 24
    for axis, part in enumerate((x[1:3], x[:, 1:3])):
        places = {"start": 1, "end": 3, "axis": axis}
        inputs = {"x": x, **{name: np.array([each]) for name, each in places.items()}}
        np.testing.assert_allclose(run_graph(graph, inputs)["y"], np.exp(part), rtol=1e-5)


def test_what_depends_on_a_count_at_import_runs_on_the_host() -> None:
    text = """
    <ir_version: 8, opset_import: ["": 17]>
    net (float[30] x) => (float[n] y, float[m] z)
    <int64[1] most = {4}, int64[1] first = {0}>
    {
      at = NonZero (x)
      row = Squeeze (at, first)
      v = Gather (x, row)
      count = Shape (v)
      k = Min (count, most)
      z, places = TopK (v, k)
      y = Exp (z)
    }"""
    graph = import_model(model(text), counts=True)
    assert [n.op for n in graph.nodes if n.op in (HOST, "exp")] == [HOST, HOST, "exp"]
    for zeros in (0, 28, 30):
        x = np.arange(30, dtype=np.float32) * (np.arange(30) >= zeros)
        found, expected = run_graph(graph, {"x": x}), run_graph(import_model(model(text)), {"x": x})
        np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-5)


def test_suppression_without_a_limit_keeps_no_box() -> None:
    """The limit is a constant of no elements, which is as if it was left out."""
    text = """
    <ir_version: 8, opset_import: ["": 17]>
    net (float[2, 9, 4] boxes, float[2, 3, 9] scores) => (float[n, 3] y)
    <int64[0] nothing = {}>
    { v = NonMaxSuppression (boxes, scores, nothing) y = Cast <to = 1> (v) }"""
    assert set(_counts(import_model(model(text), counts=True)).values()) <= {0}

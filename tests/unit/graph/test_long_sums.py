"""However additions are ordered, long sums are exact: each adds few, or numbers around zero."""

from math import prod

import numpy as np
import pytest

from retune.core.dtypes import TensorType
from retune.graph.evaluate import run_graph
from retune.graph.graph import Graph, GraphBuilder
from retune.graph.lower import group_tensors
from retune.ir.te import Compute

LAYOUTS = {"NHWC": (1, 2), "NCHW": (2, 3)}
SHAPES = [
    ("reduce_mean", (3, 5000), (1,)),
    ("reduce_sum", (70000, 2), (0, 1)),
    ("reduce_mean", (2, 80, 3, 90), (1, 3)),
    ("reduce_sum", (4, 64, 64), (1, 2)),
    ("reduce_sum", (1, 3, 9000, 7), (1, 2, 3)),
]


def reduction(op: str, shape: tuple[int, ...], axes: tuple[int, ...], keep: int) -> Graph:
    build = GraphBuilder("net")
    attrs = {"axes": axes, "keepdims": keep}
    build.add(op, [build.input("x", TensorType(shape))], attrs, outputs=["y"])
    return build.finish(["y"]).verify()


def pooling(layout: str, extents: tuple[int, int]) -> Graph:
    shape = {"NHWC": (1, *extents, 3), "NCHW": (1, 3, *extents)}
    build = GraphBuilder("net")
    x = build.input("x", TensorType(shape[layout]))
    build.add("global_avg_pool", [x], {"layout": layout}, outputs=["y"])
    return build.finish(["y"]).verify()


def most_added(graph: Graph) -> int:
    """Elements that a sum of one of its stages takes, at most."""
    made = [stage.op for stage in group_tensors(graph).dag.stages]
    sums = [op.reduce_axes for op in made if isinstance(op, Compute) and op.reducer]
    return max(prod(axis.extent for axis in axes) for axes in sums)


def assert_exact(graph: Graph, axes: tuple[int, ...], *, mean: bool) -> None:
    assert most_added(graph) <= 4096
    shape = graph.types["x"].shape
    x = np.random.default_rng(3).random(shape).astype(np.float32)
    wide = x.astype(np.float64).sum(axes) / (prod(shape[d] for d in axes) if mean else 1)
    found = run_graph(graph, {"x": x})["y"]
    np.testing.assert_allclose(found.ravel(), wide.ravel(), rtol=5e-7)


def test_parts_are_equal_where_they_can_be():
    made = group_tensors(reduction("reduce_sum", (1_000_000,), (0,), 0)).dag.stages
    assert not any("select" in str(stage.op) for stage in made)


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize(("op", "shape", "axes"), SHAPES)
def test_reductions(op: str, shape: tuple[int, ...], axes: tuple[int, ...], keep: int):
    assert_exact(reduction(op, shape, axes, keep), axes, mean=op == "reduce_mean")


@pytest.mark.parametrize("extents", [(100, 130), (1, 9001), (9001, 1), (64, 65)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_global_pooling(layout: str, extents: tuple[int, int]):
    assert_exact(pooling(layout, extents), LAYOUTS[layout], mean=True)


@pytest.mark.parametrize("axes", [(1,), (1, 2)])
def test_norms_around_a_large_mean_are_as_exact_as_its_last_bit(axes: tuple[int, ...]):
    build = GraphBuilder("net")
    x = build.input("x", TensorType((4, 96, 8)))
    attrs = {"axes": axes, "epsilon": 1e-5, "centred": 1}
    build.add("standardise", [x], attrs, outputs=["y"])
    values = np.random.default_rng(4).normal(1000, 1, (4, 96, 8)).astype(np.float32)
    wide = values.astype(np.float64)
    spread = np.sqrt(wide.var(axes, keepdims=True) + 1e-5)
    expected = (wide - wide.mean(axes, keepdims=True)) / spread
    found = run_graph(build.finish(["y"]).verify(), {"x": values})["y"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1.1 * np.spacing(np.float32(1000)))


def test_short_sums_are_one_stage():
    assert len(group_tensors(pooling("NHWC", (64, 64))).dag.stages) == 2

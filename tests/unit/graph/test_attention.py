"""Products of attention are joined where the device computes them by one kernel."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from retune.core.dtypes import FLOAT16, FLOAT32, TF32, DType, TensorType
from retune.core.ranges import Extents
from retune.graph.evaluate import run_graph
from retune.graph.graph import Graph, GraphBuilder
from retune.graph.passes.attention import AttentionFusion, fuse_attention
from retune.graph.passes.pipeline import optimise
from retune.graph.passes.precision import Precision

_TILES = AttentionFusion(tiles=True)
_FUSING = Precision(own=frozenset([FLOAT16]), attention=_TILES)
_FEW = Precision(attention=AttentionFusion(most_keys=100))


def attention(
    rows: int = 12, *, dtype: DType = FLOAT16, bias: np.ndarray | None = None, width: int = 16
) -> Graph:
    """Queries, keys and values by heads, the scores scaled by a quarter."""
    build = GraphBuilder("attention")
    q, k, v = (build.input(n, TensorType((2, rows, width), dtype)) for n in "qkv")
    turned = build.add("transpose", [k], {"perm": (0, 2, 1)})
    scores = build.add("matmul", [q, turned])
    scores = build.add("multiply", [scores, build.constant("c", np.asarray(0.25, dtype.numpy))])
    if bias is not None:
        scores = build.add("add", [scores, build.constant("b", bias.astype(dtype.numpy))])
    weights = build.add("softmax", [scores], {"axis": 2})
    return build.finish([build.add("matmul", [weights, v])])


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


@pytest.mark.parametrize("bias", [None, np.linspace(-1, 1, 12 * 12).reshape(1, 12, 12)])
def test_it_is_one_op_that_means_the_same(bias: np.ndarray | None):
    graph = attention(bias=bias)
    joined = optimise(graph, precision=_FUSING)
    assert ops(joined) == ["attention"]
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal(graph.types[n].shape).astype(np.float16) for n in "qkv"}
    (name,) = graph.outputs
    found, expected = (run_graph(g, feeds)[name].astype(float) for g in (joined, graph))
    assert np.abs(found - expected).max() < 2e-3


def test_a_constant_that_hides_just_what_follows_is_causal():
    hidden = np.triu(np.full((12, 12), -6e4), 1)
    (node,) = fuse_attention(attention(bias=hidden), _TILES).nodes
    assert node.attrs["causal"] == 0 and len(node.inputs) == 3
    hidden[3, 4] = 0.0
    (node,) = fuse_attention(attention(bias=hidden), _TILES).nodes
    assert "causal" not in node.attrs and len(node.inputs) == 4


@pytest.mark.parametrize(
    "make",
    [
        partial(attention, dtype=FLOAT32),
        partial(attention, rows=4),
        partial(attention, width=12),
    ],
    ids=["float32", "few queries", "odd width"],
)
def test_what_no_kernel_computes_stays(make: partial[Graph]):
    assert "attention" not in ops(optimise(make(), precision=_FUSING))


def test_products_of_tf32_are_one_op():
    """What the op multiplies is rounded as what the products multiplied."""
    graph = attention(dtype=FLOAT32)
    rounded = replace(_FUSING, operands=TF32)
    joined = optimise(graph, precision=rounded)
    (node,) = joined.nodes
    assert node.op == "attention" and node.attrs["operands"] == TF32
    apart = optimise(graph, precision=replace(rounded, attention=AttentionFusion()))
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal(graph.types[n].shape).astype(np.float32) for n in "qkv"}
    (name,) = graph.outputs
    found, expected = (run_graph(g, feeds)[name] for g in (joined, apart))
    assert np.abs(found - expected).max() < 1e-5
    assert np.abs(found - run_graph(graph, feeds)[name]).max() > 1e-5, "they are rounded"


def decoding(queries: int = 8, *, bias: bool = False) -> Graph:
    """A token's queries by shared heads, whose softmax is over heads of their own."""
    build = GraphBuilder("decoding")
    keys = Extents.of("keys", ("1..64",)).dim
    q = build.input("q", TensorType((2, queries, 16), FLOAT32))
    k, v = (build.input(n, TensorType((2, keys, 16), FLOAT32)) for n in "kv")
    scores = build.add("matmul", [q, build.add("transpose", [k], {"perm": (0, 2, 1)})])
    scores = build.add("multiply", [scores, build.constant("c", np.float32(0.25))])
    apart = build.add("reshape", [scores], {"shape": (2 * queries, 1, keys)})
    if bias:
        apart = build.add("add", [apart, build.constant("b", np.ones((2 * queries, 1, 1), "f4"))])
    weights = build.add("softmax", [apart], {"axis": 2})
    joined = build.add("reshape", [weights], {"shape": (2, queries, keys)})
    return build.finish([build.add("matmul", [joined, v])])


@pytest.mark.parametrize("bias", [False, True])
def test_few_queries_of_any_floats_are_one_op(bias: bool):
    graph = decoding(bias=bias)
    joined = optimise(graph, precision=_FEW)
    assert [op for op in ops(joined) if op != "reshape"] == ["attention"]
    rng = np.random.default_rng(0)
    feeds = {
        n: rng.standard_normal((2, rows, 16)).astype(np.float32)
        for n, rows in zip("qkv", (8, 20, 20), strict=True)
    }
    (name,) = graph.outputs
    found, expected = (run_graph(g.at({"keys": 20}), feeds)[name] for g in (joined, graph))
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("queries", "most_keys"),
    [(9, 100), (1, 100), (8, 63), (8, 0)],
    ids=["many queries", "one query", "keys", "device"],
)
def test_other_queries_and_more_keys_than_a_group_holds_stay_products(queries: int, most_keys: int):
    few = Precision(attention=AttentionFusion(most_keys=most_keys))
    assert "attention" not in ops(optimise(decoding(queries), precision=few))


def test_other_devices_have_products():
    assert "attention" not in ops(optimise(attention(), precision=Precision(own=_FUSING.own)))

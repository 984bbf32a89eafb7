"""Each op's tensor expression computes the op's numpy meaning."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retune.core.dtypes import TensorType
from retune.graph.evaluate import run_graph
from retune.graph.fuse import group_graph, partition
from retune.graph.graph import Graph, GraphBuilder
from retune.graph.lower import group_tensors
from retune.graph.models import load_model
from retune.graph.ops import OPS
from retune.graph.passes import optimise
from retune.graph.tensors import RULES
from retune.ir.interp import run_dag
from tests.unit.graph.networks import dag_of, random_network

WINDOW: dict[str, Any] = {"strides": (2, 1), "dilations": (1, 1)}
WINDOW3: dict[str, Any] = {"strides": (1, 2, 1), "dilations": (1,) * 3, "pads": (1, 0, 1, 0, 1, 1)}
STATISTICS: dict[str, Any] = {"axis": 1, "epsilon": 1e-3}
LRN: dict[str, Any] = {"size": 3, "alpha": 0.1, "beta": 0.75, "bias": 2.0}

CASES: list[tuple[str, list[Any], dict[str, Any]]] = [
    (
        "conv2d",
        [(2, 4, 7, 5), (6, 2, 3, 3)],
        WINDOW | {"pads": (1, 0, 2, 1), "groups": 2, "layout": "NCHW"},
    ),
    (
        "conv2d",
        [(1, 7, 5, 4), (3, 1, 2, 6)],
        WINDOW | {"pads": (0,) * 4, "groups": 2, "layout": "NHWC"},
    ),
    (
        "conv2d",
        [(1, 9, 9, 3), (3, 3, 3, 5)],
        {
            "strides": (1, 1),
            "dilations": (2, 3),
            "pads": (2, 3, 2, 3),
            "groups": 1,
            "layout": "NHWC",
        },
    ),
    (
        "conv2d",
        [(1, 5, 6, 6), (4, 5, 1, 1)],
        WINDOW | {"pads": (0,) * 4, "groups": 1, "layout": "NCHW"},
    ),
    (
        "conv2d",
        [(1, 2, 6, 6), (4, 2, 3, 3)],
        WINDOW | {"pads": (-1, 0, 0, -1), "groups": 1, "layout": "NCHW"},
    ),
    ("conv3d", [(1, 2, 4, 5, 6), (3, 2, 2, 3, 3)], WINDOW3 | {"groups": 1, "layout": "NCDHW"}),
    (
        "depthwise_conv2d",
        [(1, 4, 6, 5), (8, 1, 3, 3)],
        WINDOW | {"pads": (1,) * 4, "layout": "NCHW"},
    ),
    (
        "depthwise_conv2d",
        [(1, 6, 5, 4), (3, 3, 4, 2)],
        WINDOW | {"pads": (1,) * 4, "layout": "NHWC"},
    ),
    (
        "depthwise_conv2d",
        [(1, 6, 5, 4), (1, 1, 4, 1)],
        WINDOW | {"pads": (0,) * 4, "layout": "NHWC"},
    ),
    ("dense", [(3, 7), (5, 7)], {}),
    ("matmul", [(2, 1, 3, 4), (5, 4, 6)], {}),
    (
        "max_pool2d",
        [(1, 3, 7, 6)],
        WINDOW | {"kernel": (3, 2), "pads": (1, 0, 1, 1), "layout": "NCHW"},
    ),
    ("max_pool2d", [(1, 7, 6, 3)], WINDOW | {"kernel": (1, 1), "pads": (0,) * 4, "layout": "NHWC"}),
    ("max_pool3d", [(1, 2, 4, 5, 5)], WINDOW3 | {"kernel": (2, 2, 3), "layout": "NCDHW"}),
    (
        "avg_pool2d",
        [(1, 3, 7, 6)],
        WINDOW | {"kernel": (3, 2), "pads": (1, 0, 1, 1), "counted": (0,) * 4, "layout": "NCHW"},
    ),
    (
        "avg_pool2d",
        [(1, 7, 6, 3)],
        WINDOW
        | {"kernel": (3, 2), "pads": (1, 0, 2, 1), "counted": (1, 0, 1, 1), "layout": "NHWC"},
    ),
    (
        "avg_pool2d",
        [(1, 7, 6, 3)],
        {
            "strides": (2, 2),
            "dilations": (2, 1),
            "kernel": (2, 3),
            "pads": (1, 1, 1, 1),
            "counted": (0,) * 4,
            "layout": "NHWC",
        },
    ),
    (
        "avg_pool2d",
        [(1, 7, 6, 3)],
        WINDOW | {"kernel": (2, 2), "pads": (1,) * 4, "counted": (1,) * 4, "layout": "NHWC"},
    ),
    (
        "avg_pool3d",
        [(1, 2, 4, 5, 5)],
        WINDOW3 | {"kernel": (2, 2, 3), "counted": (0,) * 6, "layout": "NCDHW"},
    ),
    ("global_avg_pool", [(2, 3, 5, 4)], {"layout": "NCHW"}),
    ("global_avg_pool", [(2, 5, 4, 3)], {"layout": "NHWC"}),
    ("global_max_pool", [(2, 5, 4, 3)], {"layout": "NHWC"}),
    ("softmax", [(2, 5, 3)], {"axis": 1}),
    ("softmax", [(7,)], {"axis": 0}),
    ("log_softmax", [(2, 5)], {"axis": 1}),
    ("standardise", [(2, 3, 4)], {"axes": (1, 2), "epsilon": 1e-3, "centred": True}),
    ("standardise", [(2, 3, 4)], {"axes": (0,), "epsilon": 1e-3, "centred": False}),
    ("standardise", [(7,)], {"axes": (0,), "epsilon": 0.0, "centred": True}),
    ("lrn", [(1, 5, 3, 2)], LRN | {"axis": 1}),
    ("lrn", [(1, 3, 2, 5)], LRN | {"axis": 3}),
    ("reduce_mean", [(2, 3, 4)], {"axes": (0, 2), "keepdims": False}),
    ("reduce_sum", [(2, 3, 4)], {"axes": (1,), "keepdims": True}),
    ("reduce_max", [(2, 3, 4)], {"axes": (2,), "keepdims": False}),
    ("reduce_min", [(2, 3, 4)], {"axes": (0,), "keepdims": True}),
    ("batch_norm", [(1, 3, 4, 4), (3,), (3,), (3,), "positive:3"], STATISTICS),
    ("transpose", [(2, 3, 4, 5)], {"perm": (3, 0, 2, 1)}),
    ("reshape", [(2, 3, 4)], {"shape": (4, 1, 6)}),
    ("concat", [(2, 3, 4), (2, 1, 4)], {"axis": 1}),
    ("pad", [(2, 3)], {"pads": (1, 0, -1, 2), "value": 1.5}),
    ("slice", [(6, 7)], {"begins": (5, 1), "steps": (-2, 3), "extents": (3, 2)}),
    ("gather", [(4, 5, 2), np.array([[1, -1], [0, 4]])], {"axis": 1}),
    ("broadcast_to", [(3, 1)], {"shape": (2, 3, 4)}),
    ("where", [np.array([[True], [False]]), (2, 3), (1, 3)], {}),
    ("cast", [(2, 3)], {"to": "int32"}),
    ("cast", [np.array([0, 2], np.int32)], {"to": "bool"}),
    ("cast", [np.array([True, False])], {"to": "float32"}),
    ("log", ["positive:2,3"], {}),
    ("sqrt", ["positive:2,3"], {}),
    ("power", ["positive:2,3", (2, 3)], {}),
    ("power", [np.array([2, 3, -5], np.int64), np.array([10, 5, 3], np.int64)], {}),
    ("power", ["positive:2", np.array([2, 3], np.int32)], {}),
    ("divide", [np.array([-7, 7, 8], np.int32), np.array([2, -2, 4], np.int32)], {}),
    ("clip", [(2, 3)], {"min": -0.5, "max": 0.25}),
    ("leaky_relu", [(2, 3)], {"alpha": 0.1}),
    ("elu", [(2, 3)], {"alpha": 1.5}),
    ("selu", [(2, 3)], {"alpha": 1.67, "gamma": 1.05}),
    ("hard_sigmoid", [(2, 3)], {"alpha": 0.2, "beta": 0.5}),
    ("swish", [(2, 3)], {"alpha": 1.5}),
]
"""Op, inputs (shape, array, or `positive:shape`), attributes."""

PLAIN_UNARY = (
    *("relu", "sigmoid", "tanh", "hard_swish", "exp", "abs", "negative", "floor", "ceil", "round"),
    *("reciprocal", "softplus", "softsign", "erf", "identity", "gelu", "gelu_tanh", "mish"),
)
PLAIN_BINARY = (
    *("add", "subtract", "multiply", "divide", "minimum", "maximum", "prelu"),
    *("equal", "less", "greater"),
)

CASES += [(name, [(2, 3, 4)], {}) for name in PLAIN_UNARY]
CASES += [(name, [(2, 3, 4), (3, 1)], {}) for name in PLAIN_BINARY]


def _array(form: Any, rng: np.random.Generator) -> np.ndarray:
    match form:
        case np.ndarray():
            return form
        case str():
            shape = tuple(int(e) for e in form.removeprefix("positive:").split(","))
            return (rng.random(shape) + 0.5).astype(np.float32)
        case _:
            return rng.standard_normal(form).astype(np.float32)


def assert_lowered(graph: Graph, inputs: dict[str, np.ndarray]) -> None:
    lowered = group_tensors(graph)
    found = run_dag(lowered.dag, {lowered.inputs[name].name: a for name, a in inputs.items()})
    for name, expected in run_graph(graph, inputs).items():
        result = found[lowered.outputs[name].name]
        assert result.shape == expected.shape
        assert result.dtype == expected.dtype
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "forms", "attrs"), CASES, ids=[case[0] for case in CASES])
def test_an_op_as_tensors_is_its_numpy_meaning(name, forms, attrs):
    rng = np.random.default_rng(5)
    build = GraphBuilder(name)
    inputs = {f"in{i}": _array(form, rng) for i, form in enumerate(forms)}
    for value, array in inputs.items():
        build.input(value, TensorType(array.shape, str(array.dtype)))
    graph = build.finish([build.add(name, list(inputs), attrs)]).verify()
    assert_lowered(graph, inputs)


def test_every_op_has_a_tensor_expression_and_a_case():
    expressed = {name for name, entry in OPS.items() if entry.kind != "host"}
    assert expressed == set(RULES)
    assert expressed == {case[0] for case in CASES}


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 100_000), layout=st.sampled_from(["NCHW", "NHWC"]))
def test_groups_as_tensors_compute_what_the_groups_do(seed, layout):
    graph = optimise(random_network(seed), layout)
    rng = np.random.default_rng(seed)
    for group in partition(graph):
        part = group_graph(graph, group)
        assert_lowered(
            part,
            {name: rng.random(part.types[name].shape).astype(np.float32) for name in part.inputs},
        )


CONVOLUTION = """
data = PLACEHOLDER float32[1, 32, 32, 3]
weight = PLACEHOLDER float32[3, 3, 3, 32] constant
bias = PLACEHOLDER float32[1, 1, 1, 32] constant
PaddedInput(i0, i1, i2, i3) = select(1 <= i1 and i1 < 33 and 1 <= i2 and i2 < 33,
    data[i0, i1 - 1, i2 - 1, i3], 0.0)
conv2d_nhwc(nn, yy, xx, ff) +=
    PaddedInput[nn, yy*2 + ry, xx*2 + rx, rc] * weight[ry, rx, rc, ff]
T_add(i0, i1, i2, i3) = conv2d_nhwc[i0, i1, i2, i3] + bias[0, 0, 0, i3]
T_relu(i0, i1, i2, i3) = max(T_add[i0, i1, i2, i3], 0.0)
"""
"""The first group of MobileNet."""


def _bare(text: str) -> str:
    """Without what layout and precedence add: how expressions print is not this test's claim."""
    return re.sub(r"[\s()]", "", text)


def test_a_convolution_group_prints_as_loops(models):
    graph = optimise(load_model("zoo:mobilenet", {"data": (1, 3, 32, 32)}, models))
    group = partition(graph)[1]
    assert _bare(str(dag_of(graph, group))) == _bare(CONVOLUTION)


def test_equal_groups_give_equal_keys(mobilenet):
    graph = optimise(mobilenet)
    groups = [g for g in partition(graph) if g.kind == "conv2d"]
    same = [g for g in groups if graph.types[g.params[0]].shape == (1, 1, 512, 512)]
    assert len(same) == 5
    assert len({dag_of(graph, group).key for group in same}) == 1

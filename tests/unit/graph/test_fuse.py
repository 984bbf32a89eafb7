"""Groups cover a network, run in order, and are the tasks that are expected."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retune.core.dtypes import TensorType
from retune.frontend.models import load_model
from retune.graph import fuse
from retune.graph.evaluate import random_inputs, run_graph
from retune.graph.fuse import MOST_NODES, MOST_READ, Group, partition
from retune.graph.graph import Graph, GraphBuilder
from retune.graph.passes.pipeline import optimise
from tests.support.fuse import run_groups
from tests.support.networks import dag_of, random_network

EXPECTED = Path(__file__).parents[2] / "expected/mobilenet_nhwc_tasks.json"
"""The 22 search tasks of MobileNet; its comment says how the first one may differ."""


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 100_000), layout=st.sampled_from(["NCHW", "NHWC"]), joined=st.booleans())
def test_groups_in_order_compute_the_network(seed, layout, joined):
    graph = optimise(random_network(seed), layout)
    inputs = random_inputs(graph)
    found = run_groups(graph, inputs, joined=joined)
    for name, array in run_graph(graph, inputs).items():
        np.testing.assert_array_equal(found[name], array)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 100_000), joined=st.booleans())
def test_each_node_is_in_one_group(seed, joined):
    graph = optimise(random_network(seed))
    groups = partition(graph, joined=joined)
    members = [node.name for group in groups for node in group.nodes]
    assert Counter(members) == Counter(node.name for node in graph.nodes)
    names = [group.name for group in groups]
    assert len(set(names)) == len(names)
    assert all(name.isidentifier() for name in names)


def test_a_value_that_its_epilogue_reads_twice_stays_in_the_group():
    """Two functions of a product, added up; what the network gives out ends a group."""
    build = GraphBuilder("net")
    build.input("x", TensorType((4, 3)))
    build.constant("w", np.ones((5, 3), np.float32))
    y = build.add("dense", ["x", "w"])
    swish = build.add("multiply", [y, build.add("sigmoid", [y])])
    both = build.add("add", [build.add("tanh", [swish]), build.add("relu", [swish])])
    build.add("exp", [both], outputs=["out"])
    last = build.add("negative", [build.add("multiply", [both, "out"])], outputs=["last"])
    groups = partition(build.finish(["out", last]))
    assert [[node.op for node in group.nodes] for group in groups] == [
        ["dense", "sigmoid", "multiply", "tanh", "relu", "add"],
        ["exp"],
        ["multiply", "negative"],
    ]


@pytest.mark.parametrize("shown", [False, True])
def test_joined_groups_take_in_what_they_alone_read(shown: bool):
    """The gates of a recurrent step; a value that the network gives out is computed before."""
    build = GraphBuilder("net")
    first, second, third, state = (
        build.input(name, TensorType((4, 3))) for name in ("a", "b", "c", "state")
    )
    taken = build.add("sigmoid", [first])
    kept = build.add("multiply", [build.add("sigmoid", [second]), state])
    new = build.add("multiply", [build.add("tanh", [third]), taken])
    after = build.add("add", [kept, new])
    graph = build.finish([after, kept] if shown else [after])
    ops = {
        joined: [[node.op for node in group.nodes] for group in partition(graph, joined=joined)]
        for joined in (False, True)
    }
    keep, take = ["sigmoid", "multiply"], ["sigmoid", "tanh", "multiply"]
    assert ops[False] == [take[:1], keep, [*take[1:], "add"]]
    assert ops[True] == ([take, keep, ["add"]] if shown else [[*take, *keep, "add"]])


def test_a_norm_in_parts_is_a_group_unless_somebody_reads_its_parts():
    def network(*outputs: str) -> list[list[str]]:
        build = GraphBuilder("norm")
        x = build.input("x", TensorType((4, 24)))
        mean = build.add("reduce_mean", [x], {"axes": (1,), "keepdims": True})
        apart = build.add("subtract", [x, mean])
        square = build.add("multiply", [apart, apart])
        spread = build.add(
            "sqrt", [build.add("reduce_mean", [square], {"axes": (1,), "keepdims": True})]
        )
        out = build.add("divide", [apart, spread])
        values = {"mean": mean, "apart": apart, "out": out}
        graph = build.finish([values[name] for name in outputs])
        return [[node.op for node in group.nodes] for group in partition(graph)]

    parts = ["reduce_mean", "subtract", "multiply", "reduce_mean", "sqrt", "divide"]
    assert network("out") == [parts]
    assert network("out", "mean") == [["reduce_mean"], parts[1:]]
    assert network("out", "apart") == [["reduce_mean", "subtract"], parts[2:]]


@pytest.mark.parametrize("reader", ["", "pool", "output"])
def test_a_convolution_takes_in_what_it_alone_reads(reader: str):
    """A gate of channels: its sums come between the data and the convolution."""
    build = GraphBuilder("gated")
    x = build.input("x", TensorType((1, 4, 5, 6)))
    pool = {"layout": "NHWC"}
    gate = build.add("sigmoid", [build.add("global_avg_pool", [x], pool)])
    gated = build.add("multiply", [build.add("relu", [x]), gate])
    kernel = build.constant("k", np.ones((1, 1, 6, 8), np.float32))
    attrs = {
        "layout": "NHWC", "strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "groups": 1,
    }  # fmt: skip
    outputs = [build.add("tanh", [build.add("conv2d", [gated, kernel], attrs)])]
    if reader == "pool":
        outputs.append(build.add("global_avg_pool", [gated], pool))
    if reader == "output":
        outputs.append(gated)
    graph = build.finish(outputs)
    groups = {group.kind: group for group in partition(graph)}
    ops = [node.op for node in groups["conv2d"].nodes]
    alone = ["relu", "multiply", "conv2d", "tanh"]
    assert ops == (alone if not reader else alone[2:])
    assert groups["conv2d"].anchor.op == "conv2d"
    assert [node.op for node in groups["conv2d"].epilogue] == ["tanh"]
    inputs = random_inputs(graph)
    for name, array in run_graph(graph, inputs).items():
        np.testing.assert_array_equal(run_groups(graph, inputs)[name], array)


@pytest.mark.parametrize("reader", ["", "relu", "output"])
def test_what_an_image_is_made_into_is_a_group_unless_somebody_reads_a_part(reader: str):
    """Codes of it, a fourth channel, and channels last."""
    build = GraphBuilder("net")
    image = build.input("x", TensorType((1, 3, 4, 5)))
    scaled = build.add("multiply", [image, build.constant("s", np.asarray(9, np.float32))])
    codes = build.add("cast", [scaled], {"to": "uint8"})
    pads = (0, 0, 0, 0, 0, 1, 0, 0)
    wide = build.add("pad", [codes], {"pads": pads, "value": 0.0})
    rows = build.add("transpose", [wide], {"perm": (0, 2, 3, 1)})
    others = {"relu": [build.add("cast", [wide], {"to": "float32"})], "output": [wide], "": []}
    graph = build.finish([rows, *others[reader]])
    groups = [[node.op for node in group.nodes] for group in partition(graph)]
    if reader:
        assert groups[:2] == [["multiply", "cast", "pad"], ["transpose"]]
    else:
        assert groups == [["multiply", "cast", "pad", "transpose"]]
    inputs = random_inputs(graph)
    for name, array in run_graph(graph, inputs).items():
        np.testing.assert_array_equal(run_groups(graph, inputs)[name], array)


def test_a_reshape_is_an_alias_unless_both_ends_belong_to_the_caller():
    build = GraphBuilder("net")
    build.input("x", TensorType((2, 3)))
    flat = build.add("reshape", ["x"], {"shape": (6,)})
    made = build.add("reshape", [build.add("relu", ["x"])], {"shape": (3, 2)}, outputs=["made"])
    again = build.add("reshape", [made], {"shape": (1, 6)}, outputs=["again"])
    graph = build.finish([flat, made, again])
    assert [group.kind for group in partition(graph)] == [
        "reshape",
        "elementwise",
        "alias",
        "reshape",
    ]


def _task(graph: Graph, group: Group) -> str:
    """A group in the terms of the expected list, without its constant addends."""
    anchor, data = group.anchor, graph.types[group.inputs[0]].shape
    shapes = [list(data)]
    shapes += [list(graph.types[value].shape) for value in group.params]
    image = group.kind in ("conv2d", "depthwise_conv2d")
    return json.dumps(
        {
            "op": f"{group.kind}_nhwc" if image else group.kind,
            "inputs": shapes,
            "output": list(graph.types[group.outputs[0]].shape),
            "stride": anchor.attrs["strides"][0] if image else None,
            "epilogue": [f"T_{node.op}" for node in group.epilogue],
        }
    )


def _expected_tasks() -> Counter[str]:
    tasks = json.loads(EXPECTED.read_text())["tasks"]
    for task in tasks:
        if task["epilogue"][:1] == ["T_multiply"]:  # the comment: batch norm may be folded here too
            task["inputs"] = [*task["inputs"][:2], [1, 1, 1, 32]]
            task["epilogue"] = task["epilogue"][1:]
        if task["op"] == "global_avg_pool":
            task["stride"] = None
    return Counter(json.dumps(task) for task in tasks)


def test_mobilenet_has_exactly_the_22_expected_tasks(mobilenet):
    graph = optimise(mobilenet, "NHWC")
    groups = [g for g in partition(graph) if g.kind not in ("alias", "transpose")]
    tasks = {_task(graph, group) for group in groups}
    assert Counter(tasks) == _expected_tasks()
    assert len({dag_of(graph, group).key for group in groups}) == 22


def test_a_residual_block_adds_on_the_second_branch(models):
    graph = optimise(load_model("zoo:resnet18_v1", {"data": (1, 3, 32, 32)}, models))
    forms = Counter(
        "+".join([group.kind, *(node.op for node in group.epilogue)]) for group in partition(graph)
    )
    assert forms == {
        "transpose": 1,
        "conv2d+add+relu": 9,
        "conv2d+add+add+relu": 8,
        "conv2d+add": 3,
        "max_pool2d": 1,
        "global_avg_pool": 1,
        "alias": 1,
        "dense+add": 1,
    }


def residual_blocks(count: int) -> Graph:
    """x + tanh(a x + b), again and again."""
    build = GraphBuilder("residual")
    last = build.input("x", TensorType((4, 8)))
    for number in range(count):
        scale = build.constant(f"a{number}", np.full(8, 0.5, np.float32))
        made = build.add("tanh", [build.add("add", [build.add("multiply", [last, scale]), scale])])
        last = build.add("add", [last, made])
    return build.finish([last])


def sum_of_many(count: int) -> Graph:
    """As many products, added from left to right."""
    build = GraphBuilder("sum")
    x = build.input("x", TensorType((4, 8)))
    scales = (build.constant(f"a{n}", np.full(8, 0.5, np.float32)) for n in range(count))
    first, *others = [build.add("multiply", [x, scale]) for scale in scales]
    for other in others:
        first = build.add("add", [first, other])
    return build.finish([first])


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("network", [residual_blocks, sum_of_many])
def test_groups_of_deep_networks_are_small_and_take_work_in_proportion(
    network, joined, monkeypatch
):
    asked = Counter()
    elementwise = fuse._is_elementwise

    def counted(node):
        asked["nodes"] += 1
        return elementwise(node)

    monkeypatch.setattr(fuse, "_is_elementwise", counted)
    work = {}
    for count in (150, 300):
        asked.clear()
        groups = partition(network(count), joined=joined)
        assert all(len(group.nodes) <= 1 + MOST_NODES for group in groups)
        assert all(len(group.inputs) + len(group.params) <= MOST_READ for group in groups)
        work[count] = asked["nodes"]
    assert work[300] <= 2.2 * work[150]

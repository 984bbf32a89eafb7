"""Host steps in a graph: what they mean, what is refused, and that passes keep them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from retune.core.dtypes import FLOAT32, INT32, INT64, UNKNOWN, TensorType
from retune.core.errors import ModelError
from retune.frontend.host.step import host_attrs, open_host, step_of
from retune.graph.evaluate import random_inputs, run_graph
from retune.graph.fuse import partition
from retune.graph.graph import Graph, GraphBuilder
from retune.graph.passes.pipeline import Layout, optimise
from retune.ops.registry import HOST
from retune.search.extract import extract
from tests.support.host import NONZERO, SPLIT, model
from tests.support.host_networks import NETWORKS

LAYOUTS: tuple[Layout, ...] = ("NHWC", "NCHW")

FOUND = TensorType((2, UNKNOWN), INT64)
HALF = TensorType((1, 2))


def found_places() -> GraphBuilder:
    build = GraphBuilder("net")
    build.input("x", TensorType((2, 3)))
    build.add(HOST, ["x"], host_attrs(model(NONZERO), [FOUND]), outputs=["found"], name="places")
    return build


def test_a_step_means_what_onnx_says():
    graph = found_places().finish(["found"]).verify()
    found = run_graph(graph, {"x": np.array([[0, 2, 0], [1, 0, 0]], np.float32)})["found"]
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, [[0, 1], [1, 0]])


def test_a_step_may_have_several_outputs():
    build = GraphBuilder("net")
    for name in ("x", "z"):
        build.input(name, TensorType((1, 4)))
    made = ["low", "high"]
    build.add(HOST, ["x", "z"], host_attrs(model(SPLIT), [HALF, HALF]), outputs=made)
    graph = build.finish(made).verify()
    inputs = random_inputs(graph)
    total = inputs["x"] + inputs["z"]
    outputs = run_graph(graph, inputs)
    np.testing.assert_array_equal(outputs["low"], total[:, :2])
    np.testing.assert_array_equal(outputs["high"], total[:, 2:])


def test_outputs_are_arrays_of_their_own():
    text = NONZERO.replace("int64[r, n]", "float[2, 3]").replace("NonZero", "Identity")
    step = step_of(host_attrs(model(text), [TensorType((2, 3))]))
    x = np.ones((2, 3), np.float32)
    (y,) = step.run([x])
    y[:] = 0
    assert x.all()


def test_a_step_of_constants_is_folded():
    build = GraphBuilder("net", fold=True)
    stored = build.constant("stored", np.array([[0, 2, 0], [1, 0, 0]], np.float32))
    build.add(HOST, [stored], host_attrs(model(NONZERO), [FOUND]), outputs=["found"])
    graph = build.finish(["found"]).verify()
    assert not graph.nodes and graph.types["found"] == TensorType((2, 2), INT64)


def test_the_network_s_key_covers_the_model():
    graph = found_places().finish(["found"])
    (node,) = graph.nodes
    other = replace(node, attrs=host_attrs(model(NONZERO.replace("places", "other")), [FOUND]))
    assert replace(graph, nodes=(other,)).key != graph.key
    assert found_places().finish(["found"]).key == graph.key


def test_a_graph_prints_the_size_of_the_model():
    assert "bytes): int64[2, ?]" in str(found_places().finish(["found"]))


def test_nobody_reads_a_value_of_unknown_extents():
    build = found_places()
    with pytest.raises(ModelError, match=r"'cast' \(cast\) reads 'found', which is int64\[2, \?\]"):
        build.add("cast", ["found"], {"to": FLOAT32})


def test_only_host_steps_make_values_of_unknown_extents():
    graph = found_places().finish(["found"])
    unknown = {**graph.types, "x": TensorType((UNKNOWN, 3))}
    with pytest.raises(ModelError, match=r"'x' is .*known extents of all but outputs of h"):
        replace(graph, types=unknown).verify()


def test_a_model_is_kept_as_it_was_given():
    given = model(NONZERO)
    before = given.SerializeToString()
    host_attrs(given, [FOUND])
    assert given.SerializeToString() == before


def _attrs(text: str, *types: TensorType):
    return host_attrs(model(text), types)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: _attrs(NONZERO), "a type for each of its 1 outputs; got 0"),
        (lambda: open_host(b"\xff\xff"), "bytes that are not an ONNX model"),
        (lambda: open_host(b""), "a model without nodes or outputs"),
        (
            lambda: open_host(
                model(NONZERO).SerializeToString().replace(b"NonZero", b"Non\xffero")
            ),
            r"host step: the name b'Non\\xffero' is not text",
        ),
        (
            lambda: _attrs(NONZERO.replace("NonZero", "Mystery"), FOUND),
            "Mystery of opset 17 is no",
        ),
    ],
)
def test_what_cannot_be_a_step_is_refused(make, message):
    with pytest.raises(ModelError, match=message):
        make()


def test_a_step_holds_all_of_its_data():
    given = model(NONZERO)
    tensor = onnx.TensorProto(name="w", dims=[1], data_type=onnx.TensorProto.FLOAT)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/hostname")
    given.graph.initializer.append(tensor)
    with pytest.raises(ModelError, match="got data outside of it, of tensor 'w'"):
        host_attrs(given, [FOUND])


def test_inputs_have_to_be_those_of_the_model():
    attrs = _attrs(NONZERO, FOUND)
    build = GraphBuilder("net")
    build.input("x", TensorType((2, 3), INT32))
    with pytest.raises(ModelError, match=r"input 'x': expected float32; got int32\[2, 3\]"):
        build.add(HOST, ["x"], attrs)
    with pytest.raises(ModelError, match="expected the inputs x; got none"):
        build.add(HOST, [], attrs)


def test_a_step_that_makes_something_else_says_so():
    step = step_of(_attrs(NONZERO, TensorType((2, 1), INT64)))
    with pytest.raises(ModelError, match=r"output 'y': expected int64\[2, 1\]; got \(2, 6\)"):
        step.run([np.ones((2, 3), np.float32)])


def test_a_step_that_cannot_work_with_its_inputs_says_so():
    step = step_of(_attrs(SPLIT, HALF, HALF))
    with pytest.raises(ModelError, match=r"host step Add, Split: it cannot work with x float32\[3"):
        step.run([np.ones(3, np.float32), np.ones((1, 4), np.float32)])


def test_omitted_outputs_are_not_taken_for_omitted_inputs():
    nodes = [
        helper.make_node("Unique", ["x"], ["", "", "", "counts"]),
        helper.make_node("Clip", ["x", "", "top"], ["clipped"]),
    ]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4])
    made = [onnx.ValueInfoProto(name=name) for name in ("counts", "clipped")]
    top = onnx.numpy_helper.from_array(np.array(3, np.float32), "top")
    graph = helper.make_graph(nodes, "net", [x], made, [top])
    given = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    attrs = host_attrs(given, [TensorType((UNKNOWN,), INT64), TensorType((4,))])
    counts, clipped = step_of(attrs).run([np.array([-2, 5, 5, 1], np.float32)])
    assert counts.tolist() == [1, 1, 2] and clipped.tolist() == [-2, 3, 3, 1]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NETWORKS)
def test_passes_keep_what_host_steps_read_and_make(name: str, layout: Layout, tmp_path: Path):
    graph = NETWORKS[name](tmp_path).graph
    inputs = random_inputs(graph)
    after = optimise(graph, layout).verify()
    assert [n.outputs for n in _hosts(after)] == [n.outputs for n in _hosts(graph)]
    expected, found = run_graph(graph, inputs), run_graph(after, inputs)
    for value, array in expected.items():
        np.testing.assert_allclose(found[value], array, rtol=1e-4, atol=1e-5)


def test_a_host_step_is_a_group_and_no_task(tmp_path: Path):
    network = extract(optimise(NETWORKS["both"](tmp_path).graph))
    groups = [placed for placed in network.groups if placed.group.kind == HOST]
    assert [placed.task_key for placed in groups] == [None, None]
    assert [len(placed.group.nodes) for placed in groups] == [1, 1]
    assert network.host_steps == ("TopK", "NonMaxSuppression, Gather, Squeeze")


def test_host_steps_come_as_late_as_they_can():
    """Between them the device's work would fall into parts."""
    build = GraphBuilder("net")
    x = build.input("x", TensorType((2, 3)))
    attrs = host_attrs(model(NONZERO), [FOUND])
    for number in range(2):
        value = build.add("relu" if number else "exp", [x], outputs=[f"value{number}"])
        total = build.add("reduce_sum", [value], {"axes": (0,), "keepdims": False})
        build.add("tanh", [total], outputs=[f"total{number}"])
        build.add(HOST, [value], attrs, outputs=[f"found{number}"])
    graph = build.finish([f"{name}{i}" for name in ("total", "found") for i in range(2)])
    kinds = [group.kind for group in partition(optimise(graph))]
    assert kinds[-2:] == [HOST, HOST] and HOST not in kinds[:-2]


def _hosts(graph: Graph):
    return [node for node in graph.nodes if node.op == HOST]

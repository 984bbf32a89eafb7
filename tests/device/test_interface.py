"""Inputs and outputs of a bundle: handed through, listed twice, constant, and without elements.

A host step that makes no rows is seen to make none.
"""

import numpy as np
import pytest
from onnx import TensorProto, helper

from retune.bundle.verify.reach import OutputReach, Reach
from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import run_graph
from tests.support.networks import model, node
from tests.support.random_ways import compiled


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_outputs_are_inputs_constants_and_other_names_of_a_value(layout: str):
    nodes = [
        node("Relu", ["x"], ["y"]),
        node("Identity", ["y"], ["same"]),
        node("Identity", ["mask"], ["copy"]),
        node("Constant", [], ["c"], value=helper.make_tensor("v", TensorProto.FLOAT, [2], [3, 4])),
    ]
    wanted = ["y", "mask", "same", "y", "copy", "c", "mask"]
    made = model(nodes, {"x": [1, 2, 3, 3], "mask": [1, 2, 2, 2]}, outputs=wanted)
    graph = import_model(made)
    assert graph.outputs == ("y", "mask", "same", "copy", "c")
    module = compiled(graph, "pocl", layout)
    for seed in (0, 1):
        feeds = module.random_inputs(seed)
        found, expected = module.run(feeds), run_graph(graph, feeds)
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[name], expected[name]) for name in expected)
        found["mask"][:] = 7
        assert feeds["mask"].max() < 7, "it is an array of its own"


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_a_cache_may_be_empty_in_the_first_step(layout: str):
    nodes = [
        node("Concat", ["past", "new"], ["k"], axis=2),
        node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        node("MatMul", ["new", "kt"], ["s"]),
        node("Softmax", ["s"], ["p"]),
        node("MatMul", ["p", "k"], ["y"]),
    ]
    inputs = {"past": [1, 2, "past", 8], "new": [1, 2, 3, 8]}
    graph = import_model(model(nodes, inputs, outputs=["y", "k"]), {"past": (0,)})
    module = compiled(graph, "pocl", layout)
    feeds = module.random_inputs()
    assert feeds["past"].shape == (1, 2, 0, 8)
    found, expected = module.run(feeds), run_graph(graph, feeds)
    np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found["k"], feeds["new"])


def test_host_steps_without_rows_are_unseen():
    nodes = [
        node("Greater", ["x", "most"], ["keep"]),
        node("NonZero", ["keep"], ["rows"]),
        node("Relu", ["x"], ["y"]),
    ]
    made = model(nodes, {"x": [4, 5], "most": [1]}, outputs=["y", "rows"])
    module = compiled(import_model(made), "pocl", "NHWC")
    reach, apart = Reach(module), OutputReach(module.plan, module.run)
    x = np.linspace(-1, 1, 20, dtype=np.float32).reshape(4, 5)
    for most in (2, 1.5):
        outputs = reach({"x": x, "most": np.array([most], np.float32)})
        apart({"x": x, "most": np.array([most], np.float32)})
        assert outputs["rows"].shape == (2, 0)
    (unseen,) = reach.unseen()
    assert "NonZero" in unseen and apart.unseen() == ["of output rows"]
    reach({"x": x, "most": np.zeros(1, np.float32)})
    apart({"x": x, "most": np.zeros(1, np.float32)})
    assert reach.unseen() == apart.unseen() == []

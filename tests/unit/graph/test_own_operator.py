"""An operator of another domain is stated in one module; an activation function is one entry."""

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from retune.core.errors import ModelError
from retune.frontend.onnx.importer import import_model
from retune.frontend.onnx.ops.registry import CLAIMS, HANDLERS, Emitter, OnnxNode, onnx_op
from retune.graph.evaluate import run_graph
from retune.ir.expr import Expr, maximum, minimum, select
from retune.ir.functions import FUNCTIONS, function
from retune.ir.interp import run_program
from retune.ir.stmt import from_dag
from retune.ir.te import Tensor
from retune.ops.registry import OPS, OpCall, number, op
from retune.ops.shapes import same_type
from retune.search.extract import extract

NAME = "my.domain::SoftClip"


@pytest.fixture
def soft_clip() -> Iterator[None]:
    @op("soft_clip", kind="elementwise", infer=same_type)
    def expression(c: OpCall) -> Tensor:
        """x between -b and b."""
        (x,), b = c.inputs, number(c.attrs, "b")
        return c.stage(lambda *i: minimum(maximum(c.read(x, i), -b), b))

    @onnx_op(NAME, since=2)
    def imported(node: OnnxNode, emit: Emitter) -> None:
        emit.out("soft_clip", node.inputs[0], b=node.number("b", 1.0))

    yield
    del OPS["soft_clip"], HANDLERS[NAME], CLAIMS[NAME, 2]


def model_of(version: int) -> onnx.ModelProto:
    """A product and the operator behind it."""
    x, y = (helper.make_tensor_value_info(v, TensorProto.FLOAT, (2, 4)) for v in "xy")
    weight = onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("SoftClip", ["h"], ["y"], name="clip", domain="my.domain", b=0.5),
    ]
    graph = helper.make_graph(nodes, "net", [x], [y], [weight])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("my.domain", version)]
    return helper.make_model(graph, opset_imports=opsets)


def test_it_is_imported_fused_and_means_what_it_says(soft_clip: None) -> None:
    graph = import_model(model_of(2))
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_array_equal(run_graph(graph, {"x": x})["y"], np.clip(x, -0.5, 0.5))
    (task,) = extract(graph).tasks.values()
    assert "min(max(T_dense[i0, i1], -0.5), 0.5)" in task.text


def test_an_older_version_of_the_domain_is_not_taken_for_it(soft_clip: None) -> None:
    with pytest.raises(ModelError, match=f"{NAME}: 1 x, first 'clip'"):
        import_model(model_of(1))


SHRINK = "my.domain::SoftShrink"


@pytest.fixture
def soft_shrink() -> Iterator[None]:
    def body(x: Expr, by: float) -> Expr:
        return select(x > by, x - by, select(x < -by, x + by, 0.0))

    function("soft_shrink", body, attributes={"by": 0.5}, onnx=SHRINK, onnx_since=2)
    yield
    del FUNCTIONS["soft_shrink"], OPS["soft_shrink"]


def test_an_activation_function_is_one_entry(soft_shrink: None) -> None:
    """It is imported with ONNX's default, evaluated, fused and lowered; nothing else knows it."""
    proto = model_of(2)
    proto.graph.node[1].op_type = "SoftShrink"
    del proto.graph.node[1].attribute[:]
    graph = import_model(proto)
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    expected = np.sign(x) * np.maximum(np.abs(x) - 0.5, 0)
    np.testing.assert_allclose(run_graph(graph, {"x": x})["y"], expected, rtol=1e-6)
    (task,) = extract(graph).tasks.values()
    assert "select(0.5 < T_dense[i0, i1], T_dense[i0, i1] - 0.5" in task.text
    data = {"data": x, "weight": np.eye(4, dtype=np.float32)}
    found = run_program(from_dag(task.dag), data)
    np.testing.assert_allclose(found["T_soft_shrink"], expected, rtol=1e-6)

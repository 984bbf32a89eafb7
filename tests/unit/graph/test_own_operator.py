"""An operator of a domain of one's own is stated three times, in a module of one's own."""

from collections.abc import Iterator, Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from retune.core.errors import ModelError
from retune.frontend.onnx.importer import import_model
from retune.frontend.onnx.ops.registry import CLAIMS, HANDLERS, Emitter, OnnxNode, onnx_op
from retune.graph.evaluate import run_graph
from retune.ir.expr import maximum, minimum
from retune.ir.te import Tensor, compute
from retune.ops.registry import OPS, Array, Attrs, number, op, present
from retune.ops.shapes import same_type
from retune.ops.tensors.registry import RULES, OpCall, read, tensors_of
from retune.search.extract import extract

NAME = "my.domain::SoftClip"


@pytest.fixture
def soft_clip() -> Iterator[None]:
    @op("soft_clip", kind="elementwise", infer=same_type)
    def meaning(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
        """x between -b and b."""
        return (np.clip(present(arrays), -number(attrs, "b"), number(attrs, "b")),)

    @tensors_of("soft_clip")
    def expression(c: OpCall) -> Tensor:
        (x,), b = c.inputs, number(c.attrs, "b")
        return compute(
            c.name("T_soft_clip"),
            c.output.shape,
            lambda *i: minimum(maximum(read(x, i, c.output.shape), -b), b),
            [x],
        )

    @onnx_op(NAME, since=2)
    def imported(node: OnnxNode, emit: Emitter) -> None:
        emit.out("soft_clip", node.inputs[0], b=node.number("b", 1.0))

    yield
    del OPS["soft_clip"], RULES["soft_clip"], HANDLERS[NAME], CLAIMS[NAME, 2]


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

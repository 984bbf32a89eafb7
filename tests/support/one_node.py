"""Models of one node, whose meaning is held against onnxruntime's."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import run_graph
from retune.graph.graph import Graph
from retune.graph.passes.pipeline import optimise

Arrays = Mapping[str, np.ndarray]


def one_node(
    op: str,
    inputs: Arrays,
    *,
    known: Collection[str] = (),
    outputs: Collection[str] = ("y",),
    opset: int = 13,
    **attrs: Any,
) -> onnx.ModelProto:
    """A model of one node that reads all the inputs; those that are `known` are initializers."""
    graph = helper.make_graph(
        [helper.make_node(op, list(inputs), list(outputs), name="only", **attrs)],
        "net",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in inputs.items()
            if name and name not in known
        ],
        [onnx.ValueInfoProto(name=name) for name in outputs if name],
        initializer=[numpy_helper.from_array(inputs[name], name) for name in known],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = 8
    return made


def imported(op: str, inputs: Arrays, **options: Any) -> Graph:
    """The graph of one node."""
    return import_model(one_node(op, inputs, **options))


def assert_as_onnxruntime(op: str, inputs: Arrays, **options: Any) -> None:
    """The imported and the optimised node agree with onnxruntime in values, shapes and types."""
    made = one_node(op, inputs, **options)
    session = onnxruntime.InferenceSession(made.SerializeToString())
    names = [entry.name for entry in session.get_outputs()]
    given = {entry.name: inputs[entry.name] for entry in session.get_inputs()}
    expected = dict(zip(names, session.run(names, given), strict=True))
    graph = import_model(made)
    for network in (graph, optimise(graph)):
        found = run_graph(network, {name: inputs[name] for name in network.inputs})
        for name, array in expected.items():
            assert found[name].shape == array.shape
            assert found[name].dtype == array.dtype
            np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6, err_msg=name)

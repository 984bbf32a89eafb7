"""Comparing what is imported with what onnxruntime computes."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from retune.bundle.verify.peers import EXACT_PRODUCTS
from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import run_graph
from retune.graph.passes.pipeline import optimise

Arrays = Mapping[str, np.ndarray]


def typed_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Arrays,
    outputs: Sequence[str],
    weights: Arrays | None = None,
    opset: int = 13,
) -> onnx.ModelProto:
    """A model whose inputs have the arrays' shapes and types; its outputs' types are open."""
    graph = helper.make_graph(
        list(nodes),
        "net",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in inputs.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        initializer=[numpy_helper.from_array(a, n) for n, a in (weights or {}).items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = 10
    return made


def peer_outputs(made: onnx.ModelProto, inputs: Arrays) -> dict[str, np.ndarray]:
    """What onnxruntime computes, by name; products of bytes exactly on any processor."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(EXACT_PRODUCTS, "1")
    session = onnxruntime.InferenceSession(made.SerializeToString(), options)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def assert_computes(
    made: onnx.ModelProto, inputs: Arrays, expected: Arrays, tolerance: float = 1e-5
) -> None:
    """The network as imported, and as optimised in both layouts, has these outputs."""
    graph = import_model(made)
    for network in (graph, optimise(graph, "NCHW"), optimise(graph, "NHWC")):
        found = run_graph(network, inputs)
        for name, array in expected.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_allclose(
                found[name], array, rtol=tolerance, atol=tolerance, err_msg=name
            )


def assert_as_peer(made: onnx.ModelProto, inputs: Arrays, tolerance: float = 1e-5) -> None:
    """As `assert_computes`, with what onnxruntime computes; a tolerance of 0 wants equality."""
    assert_computes(made, inputs, peer_outputs(made, inputs), tolerance)

"""What tests of import semantics share with others."""

from typing import Any

import numpy as np
import onnxruntime

from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import run_graph
from retune.graph.passes.pipeline import optimise


def assert_as_onnxruntime(made: Any, inputs: dict[str, np.ndarray]) -> None:
    """The imported and the optimised network agree with onnxruntime."""
    session = onnxruntime.InferenceSession(made.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    expected = dict(zip(names, session.run(names, inputs), strict=True))
    graph = import_model(made, {name: array.shape for name, array in inputs.items()})
    for network in (graph, optimise(graph, "NCHW"), optimise(graph, "NHWC")):
        found = run_graph(network, inputs)
        for name, array in expected.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-4, err_msg=name)


def rand(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)

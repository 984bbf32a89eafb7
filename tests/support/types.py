"""What tests of types share with others."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support.networks import node


def save(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, list[int]]],
    outputs: dict[str, int],
    weights: dict[str, np.ndarray],
) -> Path:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(n, kind, None) for n, kind in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 8
    onnx.save(made, path)
    return path


def half_network(path: Path) -> Path:
    """A small image network all of float16, with a gate and a softmax."""
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float16)

    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "w2"], ["c2"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Sigmoid", ["c2"], ["g"]),
        node("Mul", ["c2", "g"], ["m"]),
        node("GlobalAveragePool", ["m"], ["p"]),
        node("Flatten", ["p"], ["f"]),
        node("Gemm", ["f", "w3"], ["l"], transB=1),
        node("Softmax", ["l"], ["y"], axis=1),
    ]
    weights = {
        "w1": weight(16, 3, 3, 3),
        "b1": weight(16),
        "w2": weight(24, 16, 3, 3),
        "w3": weight(10, 24),
    }
    half = TensorProto.FLOAT16
    return save(path, nodes, {"x": (half, [1, 3, 20, 20])}, {"y": half, "m": half}, weights)

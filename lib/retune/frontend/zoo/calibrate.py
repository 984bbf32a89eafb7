"""Scaling random weights so that every layer's output has a deviation near one.

The factors are powers of two: the same on every machine, and exact in floating point.
"""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import random_inputs, run_parts
from retune.ops import Array

LAYERS = ("Conv", "ConvTranspose", "Gemm")
"""ONNX ops whose output is linear in their weights and bias together."""


def calibrate(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """The model, its convolution and dense weights scaled in place.

    Runs the network once on a seeded input. No initializer may serve two layers.
    """
    graph = import_model(model)
    layers = {node.output[0]: node for node in model.graph.node if node.op_type in LAYERS}
    factors: dict[str, float] = {}

    def scaled(value: str, arrays: Sequence[Array]) -> Sequence[Array]:
        if value not in layers:
            return arrays
        factor = _power_of_two(1.0 / max(float(arrays[0].std()), 1e-30))
        factors.update(dict.fromkeys(layers[value].input[1:], factor))
        return [array * np.float32(factor) for array in arrays]

    run_parts(graph, [random_inputs(graph, seed)], scaled)
    for tensor in model.graph.initializer:
        if tensor.name in factors:
            weight = numpy_helper.to_array(tensor) * np.float32(factors[tensor.name])
            tensor.CopyFrom(numpy_helper.from_array(weight, tensor.name))
    return model


def _power_of_two(value: float) -> float:
    return float(2.0 ** np.round(np.log2(value)))

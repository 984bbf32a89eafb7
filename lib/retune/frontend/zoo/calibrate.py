"""Scaling random weights so that every layer's output has a deviation near one.

The factors are powers of two: the same on every machine, and exact in floating point.
"""

import numpy as np
import onnx
from onnx import numpy_helper

from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import random_inputs
from retune.ops import Array, lookup

LAYERS = ("Conv", "ConvTranspose", "Gemm")
"""ONNX ops whose output is linear in their weights and bias together."""


def calibrate(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """The model, its convolution and dense weights scaled in place.

    Runs the network once on a seeded input. No initializer may serve two layers.
    """
    graph = import_model(model)
    layers = {node.output[0]: node for node in model.graph.node if node.op_type in LAYERS}
    factors: dict[str, float] = {}
    values: dict[str, Array] = {**graph.constants, **random_inputs(graph, seed)}
    last = {value: i for i, node in enumerate(graph.nodes) for value in node.inputs}
    for position, node in enumerate(graph.nodes):
        arrays = [values[value] if value else None for value in node.inputs]
        results = lookup(node.op).reference(arrays, node.attrs)
        for value, array in zip(node.outputs, results, strict=True):
            values[value] = array
            if value in layers:
                factor = _power_of_two(1.0 / max(float(array.std()), 1e-30))
                values[value] = array * np.float32(factor)
                factors |= dict.fromkeys(layers[value].input[1:], factor)
        for value in node.inputs:
            if last[value] == position:
                values.pop(value, None)
    for tensor in model.graph.initializer:
        if tensor.name in factors:
            scaled = numpy_helper.to_array(tensor) * np.float32(factors[tensor.name])
            tensor.CopyFrom(numpy_helper.from_array(scaled, tensor.name))
    return model


def _power_of_two(value: float) -> float:
    return float(2.0 ** np.round(np.log2(value)))

"""What tests of onnx qoperator share with others."""

from typing import Any

import numpy as np
import onnx
from onnxruntime.quantization import QuantFormat, QuantType

from tests.support.device_networks import Net

OPERATORS: dict[str, Any] = {"quant_format": QuantFormat.QOperator}

RNG = np.random.default_rng(11)


def lines() -> onnx.ModelProto:
    """Convolutions of one dimension, with and without groups, and pads that nobody merges."""
    n = Net("lines")
    x = n("Relu", n("Conv", n.input(1, 4, 30), n.weight(8, 4, 5), n.weight(8)))
    y = n("Conv", n("Pad", x, n.ints(0, 0, 2, 0, 0, 2)), n.weight(8, 1, 3), n.weight(8), group=8)
    a, b = n.parts("Split", 2, y, n.ints(4, 4), axis=1)
    flat = n("Flatten", n("MaxPool", n("Concat", b, a, axis=1), kernel_shape=[3], strides=[3]))
    return n.model(n("Gemm", flat, n.weight(72, 6), n.weight(6)))


WAYS = {
    "per channel": {"per_channel": True},
    "one scale": {"per_channel": False},
    "signed": {"per_channel": True, "activation_type": QuantType.QInt8},
    "narrow weights": {"per_channel": True, "reduce_range": True},
}


def without_floats(model: onnx.ModelProto) -> onnx.ModelProto:
    """The network between the codes of its input and those of its output."""
    nodes = list(model.graph.node)
    (first,) = (n for n in nodes if n.op_type == "QuantizeLinear")
    (last,) = (n for n in nodes if n.op_type == "DequantizeLinear")
    known = {t.name: t.data_type for t in model.graph.initializer}
    for entry, name in (
        (model.graph.input[0], first.output[0]),
        (model.graph.output[0], last.input[0]),
    ):
        entry.name, entry.type.tensor_type.elem_type = name, known[first.input[2]]
    kept = [n for n in nodes if n not in (first, last)]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model


def codes(*shape: int, dtype: str = "uint8") -> np.ndarray:
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max + 1, shape).astype(dtype)

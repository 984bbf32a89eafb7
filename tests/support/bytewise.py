"""What tests of bytewise share with others."""

from pathlib import Path
from typing import Any

import onnx
from onnxruntime.quantization import quantize_dynamic

from tests.support.device_networks import Net


def dynamic() -> onnx.ModelProto:
    """Convolutions with odd channels, depthwise as well, and products with matrices."""
    n = Net("dynamic")
    x = n("Relu", n.conv(n.input(1, 3, 12, 12), 3, 18))
    x = n("Relu", n.conv(x, 18, 18, group=18))
    y = n("Conv", x, n.weight(16, 18, 3, 3), pads=[1, 0, 0, 1])
    x = n("Reshape", n("GlobalAveragePool", y), n.ints(1, 2, 8))
    x = n("Relu", n("Add", n("MatMul", x, n.weight(8, 21)), n.weight(21)))
    return n.model(n("MatMul", x, n.weight(21, 7)))


def dynamically(folder: Path, **options: Any) -> onnx.ModelProto:
    """As onnxruntime's quantizer writes it."""
    onnx.save(dynamic(), folder / "floats.onnx")
    made = folder / "integers.onnx"
    quantize_dynamic(
        folder / "floats.onnx", made, op_types_to_quantize=["Conv", "MatMul"], **options
    )
    return onnx.load(made)

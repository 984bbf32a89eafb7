"""What tests of onnx pairs share with others."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from retune.bundle.verify.peers import EXACT_PRODUCTS, unoptimised_is_exact
from retune.device.opencl.host import read_flags
from retune.graph.graph import Graph
from tests.support.device_networks import Net
from tests.support.networks import node

Arrays = dict[str, np.ndarray]


def small() -> onnx.ModelProto:
    """Convolutions with a residual sum, a concatenation, pooling, a depthwise and dense layers."""
    n = Net("pairs")
    x = n("Relu", n.conv(n.input(1, 3, 16, 16), 3, 8))
    y = n("Add", n("Relu", n.conv(x, 8, 8)), x)
    z = n("Concat", n("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2]), pooled(n, y), axis=1)
    deep = n("Conv", z, n.weight(16, 1, 3, 3), n.weight(16), group=16, pads=[1, 1, 1, 1])
    flat = n("Flatten", n("GlobalAveragePool", n("Clip", deep, n.stored(ZERO), n.stored(SIX))))
    hidden = n("Relu", n("Gemm", flat, n.weight(16, 12), n.weight(12)))
    return n.model(n("Gemm", hidden, n.weight(10, 12), n.weight(10), transB=1))


ZERO, SIX = np.asarray(0, np.float32), np.asarray(6, np.float32)


def pooled(n: Net, value: str) -> str:
    return n("AveragePool", value, kernel_shape=[2, 2], strides=[2, 2])


def inputs_of(model: onnx.ModelProto, seed: int) -> Arrays:
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    rng = np.random.default_rng(seed)
    return {model.graph.input[0].name: rng.standard_normal(shape).astype(np.float32)}


def quantized(model: onnx.ModelProto, folder: Path, **options: Any) -> onnx.ModelProto:
    """As onnxruntime's quantizer writes it."""

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._left: Iterator[Arrays] = iter([inputs_of(model, seed) for seed in range(4)])

        def get_next(self) -> Any:
            return next(self._left, None)

    onnx.save(model, folder / "floats.onnx")
    made = folder / "integers.onnx"
    usual: dict[str, Any] = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
    usual["quant_format"] = QuantFormat.QDQ
    quantize_static(folder / "floats.onnx", made, Reader(), **(usual | options))
    return onnx.load(made)


def peer(model: onnx.ModelProto, inputs: Arrays) -> np.ndarray:
    """Without optimisations, which make onnxruntime be off by more than one step itself; but with
    those where only they make products of uint8 and int8 exact (`EXACT_PRODUCTS`)."""
    unsigned = any(t.data_type == onnx.TensorProto.UINT8 for t in model.graph.initializer)
    options = onnxruntime.SessionOptions()
    if not unsigned or unoptimised_is_exact(read_flags()):
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry(EXACT_PRODUCTS, "1")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, inputs)[0]


def last_scale(model: onnx.ModelProto) -> float:
    """The step of the network's output."""
    known = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    (last,) = (n for n in model.graph.node if model.graph.output[0].name in n.output)
    assert last.op_type == "DequantizeLinear"
    return float(known[last.input[1]])


def layers(graph: Graph) -> set[str]:
    """The types of what layers make."""
    heavy = ("conv2d", "depthwise_conv2d", "dense")
    return {graph.types[n.outputs[0]].dtype for n in graph.nodes if n.op in heavy}


def float_ops(graph: Graph) -> list[str]:
    return [n.op for n in graph.nodes if graph.types[n.outputs[0]].dtype == "float32"]


CODING = ["quotient", "round", "add", "clip"]

DECODING = ["cast", "multiply"]


def pair(value: str, made: str, scale: str = "s", zero: str = "z") -> list[onnx.NodeProto]:
    return [
        node("QuantizeLinear", [value, scale, zero], [f"{made}.codes"]),
        node("DequantizeLinear", [f"{made}.codes", scale, zero], [made]),
    ]

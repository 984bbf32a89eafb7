"""Files as onnxruntime's quantizers write them: imported, and compared with onnxruntime."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_dynamic

from retune.bundle.verify.peers import EXACT_PRODUCTS
from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import run_graph
from retune.graph.passes.pipeline import optimise
from tests.external.on_device import compile_graph
from tests.support.onnx_pairs import inputs_of, last_scale, layers, peer, quantized, small
from tests.support.peer import Arrays

RNG = np.random.default_rng(41)
WORDS, LENGTH, WIDTH, HIDDEN = 40, 7, 16, 12


def floats(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) * 0.3).astype(np.float32)


def language_model() -> onnx.ModelProto:
    """Embeddings, attention, an LSTM in both directions, a convolution, a product."""
    stored = {
        "table": floats(WORDS, WIDTH), "qkv": floats(WIDTH, 3 * WIDTH), "qb": floats(3 * WIDTH),
        "w": floats(2, 4 * HIDDEN, WIDTH), "r": floats(2, 4 * HIDDEN, HIDDEN),
        "b": floats(2, 8 * HIDDEN), "head": floats(2 * HIDDEN, 10), "hb": floats(10),
        "shape": np.array([LENGTH, 1, 2 * HIDDEN]),
    }  # fmt: skip
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"], "gather"),
        helper.make_node(
            "Attention", ["e", "qkv", "qb"], ["a"], "attention", domain="com.microsoft", num_heads=4
        ),
        helper.make_node("Add", ["a", "e"], ["s"], "add"),
        helper.make_node("Transpose", ["s"], ["t"], "turn", perm=[1, 0, 2]),
        helper.make_node(
            "LSTM", ["t", "w", "r", "b"], ["h"], "lstm", hidden_size=HIDDEN,
            direction="bidirectional",
        ),
        helper.make_node("Transpose", ["h"], ["v"], "back", perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["v", "shape"], ["f"], "flat"),
        helper.make_node("MatMul", ["f", "head"], ["m"], "matmul"),
        helper.make_node("Add", ["m", "hb"], ["y"], "bias"),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, [1, LENGTH])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [LENGTH, 1, 10])],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
        value_info=[helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [1, LENGTH, WIDTH])],
    )
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=sets)
    made.ir_version = 8
    return made


def session_of(path: Path, saved: Path | None = None, level: str = "ORT_ENABLE_ALL") -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.add_session_config_entry(EXACT_PRODUCTS, "1")
    if saved is not None:
        options.optimized_model_filepath = str(saved)
    return onnxruntime.InferenceSession(str(path), options)


def deviation(path: Path, inputs: Arrays) -> float:
    """How far the imported file is from onnxruntime's, as a part of the output's range."""
    (found,) = deviations(path, [inputs])
    return found


def deviations(path: Path, samples: Sequence[Arrays]) -> list[float]:
    """The deviation for each of some inputs, as imported or after all passes."""
    session, graph = session_of(path), import_model(onnx.load(path))
    forms = (graph, optimise(graph, "NHWC"))

    def of(inputs: Arrays) -> float:
        (expected,) = session.run(None, dict(inputs))
        found = (run_graph(form, inputs)[graph.outputs[0]] for form in forms)
        return max(float(np.abs(y - expected).max() / np.abs(expected).max()) for y in found)

    return [of(inputs) for inputs in samples]


def assert_near(path: Path, inputs: Arrays, part: float) -> onnx.ModelProto:
    """The imported file deviates by at most that part of the output's range."""
    assert deviation(path, inputs) <= part
    return onnx.load(path)


USUAL: dict[str, Any] = {"DefaultTensorType": onnx.TensorProto.FLOAT}
"""Attention is not an operator of ONNX, whose types follow."""
WAYS: list[dict[str, Any]] = [
    {},
    {"per_channel": True, "reduce_range": True},
    {"weight_type": QuantType.QUInt8},
]


@pytest.mark.parametrize("options", WAYS)
@pytest.mark.parametrize("saved", [False, True])
def test_a_language_model_of_quantize_dynamic(
    options: dict[str, Any], saved: bool, tmp_path: Path
) -> None:
    """As the quantizer writes it, and as onnxruntime's optimizer saves that."""
    plain, path = tmp_path / "plain.onnx", tmp_path / "quantized.onnx"
    onnx.save(language_model(), plain)
    kinds = ["Gather", "Attention", "LSTM", "MatMul"]
    quantize_dynamic(plain, path, op_types_to_quantize=kinds, extra_options=USUAL, **options)
    if saved:
        session_of(path, tmp_path / "saved.onnx", "ORT_ENABLE_EXTENDED")
        path = tmp_path / "saved.onnx"
    rng = np.random.default_rng(len(options))
    texts = [{"ids": rng.integers(0, WORDS, (1, LENGTH))} for _ in range(5)]
    made, apart = onnx.load(path), sorted(deviations(path, texts))
    assert apart[3] <= 1e-5 and apart[4] <= 0.1  # one text may meet a tie of two codes
    written = {node.op_type for node in made.graph.node}
    assert {"DynamicQuantizeLSTM", "QAttention"} <= written
    assert bool(written & {"DynamicQuantizeMatMul", "MatMulIntegerToFloat"}) == saved
    products = {"dense", "matmul"}
    graph = import_model(made)
    assert {graph.types[n.outputs[0]].dtype for n in graph.nodes if n.op in products} >= {"int32"}


STATIC: dict[str, dict[str, Any]] = {
    "symmetric": {
        "extra_options": {"ActivationSymmetric": True, "WeightSymmetric": True},
        "activation_type": QuantType.QInt8,
    },
    "float biases": {"extra_options": {"QuantizeBias": False}},
    "pairs of each reader": {"extra_options": {"DedicatedQDQPair": True}},
    "all outputs": {"extra_options": {"ForceQuantizeNoInputCheck": True}},
    "4-bit weights": {"weight_type": QuantType.QInt4},
    "entropy": {"calibrate_method": CalibrationMethod.Entropy},
    "percentile": {"calibrate_method": CalibrationMethod.Percentile},
    "uint8 weights": {"weight_type": QuantType.QUInt8, "per_channel": True},
    "operators": {"quant_format": QuantFormat.QOperator, "reduce_range": True},
    "int8 operators": {
        "quant_format": QuantFormat.QOperator,
        "activation_type": QuantType.QInt8,
        "per_channel": True,
    },
    "operators of uint8": {
        "quant_format": QuantFormat.QOperator,
        "weight_type": QuantType.QUInt8,
    },
}
"""Options of quantize_static beyond those of test_onnx_pairs.py and test_onnx_qoperator.py."""


@pytest.mark.slow
@pytest.mark.parametrize("way", STATIC)
def test_options_of_quantize_static_stay_in_integers(way: str, tmp_path: Path) -> None:
    model = quantized(small(), tmp_path, **STATIC[way])
    graph = import_model(model)
    assert layers(graph) == {"int32"}
    inputs = inputs_of(model, 9)
    found = run_graph(graph, inputs)[graph.outputs[0]]
    assert np.abs(found - peer(model, inputs)).max() <= 1.001 * last_scale(model)


@pytest.mark.slow
@pytest.mark.device
def test_a_language_model_of_quantize_dynamic_as_kernels(tmp_path: Path) -> None:
    """A last bit of a sigmoid may take a state to the next quantized value."""
    plain, path = tmp_path / "plain.onnx", tmp_path / "quantized.onnx"
    onnx.save(language_model(), plain)
    kinds = ["Gather", "Attention", "LSTM", "MatMul"]
    quantize_dynamic(plain, path, op_types_to_quantize=kinds, extra_options=USUAL)
    inputs = {"ids": RNG.integers(0, WORDS, (1, LENGTH))}
    graph = import_model(onnx.load(path))
    (expected,) = run_graph(graph, inputs).values()
    (found,) = compile_graph(graph).run(inputs).values()
    assert np.abs(found - expected).max() <= 0.02 * np.abs(expected).max()

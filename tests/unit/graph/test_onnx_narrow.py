"""Integers of two and four bits mean what they are, wherever a network holds them inside."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from retune.bundle.verify.peers import open_reference
from retune.core.errors import ModelError
from retune.frontend.onnx.importer import import_model, load_file
from retune.frontend.quantized.narrow import widened
from retune.graph.evaluate import run_graph
from tests.support.networks import node
from tests.support.onnx_pairs import CODING, DECODING, float_ops, layers, pair, peer
from tests.support.peer import assert_computes, typed_model

RNG = np.random.default_rng(23)
OPSET, NEWEST = 21, 25
LIMITS = {
    TensorProto.INT4: (-8, 7),
    TensorProto.UINT4: (0, 15),
    TensorProto.INT2: (-2, 1),
    TensorProto.UINT2: (0, 3),
}
FOUR = [TensorProto.INT4, TensorProto.UINT4]


def narrow(name: str, kind: int, *shape: int) -> onnx.TensorProto:
    low, high = LIMITS[kind]
    values = RNG.integers(low, high + 1, shape)
    made = helper.make_tensor(name, kind, shape, values.reshape(-1))
    return onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(made), name)  # packed in bytes


def scales(*shape: int) -> np.ndarray:
    return (RNG.random(shape) * 0.05 + 0.01).astype(np.float32)


def model_of(
    nodes: list[onnx.NodeProto], x: np.ndarray, weights: Any, tensors: Any, opset: int = OPSET
) -> onnx.ModelProto:
    model = typed_model(nodes, {"x": x}, ["y"], weights, opset)
    model.graph.initializer.extend(tensors)
    return model


def reference(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    (y,) = ReferenceEvaluator(model).run(None, {"x": x})
    return np.asarray(y)


@pytest.mark.parametrize("kind", FOUR)
@pytest.mark.parametrize(("axis", "block"), [(0, 0), (1, 0), (0, 4), (1, 3)])
def test_weights_of_four_bits_by_channel_or_in_blocks(kind: int, axis: int, block: int) -> None:
    x = RNG.standard_normal((3, 8)).astype(np.float32)
    shape = [8, 6]
    own = (
        tuple(n // block if d == axis else n for d, n in enumerate(shape))
        if block
        else (shape[axis],)
    )
    attrs = {"axis": axis} | ({"block_size": block} if block else {})
    nodes = [
        node("DequantizeLinear", ["w", "s", "z"], ["wide"], **attrs),
        node("MatMul", ["x", "wide"], ["y"]),
    ]
    tensors = [narrow("w", kind, *shape), narrow("z", kind, *own)]
    model = model_of(nodes, x, {"s": scales(*own)}, tensors)
    assert_computes(model, {"x": x}, {"y": peer(model, {"x": x})})


FORMS = {
    "MatMul": (0, [node("MatMul", ["x", "wide"], ["y"])]),
    "Gemm": (1, [node("Gemm", ["x", "wide", "b"], ["y"], transB=1)]),
    "Transpose": (1, [node("Transpose", ["wide"], ["t"]), node("MatMul", ["x", "t"], ["y"])]),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [*FOUR, TensorProto.INT8, TensorProto.UINT2])
def test_weights_in_blocks_of_whole_words_stay_packed(kind: int, form: str) -> None:
    """Also where the last block of 16 is not full, and without zero points."""
    axis, nodes = FORMS[form]
    count, depth, has_zero = 5, 40, form != "Gemm"
    x = RNG.standard_normal((3, depth)).astype(np.float32)
    shape, own = ((n, m)[:: 1 if axis else -1] for n, m in ((count, depth), (count, 3)))
    names = ["w", "s", *(["z"] if has_zero else [])]
    nodes = [node("DequantizeLinear", names, ["wide"], axis=axis, block_size=16), *nodes]
    known: dict[str, Any] = {"s": scales(*own)}
    known |= {"b": scales(count)} if form == "Gemm" else {}
    tensors: list[onnx.TensorProto] = []
    for name, extents in (("w", shape), *((("z", own),) if has_zero else ())):
        if kind in LIMITS:
            tensors.append(narrow(name, kind, *extents))
        else:
            known[name] = RNG.integers(-128, 128, extents).astype(np.int8)
    model = model_of(nodes, x, known, tensors, NEWEST)
    (product,) = [n for n in import_model(model).nodes if n.op == "dense_blocks"]
    assert import_model(model).types[product.inputs[1]].dtype == "int32"
    assert_computes(model, {"x": x}, {"y": reference(model, x)})


@pytest.mark.parametrize("kind", FOUR)
def test_layers_with_weights_of_four_bits_compute_with_bytes(kind: int) -> None:
    x = RNG.standard_normal((1, 3, 6, 6)).astype(np.float32)
    nodes = [
        *pair("x", "rounded"),
        node("DequantizeLinear", ["w", "ws", "wz"], ["weight"], axis=0),
        node("Conv", ["rounded", "weight"], ["c"]),
        *pair("c", "y"),
    ]
    known = {"s": np.asarray(0.03, np.float32), "z": np.asarray(7, np.int8), "ws": scales(5)}
    tensors = [narrow("w", kind, 5, 3, 3, 3), narrow("wz", kind, 5)]
    model = model_of(nodes, x, known, tensors)
    graph = import_model(model)
    assert layers(graph) == {"int32"}
    assert [op for op in float_ops(graph) if op != "identity"] == CODING + DECODING
    expected = peer(model, {"x": x})
    assert np.abs(run_graph(graph, {"x": x})["y"] - expected).max() <= 1.001 * known["s"]


@pytest.mark.parametrize("kind", LIMITS)
@pytest.mark.parametrize("stated", [False, True])
def test_quantizing_to_fewer_bits_saturates_there(kind: int, stated: bool) -> None:
    x = (RNG.standard_normal((4, 5)) * 9).astype(np.float32)
    names, attrs = ["s", "z"], {}
    tensors = [narrow("z", kind)]
    if stated:
        names, attrs, tensors = ["s"], {"output_dtype": kind}, []
    back = ["q", *(["s", "z"] if not stated else ["s"])]
    nodes = [
        node("QuantizeLinear", ["x", *names], ["q"], **attrs),
        node("DequantizeLinear", back, ["y"]),
    ]
    model = model_of(nodes, x, {"s": np.asarray(0.5, np.float32)}, tensors, NEWEST)
    assert_computes(model, {"x": x}, {"y": reference(model, x)})


def test_constants_in_nodes_are_read_too() -> None:
    x = RNG.standard_normal((2, 4)).astype(np.float32)
    nodes = [
        helper.make_node("Constant", [], ["w"], value=narrow("w", TensorProto.INT4, 4, 3)),
        node("DequantizeLinear", ["w", "s"], ["wide"]),
        node("MatMul", ["x", "wide"], ["y"]),
    ]
    model = model_of(nodes, x, {"s": np.asarray(0.5, np.float32)}, [])
    assert_computes(model, {"x": x}, {"y": peer(model, {"x": x})})


def in_a_file(folder: Path, x: np.ndarray) -> Path:
    """An odd number of elements beside the model."""
    nodes = [node("DequantizeLinear", ["w", "s"], ["wide"]), node("MatMul", ["x", "wide"], ["y"])]
    weights = {"s": np.asarray(0.5, np.float32)}
    model = model_of(nodes, x, weights, [narrow("w", TensorProto.INT4, 5, 3)])
    path = folder / "net.onnx"
    onnx.save(model, path, save_as_external_data=True, location="net.data", size_threshold=0)
    return path


def test_data_beside_the_model_hold_several_in_a_byte(tmp_path: Path) -> None:
    x = RNG.standard_normal((2, 5)).astype(np.float32)
    path = in_a_file(tmp_path, x)
    expected = peer(onnx.load(path), {"x": x})
    np.testing.assert_allclose(run_graph(load_file(path), {"x": x})["y"], expected, rtol=1e-5)


def test_data_that_are_cut_off_are_refused(tmp_path: Path) -> None:
    path = in_a_file(tmp_path, np.zeros((2, 5), np.float32))
    (tmp_path / "net.data").write_bytes(b"1234")
    with pytest.raises(ModelError, match=r"'w'.*(truncated|offset)"):
        load_file(path)


@pytest.mark.parametrize("kind", LIMITS)
def test_a_network_takes_and_returns_them_in_bytes(kind: int, tmp_path: Path) -> None:
    """A cast keeps the lowest bits; onnxruntime's arrays have no such types, so numpy is asked."""
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s"], ["d"]),
        helper.make_node("Cast", ["f"], ["c"], to=kind),
        helper.make_node("Cast", ["d"], ["y"], to=kind),
    ]
    inputs = [
        helper.make_tensor_value_info("x", kind, [3]),
        helper.make_tensor_value_info("f", TensorProto.FLOAT, [5]),
    ]
    outputs = [helper.make_tensor_value_info(name, kind, None) for name in ("c", "y")]
    scale = onnx.numpy_helper.from_array(np.float32(1), "s")
    graph = helper.make_graph(nodes, "net", inputs, outputs, [scale])
    opset = helper.make_opsetid("", OPSET if kind in FOUR else NEWEST)
    onnx.save(helper.make_model(graph, opset_imports=[opset]), file := tmp_path / "net.onnx")
    low, high = LIMITS[kind]
    made = load_file(file)
    x = np.array([low, high, 0], made.types["x"].dtype.numpy)
    floats = np.array([high + 1, low - 1, low, high, high + 0.75], np.float32)
    found = run_graph(made, {"x": x, "f": floats})
    assert found["c"].dtype == x.dtype and found["c"].tolist() == [low, high, low, high, high]
    assert found["y"].tolist() == x.tolist()
    oracle = open_reference(file, lambda: made)
    assert oracle.name == "numpy" and "fewer than eight bits" in oracle.note


@pytest.mark.parametrize("op", ["Constant", "QuantizeLinear"])
def test_a_node_that_makes_nothing_is_left_to_others(op: str):
    bent = helper.make_node(op, [], [], output_dtype=TensorProto.INT4)
    stored = onnx.numpy_helper.from_array(np.ones(2, np.float32), "stored")
    bent.attribute.append(helper.make_attribute("value", stored))
    model = helper.make_model(helper.make_graph([bent], "g", [], []))
    assert widened(model) is model

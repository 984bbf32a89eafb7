"""Products of bytes with known bytes stay products of bytes, whatever their zero points are."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnxruntime.quantization import QuantType

from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import run_graph
from retune.graph.graph import Graph
from tests.support.bytewise import dynamically
from tests.support.networks import node
from tests.support.onnx_pairs import inputs_of, peer
from tests.support.peer import assert_computes, peer_outputs, typed_model

RNG = np.random.default_rng(17)
BYTES = ("uint8", "int8")
HEAVY = ("conv2d", "depthwise_conv2d", "dense", "matmul")


def codes(dtype: str, *shape: int) -> np.ndarray:
    """Of all that there are."""
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max + 1, shape).astype(dtype)


def in_words(graph: Graph) -> bool:
    """Whether every layer multiplies bytes, channels in words of four."""
    layers = [n for n in graph.nodes if n.op in HEAVY]
    types = [graph.types[value] for n in layers for value in n.inputs]
    deep = [graph.types[n.inputs[1]].shape[1] for n in layers if n.op != "depthwise_conv2d"]
    return {t.dtype for t in types} <= {"uint8", "int8", "int7"} and not any(d % 4 for d in deep)


@pytest.mark.parametrize("weights", [QuantType.QInt8, QuantType.QUInt8])
@pytest.mark.parametrize("by_channel", [False, True])
def test_a_network_of_dynamic_ranges_multiplies_bytes(
    weights: QuantType, by_channel: bool, tmp_path: Path
) -> None:
    model = dynamically(tmp_path, weight_type=weights, per_channel=by_channel, reduce_range=True)
    graph = import_model(model)
    inputs = inputs_of(model, 9)
    assert in_words(graph)
    found = run_graph(graph, inputs)[graph.outputs[0]]
    np.testing.assert_allclose(found, peer(model, inputs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kinds", [(a, b) for a in BYTES for b in BYTES])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("by_column", [False, True])
def test_products_of_all_bytes(kinds: tuple[str, str], known: bool, by_column: bool) -> None:
    a, b = codes(kinds[0], 2, 5, 7), codes(kinds[1], 7, 6)
    az, bz = codes(kinds[0]), codes(kinds[1], *([6] if by_column else []))
    inputs = {"a": a} if known else {"a": a, "az": np.asarray(az)}
    weights = {"b": b, "bz": np.asarray(bz)} | ({"az": np.asarray(az)} if known else {})
    model = typed_model(
        [node("MatMulInteger", ["a", "b", "az", "bz"], ["y"])], inputs, ["y"], weights
    )
    assert in_words(import_model(model))
    wide = (part.astype(np.int32) for part in (a, b, az, bz))
    left, right, left_zero, right_zero = wide
    assert_computes(model, inputs, {"y": (left - left_zero) @ (right - right_zero)}, 0)


def test_rows_may_have_zero_points_of_their_own() -> None:
    a, b, az = codes("uint8", 5, 8), codes("int8", 8, 3), codes("uint8", 5)
    model = typed_model(
        [node("MatMulInteger", ["a", "b", "az"], ["y"])], {"a": a, "az": az}, ["y"], {"b": b}
    )
    expected = (a.astype(np.int32) - az[:, None]) @ b.astype(np.int32)
    assert_computes(model, {"a": a, "az": az}, {"y": expected}, 0)


SHAPES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 3, 7, 6), (5, 3, 3, 3), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
    ((2, 4, 6, 6), (6, 2, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
    ((1, 4, 6, 5), (4, 1, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
    ((1, 3, 9), (5, 3, 3), {"dilations": [2], "pads": [2, 2]}),
    ((1, 2, 4, 5, 3), (4, 2, 3, 3, 3), {"pads": [1, 1, 1, 1, 1, 1]}),
]


@pytest.mark.parametrize("kinds", [(a, b) for a in BYTES for b in BYTES])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(("shape", "kernel", "attrs"), SHAPES)
def test_convolutions_of_all_bytes(
    kinds: tuple[str, str], known: bool, shape: Any, kernel: Any, attrs: dict[str, Any]
) -> None:
    """What lies around the data is its zero point; floats hold these sums exactly."""
    x, w = codes(kinds[0], *shape), codes(kinds[1], *kernel)
    xz, wz = np.asarray(codes(kinds[0])), np.asarray(codes(kinds[1]))
    floats = {"x": x.astype(np.float32) - xz.astype(np.float32)}
    kernel_floats = {"w": w.astype(np.float32) - wz.astype(np.float32)}
    conv = typed_model([node("Conv", ["x", "w"], ["y"], **attrs)], floats, ["y"], kernel_floats)
    expected = peer_outputs(conv, floats)["y"].astype(np.int32)
    inputs = {"x": x} if known else {"x": x, "xz": xz}
    weights = {"w": w, "wz": wz} | ({"xz": xz} if known else {})
    integer = node("ConvInteger", ["x", "w", "xz", "wz"], ["y"], **attrs)
    assert_computes(typed_model([integer], inputs, ["y"], weights), inputs, {"y": expected}, 0)

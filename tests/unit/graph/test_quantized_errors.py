"""Models that are quantized already, and wrong: each error names the node of the file.

It also says what was expected, what was found, and what to do.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from retune.core.errors import ModelError
from retune.frontend.onnx.importer import import_model

ONE = np.float32(0.1)
KERNEL = np.ones((4, 3, 1, 1), np.int8)


def named(op: str, inputs: str, made: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [made], name=f"{op} of {made}", **attributes)


def model_of(
    nodes: list[onnx.NodeProto],
    stored: Mapping[str, np.ndarray | np.generic],
    element: int = TensorProto.FLOAT,
    channels: int = 3,
) -> onnx.ModelProto:
    given = helper.make_tensor_value_info("x", element, (1, channels, 2, 2))
    made = helper.make_tensor_value_info("y", element, None)
    constants = [numpy_helper.from_array(np.asarray(v), k) for k, v in stored.items()]
    graph = helper.make_graph(nodes, "net", [given], [made], constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets)


def pairs(reads: str = "x s z", **stored: Any) -> onnx.ModelProto:
    """A convolution between pairs."""
    nodes = [
        named("QuantizeLinear", reads, "q"),
        named("DequantizeLinear", "q s z", "d"),
        named("DequantizeLinear", "w ws", "v", axis=0),
        named("Conv", "d v", "y"),
    ]
    usual = {"s": ONE, "z": np.uint8(3), "ws": ONE, "w": KERNEL}
    channels = stored.get("w", KERNEL).shape[1]
    return model_of(nodes, {**usual, **stored}, channels=channels)


def coded(nodes: list[onnx.NodeProto], **stored: Any) -> onnx.ModelProto:
    """Operators on codes."""
    usual = {"s": ONE, "z": np.uint8(3), "ws": ONE, "wz": np.int8(0), "w": KERNEL}
    return model_of(nodes, {**usual, **stored}, TensorProto.UINT8)


def convolution(reads: str = "x s z w ws wz s z", **stored: Any) -> onnx.ModelProto:
    return coded([named("QLinearConv", reads, "y")], **stored)


def microsoft(op: str, reads: str) -> onnx.ModelProto:
    return coded([named(op, reads, "y", domain="com.microsoft")])


def distant() -> onnx.ModelProto:
    """A sum whose codes cannot be told from those of its terms."""
    nodes = [
        named("QuantizeLinear", "x s z", "q"),
        named("DequantizeLinear", "q s z", "d"),
        named("DequantizeLinear", "w ws", "v", axis=0),
        named("Conv", "d v", "c"),
        named("QuantizeLinear", "c s z", "cq"),
        named("DequantizeLinear", "cq s z", "e"),
        named("Add", "d e", "a"),
        named("QuantizeLinear", "a far z", "aq"),
        named("DequantizeLinear", "aq far z", "y"),
    ]
    stored = {"s": ONE, "z": np.uint8(3), "ws": ONE, "w": KERNEL[:3], "far": np.float32(1e-8)}
    return model_of(nodes, stored)


CASES: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "no scale": (
        lambda: pairs("x"),
        r"'QuantizeLinear of q' .*expected data and a scale, got one input; export",
    ),
    "integer scale": (
        lambda: pairs(s=np.int32(1)),
        r"'QuantizeLinear of q' .*scale of int32: expected float32 or float16; export",
    ),
    "no number": (
        lambda: pairs(s=np.float32("inf")),
        r"'QuantizeLinear of q' .*scale: expected finite numbers, got inf or nan; quantize",
    ),
    "scales of other channels": (
        lambda: pairs(ws=np.ones(3, np.float32)),
        r"'DequantizeLinear of v' .*float32\[3\] for data \[4, 3, 1, 1\].*expected .*4 elements",
    ),
    "scales of a far axis": (
        lambda: convolution(ws=np.ones(3, np.float32)),
        r"'QLinearConv of y.read' .*float32\[3\] .*expected one element, 4 elements",
    ),
    "few inputs of a convolution": (
        lambda: convolution("x s z"),
        r"'QLinearConv of y' \(QLinearConv\): expected at least 8 inputs, got 3; export",
    ),
    "few inputs of a sum": (
        lambda: microsoft("QLinearAdd", "x s z x s z"),
        r"'QLinearAdd of y' \(QLinearAdd\): expected at least 7 inputs, got 6; export",
    ),
    "few inputs of a function": (
        lambda: microsoft("QLinearSigmoid", "x s z"),
        r"'QLinearSigmoid of y' .*: expected at least 4 inputs, got 3; export",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_error_names_the_node(case: str) -> None:
    build, message = CASES[case]
    with pytest.raises(ModelError, match=message) as found:
        import_model(build())
    assert str(found.value).startswith("net: node "), "the place comes first"


def test_the_same_models_without_the_fault_are_taken() -> None:
    for model in (pairs(), convolution(), microsoft("QLinearAdd", "x s z x s z s z")):
        assert import_model(model).outputs == ("y",)


def test_what_integers_cannot_do_is_taken_in_floats() -> None:
    deep = np.full((1, 70_000, 1, 1), 127, np.int8)
    for model in (pairs(w=deep), distant()):
        assert import_model(model).outputs == ("y",)

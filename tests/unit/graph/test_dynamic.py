"""Products of data that are quantized while the network runs mean what onnxruntime computes."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from retune.frontend.onnx.importer import import_model
from retune.graph.fuse import partition
from retune.graph.passes.pipeline import optimise
from tests.support.peer import Arrays, assert_as_peer, assert_computes, typed_model

SEED = 38
RNG = np.random.default_rng(SEED)
MICROSOFT = "com.microsoft"
LSTM_STEP = 4e-3
"""What one step of a quantized state changes in these layers."""


@pytest.fixture(autouse=True)
def own_draws() -> None:
    """Each test draws the same numbers, whichever ran before it: with some, a state is a tie of two
    codes, which the last bit of a sigmoid decides."""
    RNG.bit_generator.state = np.random.default_rng(SEED).bit_generator.state


def whole(dtype: str, *shape: int) -> np.ndarray:
    """Small enough that no kernel of onnxruntime saturates sums of two products."""
    low = 0 if dtype == "uint8" else -60
    return RNG.integers(low, 60, shape).astype(dtype)


def scales(*shape: int) -> np.ndarray:
    return np.asarray(RNG.random(shape) * 0.02 + 0.005, np.float32)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def microsoft(op: str, names: list[str], inputs: Arrays, known: Arrays, **attrs: Any):
    outputs = attrs.pop("outputs", ["y"])
    made = helper.make_node(op, names, outputs, domain=MICROSOFT, **attrs)
    model = typed_model([made], inputs, outputs, known)
    model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    return model


def on_one_thread(made: onnx.ModelProto, inputs: Arrays) -> Arrays:
    """What onnxruntime computes on one thread: on several, each quantizes its part of a batch."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(made.SerializeToString(), options)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("more", [(), ("bz",), ("bz", "bias"), ("bias",)])
def test_float_data_times_a_quantized_matrix(dtype: str, columns: bool, more: tuple[str, ...]):
    wide = (7,) if columns else ()
    known = {"b": whole(dtype, 6, 7), "bs": scales(*wide), "bz": whole(dtype, *wide)}
    known["bias"] = floats(7)
    names = ["a", "b", "bs", *(name if name in more else "" for name in ("bz", "bias"))]
    used = {name: known[name] for name in names if name in known}
    inputs = {"a": floats(2, 3, 6)}
    assert_as_peer(microsoft("DynamicQuantizeMatMul", names, inputs, used), inputs)


@pytest.mark.parametrize(
    ("left", "right"), [("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8")]
)
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("more", [(), ("az", "bz"), ("az", "bz", "bias"), ("bias",)])
def test_quantized_matrices_as_floats(left: str, right: str, columns: bool, more: tuple[str, ...]):
    wide = (7,) if columns else (1,)
    known = {"b": whole(right, 6, 7), "as": scales(), "bs": scales(*wide)}
    known |= {"az": whole(left, 1)[0], "bz": whole(right, *wide), "bias": floats(7)}
    extra = [name if name in more else "" for name in ("az", "bz", "bias")]
    names = ["a", "b", "as", "bs", *extra]
    used = {name: np.asarray(known[name]) for name in names if name in known}
    inputs = {"a": whole(left, 4, 6)}
    assert_as_peer(microsoft("MatMulIntegerToFloat", names, inputs, used), inputs)


def test_a_matrix_that_is_an_input():
    inputs = {"a": floats(4, 6), "b": whole("int8", 6, 5), "bs": scales()}
    made = microsoft("DynamicQuantizeMatMul", ["a", "b", "bs"], inputs, {})
    assert_as_peer(made, inputs)


def test_data_of_zeros_have_the_scale_one():
    inputs = {"a": np.zeros((2, 6), np.float32)}
    known = {"b": whole("int8", 6, 5), "bs": scales()}
    assert_as_peer(microsoft("DynamicQuantizeMatMul", ["a", *known], inputs, known), inputs, 0)


NAMES = ("X", "W", "R", "B", "lengths", "h", "c", "P", "ws", "wz", "rs", "rz")
STEPS, WIDTH, HIDDEN = 5, 4, 6
LSTMS = [
    (("B",), {}, "int8", False),
    (("B", "h", "c"), {"direction": "bidirectional"}, "uint8", True),
    (("B", "lengths", "P"), {"clip": 0.9}, "int8", True),
    (("lengths", "h", "c"), {"direction": "reverse", "input_forget": 1}, "uint8", False),
    ((), {"activations": ["HardSigmoid", "Tanh", "Relu"]}, "int8", True),
]


def lstm(
    optional: tuple[str, ...], attrs: dict[str, Any], dtype: str, columns: bool, batch: int
) -> tuple[onnx.ModelProto, Arrays]:
    count = 2 if attrs.get("direction") == "bidirectional" else 1
    wide = (count, 4 * HIDDEN) if columns else (count,)
    offset = np.full(wide, 0 if dtype == "int8" else 30, dtype)
    arrays = {
        "W": whole(dtype, count, WIDTH, 4 * HIDDEN), "R": whole(dtype, count, HIDDEN, 4 * HIDDEN),
        "B": floats(count, 8 * HIDDEN), "lengths": RNG.integers(1, STEPS, batch).astype(np.int32),
        "h": floats(count, batch, HIDDEN), "c": floats(count, batch, HIDDEN),
        "P": floats(count, 3 * HIDDEN), "ws": scales(*wide), "wz": offset, "rs": scales(*wide),
        "rz": offset,
    }  # fmt: skip
    given = {"X", "W", "R", "ws", "wz", "rs", "rz", *optional}
    names = [name if name in given else "" for name in NAMES]
    inputs = {"X": floats(STEPS, batch, WIDTH)}
    if "lengths" in optional:
        inputs["lengths"] = arrays["lengths"]
    known = {name: arrays[name] for name in names if name in arrays and name not in inputs}
    attrs = attrs | {"hidden_size": HIDDEN, "outputs": ["Y", "Yh", "Yc"]}
    return microsoft("DynamicQuantizeLSTM", names, inputs, known, **attrs), inputs


@pytest.mark.parametrize(("optional", "attrs", "dtype", "columns"), LSTMS)
@pytest.mark.parametrize("batch", [1, 3])
def test_an_lstm_whose_weights_are_quantized(optional, attrs, dtype, columns, batch):
    """But for sequences of several lengths in reverse, states are quantized to the same values.

    onnxruntime walks those from the end of each: other steps share a range there.
    """
    made, inputs = lstm(optional, attrs, dtype, columns, batch)
    apart = batch > 1 and "lengths" in optional and attrs.get("direction") == "reverse"
    expected = on_one_thread(made, inputs)
    assert_computes(made, inputs, expected, LSTM_STEP if apart else 1e-5)


def test_a_step_quantizes_its_state_in_one_kernel_and_rescales_the_product_in_another():
    made, _ = lstm((), {}, "int8", True, 3)
    bodies = [n.attrs["body"] for n in optimise(import_model(made)).nodes if n.op == "scan"]
    groups = [group for body in bodies for group in partition(body)]
    kernels = [[node.op for node in group.nodes] for group in groups]
    assert ["quotient", "round", "add", "clip", "cast"] in kernels
    assert ["dense", "subtract", "cast", "multiply", "add"] in kernels


@pytest.mark.parametrize("mask", ["", "lengths", "matrix"])
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("columns", [False, True])
def test_attention_of_quantized_data(mask: str, past: bool, columns: bool):
    batch, length, width, heads = 2, 5, 8, 2
    before = 3 if past else 0
    known = {
        "w": whole("int8", width, 3 * width),
        "c": floats(3 * width) * 0.1,
        "xs": scales(),
        "ws": scales(*((3 * width,) if columns else (1,))),
        "xz": np.asarray(20, np.uint8),
        "wz": np.zeros((3 * width,) if columns else (1,), np.int8),
    }
    inputs = {"x": whole("uint8", batch, length, width)}
    if mask:
        rows = np.array([5, 3], np.int32) + before
        seen = np.arange(length + before) < rows[:, None]
        inputs["m"] = rows if mask == "lengths" else seen.astype(np.int32)
    if past:
        inputs["p"] = floats(2, batch, heads, before, width // heads)
    names = ["x", "w", "c", "xs", "ws", "m" if mask else "", "xz", "wz", "p" if past else ""]
    outputs = ["y", "present"] if past else ["y"]
    attrs = {"num_heads": heads, "unidirectional": int(not mask), "outputs": outputs}
    made = microsoft("QAttention", names, inputs, known, **attrs)
    assert_as_peer(made, inputs)


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("mask", [False, True])
def test_embeddings_of_quantized_tables(segments: bool, mask: bool):
    ids = RNG.integers(0, 9, (2, 4)).astype(np.int32)
    inputs = {"ids": ids, "seg": (ids > 4).astype(np.int32), "m": (ids > 1).astype(np.int32)}
    tables = {"w": (9, 8), "p": (6, 8), "s": (2, 8), "g": (8,), "b": (8,)}
    known = {name: whole("uint8", *shape) for name, shape in tables.items()}
    known |= {f"{name}s": scales() for name in tables}
    known |= {f"{name}z": np.asarray(20, np.uint8) for name in tables}
    used = [name if segments or name != "s" else "" for name in tables]
    names = ["ids", "seg" if segments else "", *used, "m" if mask else ""]
    names += [name and f"{name}{end}" for end in "sz" for name in used]
    made = microsoft(
        "QEmbedLayerNormalization", names, {n: inputs[n] for n in names if n in inputs},
        {n: known[n] for n in names if n in known}, outputs=["y", "index"],
    )  # fmt: skip
    assert_as_peer(made, {n: inputs[n] for n in names if n in inputs})

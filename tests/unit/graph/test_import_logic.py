"""Logic, comparisons, bits and remainders mean what onnxruntime and ONNX's text say."""

import itertools

import numpy as np
import pytest

from retune.core.errors import ModelError
from retune.frontend.onnx.ops import handler_of
from retune.graph.evaluate import run_graph
from tests.support.one_node import assert_as_onnxruntime, imported

SIGNED = [np.int8, np.int16, np.int32, np.int64]
UNSIGNED = [np.uint8, np.uint16, np.uint32, np.uint64]
SPECIAL = np.array([1, -1, 0, np.nan, np.inf, -np.inf], np.float32)


def result(op: str, *arrays: np.ndarray, **options: object) -> list[object]:
    inputs = dict(zip("ab", arrays, strict=False))
    (made,) = run_graph(imported(op, inputs, **options), inputs).values()
    return made.tolist()


@pytest.mark.parametrize("op", ["GreaterOrEqual", "LessOrEqual", "Greater", "Less", "Equal"])
def test_nothing_is_ordered_with_a_nan(op: str):
    a, b = (np.array(x, np.float32) for x in zip(*itertools.product(SPECIAL, SPECIAL), strict=True))
    assert_as_onnxruntime(op, {"a": a, "b": b}, opset=13)
    either = np.isnan(a) | np.isnan(b)
    assert not np.any(np.array(result(op, a, b))[either])


@pytest.mark.parametrize("op", ["And", "Or", "Xor"])
def test_logic_broadcasts(op: str):
    a, b = np.array([[True], [False]]), np.array([True, False, True])
    assert_as_onnxruntime(op, {"a": a, "b": b}, opset=7)


def test_logic_of_numbers_is_refused():
    a = np.array([1, 0], np.int32)
    with pytest.raises(ModelError, match="expected values of type bool, got int32"):
        imported("And", {"a": a, "b": a})


@pytest.mark.parametrize("negative", [0, 1])
@pytest.mark.parametrize("positive", [0, 1])
def test_infinities_of_chosen_signs(negative: int, positive: int):
    attrs = {"detect_negative": negative, "detect_positive": positive}
    assert_as_onnxruntime("IsInf", {"a": SPECIAL}, opset=10, **attrs)


def test_what_is_no_number_and_what_sign_it_has():
    assert_as_onnxruntime("IsNaN", {"a": SPECIAL}, opset=9)
    assert_as_onnxruntime("Sign", {"a": np.array([2.5, -0.5, 0, -np.inf], np.float32)}, opset=9)
    assert_as_onnxruntime("Sign", {"a": np.array([7, 0, 255], np.uint8)}, opset=9)


@pytest.mark.parametrize("dtype", SIGNED)
@pytest.mark.parametrize("fmod", [0, 1])
def test_remainders_of_integers(dtype: type, fmod: int):
    pairs = itertools.product((-7, 7, 6, 0), (3, -3))
    a, b = (np.array(x, dtype) for x in zip(*pairs, strict=True))
    assert_as_onnxruntime("Mod", {"a": a, "b": b}, opset=10, fmod=fmod)
    wanted = np.fmod(a, b) if fmod else np.mod(a, b)
    assert result("Mod", a, b, fmod=fmod) == wanted.tolist()


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_arithmetic_of_integers_without_sign(dtype: type):
    most = np.iinfo(dtype).max
    a, b = np.array([most, 7, most], dtype), np.array([2, 3, most], dtype)
    assert result("Mod", a, b) == [1, 1, 0]
    assert result("Div", a, b, opset=14) == [int(most) // 2, 2, 1]
    assert result("Max", a, b) == [most, 7, most]
    assert result("Greater", a, b) == [True, True, False]
    assert result("Cast", a, to=1) == [float(np.float32(most)), 7.0, float(np.float32(most))]


def test_remainders_of_floats_have_the_sign_of_the_dividend_or_the_divisor():
    a, b = np.array([-4.3, 7.2, 5.0], np.float32), np.array([2.1, -3.4, 8.0], np.float32)
    assert_as_onnxruntime("Mod", {"a": a, "b": b}, opset=10, fmod=1)
    np.testing.assert_allclose(result("Mod", a, b, opset=28), np.mod(a, b))


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("dtype", UNSIGNED)
def test_shifts_by_up_to_the_width(direction: str, dtype: type):
    width = 8 * np.dtype(dtype).itemsize
    a = np.full(4, np.iinfo(dtype).max - 4, dtype)
    b = np.array([0, 3, width - 1, width], dtype)
    pairs = list(zip(a.tolist(), b.tolist(), strict=True))
    wanted = [x >> s for x, s in pairs]
    if direction == "LEFT":
        wanted = [(x << s) % 2**width for x, s in pairs]
    assert result("BitShift", a, b, opset=11, direction=direction) == wanted


def test_a_shift_to_nowhere_is_refused():
    a = np.array([1], np.uint8)
    with pytest.raises(ModelError, match="the direction 'UP' is not supported"):
        imported("BitShift", {"a": a, "b": a}, direction="UP")


@pytest.mark.parametrize("op", ["BitwiseAnd", "BitwiseOr", "BitwiseXor"])
@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED])
def test_bits(op: str, dtype: type):
    limits = np.iinfo(dtype)
    a, b = np.array([limits.max, 5, limits.min], dtype), np.array([3, 6, limits.max], dtype)
    assert_as_onnxruntime(op, {"a": a, "b": b}, opset=18)
    assert_as_onnxruntime("BitwiseNot", {"a": a}, opset=18)


def test_bits_as_another_type():
    ones = np.array([1.0, -2.0], np.float32)
    assert result("BitCast", ones, opset=26, to=12) == ones.view(np.uint32).tolist()
    assert result("BitCast", np.array([0, 1], np.uint8), opset=26, to=9) == [False, True]
    with pytest.raises(ModelError, match=r"bitcast of float32\[2\] to int64: expected numbers of"):
        imported("BitCast", {"a": ones}, opset=26, to=7)


@pytest.mark.parametrize("op", ["Sin", "Cos", "Tan", "Atan", "Sinh", "Cosh", "Tanh", "Asinh"])
def test_functions_of_angles(op: str):
    x = np.linspace(-1.5, 1.5, 13, dtype=np.float32)
    assert_as_onnxruntime(op, {"a": x}, opset=9)


@pytest.mark.parametrize("op", ["Asin", "Acos", "Atanh", "Acosh"])
def test_functions_of_a_limited_range(op: str):
    x = np.linspace(-0.9, 0.9, 13, dtype=np.float32)
    assert_as_onnxruntime(op, {"a": x + 2 if op == "Acosh" else x}, opset=9)


@pytest.mark.parametrize(
    ("op", "opset"), [("BitShift", 11), ("BitwiseAnd", 18), ("GreaterOrEqual", 12), ("Mod", 10)]
)
def test_ops_begin_with_their_first_opset(op: str, opset: int):
    assert handler_of(op, opset) is not None and handler_of(op, opset - 1) is None

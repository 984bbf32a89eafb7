"""A scalar function is one entry: its expression, numpy meaning and text follow from it."""

from collections.abc import Iterator

import numpy as np
import pytest

from retune.codegen.lower import lower
from retune.codegen.target import CPU
from retune.core.dtypes import BOOL, FLOAT32, INT32, DType
from retune.ir.evaluate import apply, evaluate
from retune.ir.expr import Expr, Var, maximum, minimum
from retune.ir.functions import FUNCTIONS, call, function, rounding
from retune.ir.stmt import from_dag
from retune.ir.te import Dag, compute, placeholder

X = Var("x", FLOAT32)


@pytest.fixture
def added() -> Iterator[None]:
    """What tests register is gone after them."""
    known = set(FUNCTIONS)
    yield
    for name in set(FUNCTIONS) - known:
        del FUNCTIONS[name]


def text_of(name: str) -> str:
    x = placeholder("x", (4,))
    dag = Dag((compute("y", (4,), lambda i: call(name, x[i]), [x]),))
    return lower(from_dag(dag), CPU).text


@pytest.mark.usefixtures("added")
def test_an_expression_of_others_is_all_that_a_function_needs():
    entry = function("hard_tanh", lambda x: minimum(maximum(x, -1.0), 1.0))
    assert str(call("hard_tanh", X)) == "min(max(x, -1.0), 1.0)"
    assert apply(entry, np.array([-3, 0.5, 3], np.float32)).tolist() == [-1, 0.5, 1]
    assert "AT_MOST_FLOAT(AT_LEAST_FLOAT(x[y_i], (-1.0f)), 1.0f)" in text_of("hard_tanh")


@pytest.mark.usefixtures("added")
def test_a_function_of_opencl_is_a_node():
    entry = function("cbrt", numpy=np.cbrt, opencl="cbrt")
    assert str(call("cbrt", X)) == "cbrt(x)"
    x = np.array([8, 27], np.float32)
    assert np.array_equal(apply(entry, x), np.cbrt(x))
    assert "= cbrt(x[" in text_of("cbrt")


def test_attributes_have_defaults():
    assert str(call("leaky_relu", X)) == "select(x < 0.0, x*0.01, x)"
    assert str(call("leaky_relu", X, alpha=0.5)) == "select(x < 0.0, x*0.5, x)"


def test_results_have_the_first_arguments_type_or_are_truth_values():
    x, k = np.array([0.5, 2], np.float16), np.array([2, -3], np.int32)
    assert apply(FUNCTIONS["power"], k, x).dtype == np.int32
    assert apply(FUNCTIONS["less"], x, x).dtype == np.bool_
    assert apply(FUNCTIONS["sigmoid"], x).dtype == np.float16


def test_names_are_not_taken_twice():
    with pytest.raises(ValueError, match="'exp' is registered twice"):
        function("exp", lambda x: x)


def test_a_function_without_meaning_is_refused():
    with pytest.raises(ValueError, match="expected an expression, or numpy and opencl"):
        function("nothing")


def test_unknown_functions_are_refused():
    with pytest.raises(ValueError, match="'nothing' is not one of"):
        call("nothing", X)


def test_every_onnx_operator_has_one_function():
    names = [entry.onnx for entry in FUNCTIONS.values() if entry.onnx]
    assert len(names) == len(set(names))


def test_every_expression_takes_its_arity_and_attributes():
    for entry in FUNCTIONS.values():
        arguments = [Var(name, BOOL if entry.logical else INT32) for name in "abc"]
        if entry.expression is not None and not entry.attributes:
            assert isinstance(call(entry.name, *arguments[: entry.arity]), Expr)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounding_to_a_stored_type_is_its_conversion(dtype: str):
    """Every number of the type, the halves between them, what is next to those, and all else."""
    entry = FUNCTIONS[rounding(DType(dtype))]
    numbers = np.arange(1 << 16, dtype=np.uint16).view(DType(dtype).numpy).astype(np.float32)
    with np.errstate(all="ignore"):
        halves = (numbers[1:] + numbers[:-1]) / 2
        near = [np.nextafter(halves, np.float32(side)) for side in (-np.inf, np.inf)]
        x = np.concatenate([numbers, halves, *near, np.float32([7e4, -1e30, 1e-45, 3e-8])])
        assert entry.expression is not None and entry.numpy is not None
        found = evaluate(entry.expression(X), {X: x})
        np.testing.assert_array_equal(found, entry.numpy(x))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_integers_are_divided_toward_zero_at_their_limits_too(dtype: str):
    """By 0 the remainder is 0; the least number by -1 wraps."""
    least, most = DType(dtype).limits
    ends = [least, least + 1, most, most - 1, 0, 1, 2, 7, -1, -7][: 8 if least == 0 else None]
    a, b = (part.ravel() for part in np.meshgrid(*[np.array(ends, dtype)] * 2))
    quotient, rest, positive = (apply(FUNCTIONS[n], a, b) for n in ("divide", "fmod", "mod"))
    for x, y, q, r, m in zip(*(v.tolist() for v in (a, b, quotient, rest, positive)), strict=True):
        if y:
            toward_zero = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
            assert q == (least if toward_zero > most else toward_zero), (x, y)
            assert (r, m) == (x - y * toward_zero, x % y), (x, y)
        else:
            assert (q, r) == (x, 0)

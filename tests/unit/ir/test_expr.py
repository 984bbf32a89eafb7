"""Scalar expressions: construction, text, and what they evaluate to."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune.core.dtypes import BOOL, FLOAT32, INT8, INT32
from retune.ir.evaluate import Formulas, evaluate, evaluate_int
from retune.ir.expr import (
    Const,
    Expr,
    Var,
    all_of,
    binary,
    cast,
    ceildiv,
    conjuncts,
    const,
    equal,
    substitute,
    variables,
    walk,
)
from retune.ir.functions import call
from retune.ir.te import placeholder, reduce_axis
from tests.support.properties import RANGES, VARIABLES, integer_expressions, quick

VI, VJ, VK = VARIABLES


@quick(200)
@given(expr=integer_expressions())
def test_text_reads_as_python_of_the_same_value(expr: Expr):
    names = {"select": lambda test, a, b: a if test else b, "min": min, "max": max}
    for point in ({v: low for v, (low, _) in RANGES.items()}, {VI: 2, VJ: -3, VK: 3}):
        scope = names | {v.name: value for v, value in point.items()}
        assert eval(str(expr), {}, scope) == evaluate_int(expr, point)  # noqa: S307


@quick(100)
@given(expr=integer_expressions())
def test_substitution_is_evaluation_with_those_values(expr: Expr):
    point = {VI: 5, VJ: -4, VK: 3}
    settled = substitute(expr, {v: const(n) for v, n in point.items()})
    assert not variables(settled)
    assert evaluate_int(settled) == evaluate_int(expr, point)


@quick(50)
@given(expr=integer_expressions())
def test_one_evaluation_serves_many_points(expr: Expr):
    values = {VI: np.arange(7), VJ: np.arange(7) - 5, VK: np.full(7, 3)}
    together = np.broadcast_to(evaluate(expr, values), 7)
    apart = [evaluate_int(expr, {v: int(a[n]) for v, a in values.items()}) for n in range(7)]
    assert together.tolist() == apart


@quick(100)
@given(exprs=st.lists(integer_expressions(), max_size=4))
def test_formulas_are_evaluated_as_each_of_them(exprs: list[Expr]):
    values = {VI: np.arange(7), VJ: np.arange(7) - 5, VK: np.full(7, 3)}
    exprs = [*exprs, cast(VI < VJ, INT32), call("sqrt", cast(VI, FLOAT32))]
    formulas = Formulas(exprs)
    together = formulas(values, 7)
    assert together.shape == (len(set(exprs)), 7) and together.dtype == np.float64
    for expr in exprs:
        alone = np.broadcast_to(np.asarray(evaluate(expr, values), np.float64), 7)
        assert np.array_equal(together[formulas.row(expr)], alone)


def test_formulas_do_not_read_memory():
    with pytest.raises(ValueError, match="cannot be read here"):
        Formulas([placeholder("x", (4,))[VI] + 1.0])


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (VI + VJ * 2, "i + j*2"),
        ((VI + VJ) * 2, "(i + j)*2"),
        (VI - (VJ - VK), "i - (j - k)"),
        (VI - VJ - VK, "i - j - k"),
        (VI // (VJ * VK), "i // (j*k)"),
        (all_of(VI < VJ, VJ <= VK), "i < j and j <= k"),
        (binary("or", all_of(VI < VJ, VJ < VK), equal(VI, VK)), "i < j and j < k or i == k"),
        (-VI, "0 - i"),
        (ceildiv(VI, 4), "(i + 4 - 1) // 4"),
        (binary("bitand", VI + 1, binary("bitor", VJ, VK)), "i + 1 & (j | k)"),
        (binary("shl", VI, VJ - 1) < VK, "i << j - 1 < k"),
    ],
)
def test_text_has_no_needless_parentheses(expr: Expr, text: str):
    assert str(expr) == text


def test_literals_fold_and_neutral_elements_vanish():
    assert const(7) // -2 == const(-4)
    assert const(7) % -2 == const(-1)
    assert VI + 0 is VI and VI * 1 is VI and VI // 1 is VI
    assert const(0) == VI * 0 and const(0) == VI % 1
    assert conjuncts(all_of(VI < 1, VJ < 2, VK < 3)) == [VI < 1, VJ < 2, VK < 3]


def test_floating_point_literals_are_not_folded():
    x = placeholder("x", (4,))
    assert str(x[VI] * 0.0) == "x[i]*0.0"
    assert str(const(1.0, FLOAT32) + const(2.0, FLOAT32)) == "1.0 + 2.0"


def test_types_follow_the_operands():
    x = placeholder("x", (4,), INT8)
    assert (x[VI] * 2).dtype == INT8
    assert (x[VI] < 2).dtype == BOOL
    assert cast(x[VI], FLOAT32).dtype == FLOAT32
    assert cast(x[VI], INT8) == x[VI]
    assert cast(const(2.9, FLOAT32), INT32) == const(2)


def test_mixed_types_are_refused():
    x = placeholder("x", (4,))
    with pytest.raises(TypeError, match="operands are float32 and int32; cast one of them"):
        x[VI] + VI


def test_an_axis_in_arithmetic_is_refused_with_what_to_write():
    x, k = placeholder("x", (8,)), reduce_axis("k", 4)
    for index in (lambda: VI + k, lambda: k + VI, lambda: 2.0 * x[VI] * k):
        with pytest.raises(TypeError, match=r"expected expressions or numbers; of an Axis `\.var`"):
            index()  # type: ignore[operator]
    assert str(x[VI + k.var]) == "x[i + k]"


def test_an_expression_has_no_truth_value():
    with pytest.raises(TypeError, match="no truth value"):
        bool(VI < VJ)


def test_unknown_functions_are_refused():
    with pytest.raises(ValueError, match="'gamma' is not one of abs, add, arccos"):
        call("gamma", const(1.0, FLOAT32))


def test_equal_trees_are_equal_values():
    assert Var("i") * 2 + Var("j") == VI * 2 + VJ
    assert hash(VI * 2 + VJ) == hash(Var("i") * 2 + Var("j"))
    assert VI * 2 != VI * 3
    assert [type(n) for n in walk(VI * 2)] == [type(VI * 2), Var, Const]

"""Simplification keeps values; affine forms and bounds are true."""

from itertools import product

import pytest
from hypothesis import given

from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Expr, Var, const, maximum, minimum, select
from retune.ir.simplify import (
    Range,
    affine,
    bounds,
    from_polynomial,
    polynomial,
    simplify,
    simplify_select,
)
from tests.properties import RANGES, VARIABLES, integer_expressions, quick

I, J, K = VARIABLES
KNOWN = {var: Range(*span) for var, span in RANGES.items()}
POINTS = [
    dict(zip(RANGES, point, strict=True))
    for point in product(*(range(low, high + 1) for low, high in RANGES.values()))
]


@quick(200)
@given(expr=integer_expressions())
def test_simplify_keeps_the_value_for_every_integer(expr: Expr):
    simple = simplify(expr)
    for point in POINTS:
        assert evaluate_int(simple, point) == evaluate_int(expr, point)


@quick(200)
@given(expr=integer_expressions())
def test_simplify_with_ranges_keeps_the_value_inside_them(expr: Expr):
    simple, without_branches = simplify(expr, KNOWN), simplify_select(expr, KNOWN)
    for point in POINTS:
        expected = evaluate_int(expr, point)
        assert evaluate_int(simple, point) == expected
        assert evaluate_int(without_branches, point) == expected


@quick(100)
@given(expr=integer_expressions())
def test_simplify_reaches_a_fixed_point(expr: Expr):
    once = simplify(expr)
    assert simplify(once) == once


@quick(200)
@given(expr=integer_expressions())
def test_bounds_enclose_every_value(expr: Expr):
    span = bounds(expr, KNOWN)
    if span is not None:
        values = [evaluate_int(expr, point) for point in POINTS]
        assert span.low <= min(values) and max(values) <= span.high


@quick(200)
@given(expr=integer_expressions())
def test_affine_parts_add_up(expr: Expr):
    form = affine(expr, [I, J])
    if form is None:
        return
    coefficients, rest = form
    for point in POINTS:
        total = evaluate_int(rest, point) + sum(
            evaluate_int(c, point) * point[v] for v, c in coefficients.items()
        )
        assert total == evaluate_int(expr, point)


@quick(100)
@given(expr=integer_expressions())
def test_polynomials_keep_the_value(expr: Expr):
    again = from_polynomial(polynomial(expr))
    for point in POINTS:
        assert evaluate_int(again, point) == evaluate_int(expr, point)


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (I * 4 + J - I * 4, "j"),
        ((I + 1) * (J + 2), "i*2 + i*j + j + 2"),
        ((I * 8 + K) // 8, "i"),
        ((I * 8 + K) % 8, "k"),
        ((I * 8 + 19) // 8, "i + 2"),
        ((I * 8 + J) // 8, "i + j // 8"),
        ((I * 8 + J) % 8, "j % 8"),
        (minimum(I, 6), "i"),
        (minimum(I, 5), "min(i, 5)"),
        (maximum(I, J - 5), "i"),
        (I < 7, "True"),
        (J < -5, "False"),
        (select(I >= 0, I, J), "i"),
    ],
)
def test_normal_form(expr: Expr, text: str):
    assert str(simplify_select(expr, KNOWN)) == text


def test_a_symbolic_factor_cancels():
    tile = Var("tile@0")
    assert simplify((tile * I * 4) // tile) == simplify(I * 4)
    assert str(simplify((tile * I + 1) // tile)) == "(i*tile@0 + 1) // tile@0"


@pytest.mark.parametrize("expr", [I * I, (I // 2) * 3, minimum(I, 3), select(I < 3, 1, 2)])
def test_affine_refuses_what_is_not(expr: Expr):
    assert affine(expr, [I]) is None


def test_affine_coefficients_may_hold_symbols():
    tile = Var("tile@0")
    form = affine(I * tile + J * 3 + tile, [I])
    assert form is not None
    assert str(form[0][I]) == "tile@0" and str(form[1]) == "j*3 + tile@0"


def test_bounds_need_every_range():
    assert bounds(I + Var("unknown"), KNOWN) is None
    assert bounds(const(3) * J, KNOWN) == Range(-15, 12)

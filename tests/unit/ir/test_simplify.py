"""Simplification keeps values; affine forms and bounds are true."""

import pickle
from itertools import product

import pytest
from hypothesis import given

from retune.core.dims import Size, assuming, dim_of
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Expr, Var, as_expr, const, maximum, minimum, select, size_variable
from retune.ir.simplify import (
    Range,
    affine,
    bounds,
    from_polynomial,
    polynomial,
    range_below,
    simplify,
)
from tests.support.properties import RANGES, VARIABLES, integer_expressions, quick

VI, VJ, VK = VARIABLES
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
    simple = simplify(expr, KNOWN)
    for point in POINTS:
        assert evaluate_int(simple, point) == evaluate_int(expr, point)


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
    form = affine(expr, [VI, VJ])
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
        (VI * 4 + VJ - VI * 4, "j"),
        ((VI + 1) * (VJ + 2), "i*2 + i*j + j + 2"),
        ((VI * 8 + VK) // 8, "i"),
        ((VI * 8 + VK) % 8, "k"),
        ((VI * 8 + 19) // 8, "i + 2"),
        ((VI * 8 + VJ) // 8, "i + j // 8"),
        ((VI * 8 + VJ) % 8, "j % 8"),
        (minimum(VI, 6), "i"),
        (minimum(VI, 5), "min(i, 5)"),
        (maximum(VI, VJ - 5), "i"),
        (VI < 7, "True"),
        (VJ < -5, "False"),
        (select(VI >= 0, VI, VJ), "i"),
        ((VI * 4 + VJ % 4 + 4) // 8, "(i + 1) // 2"),
        ((VI * 4 + VJ % 4 + 4) % 8, "(i + 1) % 2*4 + j % 4"),
        ((VI * 4 + VJ % 4 + VK * 16) % 8, "i % 2*4 + j % 4"),
        ((VI * 4 + VJ % 5) // 8, "(i*4 + j % 5) // 8"),
    ],
)
def test_normal_form(expr: Expr, text: str):
    assert str(simplify(expr, KNOWN)) == text


def test_a_symbolic_factor_cancels():
    tile = Var("tile@0")
    assert simplify((tile * VI * 4) // tile) == simplify(VI * 4)
    assert str(simplify((tile * VI + 1) // tile)) == "(i*tile@0 + 1) // tile@0"


@pytest.mark.parametrize("expr", [VI * VI, (VI // 2) * 3, minimum(VI, 3), select(VI < 3, 1, 2)])
def test_affine_refuses_what_is_not(expr: Expr):
    assert affine(expr, [VI]) is None


def test_affine_coefficients_may_hold_symbols():
    tile = Var("tile@0")
    form = affine(VI * tile + VJ * 3 + tile, [VI])
    assert form is not None
    assert str(form[0][VI]) == "tile@0" and str(form[1]) == "j*3 + tile@0"


def test_bounds_need_every_range():
    assert bounds(VI + Var("unknown"), KNOWN) is None
    assert bounds(const(3) * VJ, KNOWN) == Range(-15, 12)


@pytest.mark.parametrize("inner", [VI, VI * 16 + VJ])
def test_quotient_and_remainder_of_fused_loops_are_one_again(inner: Expr):
    assert simplify((VK + inner // 3) * 3 + inner % 3) == simplify(VK * 3 + inner)
    assert simplify((inner // 3) * 6 + (inner % 3) * 2 + 1) == simplify(inner * 2 + 1)
    assert simplify((inner // 3) * 2 + inner % 3) != simplify(inner)


N = Size("n", 4, 64)
EXTENT = as_expr(dim_of(N))
TILES = as_expr((dim_of(N) + 3) // 4)
BELOW = {
    VARIABLES[0]: range_below(EXTENT),
    VARIABLES[1]: range_below(TILES),
    VARIABLES[2]: Range(0, 3),
}


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (VARIABLES[0] < EXTENT, "True"),
        (VARIABLES[0] < EXTENT - 1, "i < n - 1"),
        (VARIABLES[0] <= EXTENT - 1, "True"),
        (minimum(VARIABLES[1] * 4, EXTENT - 4) + VARIABLES[2] < EXTENT, "True"),
        (minimum(VARIABLES[1] * 5, EXTENT - 3) + VARIABLES[2] < EXTENT, "k + min(j*5, n - 3) < n"),
        (maximum(EXTENT - 4, 0), "n - 4"),
        (maximum(EXTENT - 5, 0), "max(n - 5, 0)"),
        (minimum(VARIABLES[0], EXTENT - 1), "i"),
        (VARIABLES[0] * EXTENT + VARIABLES[0] < EXTENT * EXTENT + EXTENT, "True"),
        ((VARIABLES[0] // EXTENT) * EXTENT + VARIABLES[0] % EXTENT, "i"),
        (VARIABLES[0] // EXTENT, "0"),
        ((VARIABLES[2] * EXTENT + VARIABLES[0]) // EXTENT, "k"),
        ((VARIABLES[2] * EXTENT + VARIABLES[0]) % EXTENT, "i"),
        ((VARIABLES[2] * EXTENT + VARIABLES[1] * 9) // EXTENT, "j*9 // n + k"),
        ((VARIABLES[2] * EXTENT - 1) // EXTENT, "(k*n - 1) // n"),
        ((VARIABLES[1] * 36 + VARIABLES[2]) // (EXTENT * 4), "j*9 // n"),
        ((VARIABLES[1] * 36 + VARIABLES[2]) % (EXTENT * 4), "j*9 % n*4 + k"),
    ],
)
def test_variables_end_where_sizes_say(expr: Expr, text: str):
    assert str(simplify(expr, BELOW)) == text


def test_what_is_made_again_is_by_the_ranges_and_sizes_at_hand():
    i, other = VARIABLES[0], as_expr(dim_of(Size("m", 4, 64)))
    for _ in range(2):
        assert str(simplify(i < EXTENT, {i: range_below(EXTENT)})) == "True"
        assert str(simplify(i < EXTENT, {i: range_below(other)})) == "i < n"
        assert str(simplify(i < EXTENT, {i: Range(0, 7)})) == "i < n"
        with assuming({"n": 10}):
            assert str(simplify(i < EXTENT, {i: Range(0, 7)})) == "i < n"
            assert not dim_of(N) < 8  # which is noted
            assert str(simplify(i < EXTENT, {i: Range(0, 7)})) == "True"


def test_a_size_as_a_variable_is_pickled_by_its_range():
    assert pickle.loads(pickle.dumps(EXTENT)) == size_variable(N)  # noqa: S301

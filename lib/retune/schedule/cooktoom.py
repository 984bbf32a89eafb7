"""Matrices of the Winograd convolution F(m, r), derived exactly, and their products as few sums.

m outputs of an r-tap filter over n = m + r - 1 inputs take n multiplications:
y = A^T ((G g) * (B^T d)). Read `matrices` first, then `products`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import prod

from retune.ir.expr import Expr, const

Row = tuple[Fraction, ...]
Matrix = tuple[Row, ...]


def _opposite(*sizes: Fraction) -> tuple[Fraction, ...]:
    """0, then each size with both signs."""
    return (Fraction(0), *(point for size in sizes for point in (size, -size)))


_ONE, _HALF = Fraction(1), Fraction(1, 2)
POINTS = {
    3: _opposite(_ONE),
    5: _opposite(Fraction(2, 3), Fraction(3, 2)),
    7: _opposite(_ONE, _HALF, 1 / _HALF),
    9: _opposite(_HALF, 1 / _HALF, Fraction(3, 4), Fraction(4, 3)),
}
"""Finite points by their number. Of the symmetric sets that were tried these gave the smallest
errors in float32: with a size its reciprocal, so that neither transform's powers grow. From 0, 1,
-1, 2, -2, ... F(4x4, 3x3) has 4 times the error, F(6x6, 3x3) 80 times. Opposite points share sums.
"""


@dataclass(frozen=True, slots=True)
class Matrices:
    """The three transforms of F(m, r)."""

    a_t: Matrix
    """[m, n]: products to outputs."""
    g: Matrix
    """[n, r]: filter taps to factors."""
    b_t: Matrix
    """[n, n]: inputs to factors."""


@cache
def matrices(m: int, r: int) -> Matrices:
    """The transforms of F(m, r), by Cook and Toom's construction from POINTS and infinity.

    The product of a polynomial of m coefficients and one of r is settled by its values at n
    points; transposing evaluation and interpolation turns the product into the correlation.
    The divisions of the interpolation are moved to G, which is applied once, at compile time.
    Source: A. Lavin, S. Gray, "Fast Algorithms for Convolutional Neural Networks", 2015.
    """
    n = m + r - 1
    points = POINTS[n - 1]
    g: list[Row] = []
    b_t: list[Row] = []
    for point in points:
        others = [p for p in points if p != point]
        scale = prod((point - p for p in others), start=Fraction(1))
        g.append(tuple(point**k / scale for k in range(r)))
        b_t.append((*_from_roots(others), Fraction(0)))
    g.append(tuple(Fraction(k == r - 1) for k in range(r)))
    b_t.append(tuple(_from_roots(points)))
    a_t = tuple(
        (*(point**i for point in points), Fraction(i == m - 1))
        for i in range(m)
    )  # fmt: skip
    return Matrices(a_t, tuple(g), tuple(b_t))


def _from_roots(roots: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients of the product of (x - root), from the constant term up."""
    terms = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *terms]
        terms = [
            high - root * low for high, low in zip(shifted, [*terms, Fraction(0)], strict=True)
        ]
    return terms


Term = tuple[Fraction, Expr]


def products(matrix: Matrix, values: Sequence[Expr]) -> list[Expr]:
    """`matrix @ values`, one expression for each row, without products by 0 and 1.

    Rows of opposite points share sums: where two rows differ in the signs of every other column
    they are `even + odd` and `even - odd`; otherwise columns of equal size stand together, as
    `c * (x - y)`. Shared sums are written alike in each row, so that a compiler finds them.
    """
    parity = _opposite_rows(matrix)
    parts = _parities(matrix) if parity else _equal_columns(matrix)
    return [
        _sum([_factored([(row[c], values[c]) for c in part if row[c]], parity) for part in parts])
        for row in matrix
    ]


def _opposite_rows(matrix: Matrix) -> bool:
    """True when some row is another one with the signs of its odd columns changed."""
    flipped = {tuple(-c if i % 2 else c for i, c in enumerate(row)) for row in matrix}
    flipped |= {tuple(-c for c in row) for row in flipped}
    mixed = [row for row in matrix if any(row[0::2]) and any(row[1::2])]
    return any(row in flipped for row in mixed)


def _parities(matrix: Matrix) -> list[list[int]]:
    columns = range(len(matrix[0]))
    return [list(columns[0::2]), list(columns[1::2])]


def _equal_columns(matrix: Matrix) -> list[list[int]]:
    """Columns by their absolute values, in order of the first of each kind."""
    kinds: dict[Row, list[int]] = {}
    for column in range(len(matrix[0])):
        kinds.setdefault(tuple(abs(row[column]) for row in matrix), []).append(column)
    return list(kinds.values())


def _factored(terms: list[Term], last: bool) -> Term | None:
    """A part of a row as a factor and a sum whose first term (or `last`) is positive."""
    if not terms:
        return None
    sizes = {abs(c) for c, _ in terms}
    pivot = terms[-1 if last else 0][0]
    scale = (sizes.pop() if len(sizes) == 1 else 1) * (1 if pivot > 0 else -1)
    inner = _sum([(c / scale, x) for c, x in terms])
    return Fraction(scale), inner


def _sum(terms: Sequence[Term | None]) -> Expr:
    """The terms added up, a positive one first."""
    present = sorted((t for t in terms if t is not None), key=lambda t: t[0] < 0)
    total: Expr | None = None
    for factor, value in present:
        scaled = value if abs(factor) == 1 else value * const(float(abs(factor)), value.dtype)
        if total is None:
            total = scaled if factor > 0 else const(0.0, value.dtype) - scaled
        else:
            total = total + scaled if factor > 0 else total - scaled
    assert total is not None, "a row of a transform has a term"
    return total

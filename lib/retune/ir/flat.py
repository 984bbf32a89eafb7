"""Row-major addresses of buffers, in elements."""

from collections.abc import Sequence

from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Buffer, Expr
from retune.ir.simplify import (
    Polynomial,
    add_terms,
    from_polynomial,
    polynomial,
    rejoined,
    simplify,
)


def strides_of(buffer: Buffer) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides: list[int] = []
    size = 1
    for extent in reversed(buffer.shape):
        strides.append(size)
        size *= evaluate_int(extent)
    return tuple(reversed(strides))


def elements(buffer: Buffer) -> int:
    """Number of elements; a scalar has one."""
    return strides_of(buffer)[0] * evaluate_int(buffer.shape[0]) if buffer.shape else 1


def flat_index(buffer: Buffer, indices: Sequence[Expr]) -> Expr:
    """Offset of an element from the buffer's start, in elements."""
    return from_polynomial(flat_terms(buffer, indices))


def flat_terms(buffer: Buffer, indices: Sequence[Expr]) -> Polynomial:
    """`flat_index` as a polynomial over simplified atoms."""
    total: Polynomial = {}
    for index, stride in zip(indices, strides_of(buffer), strict=True):
        add_terms(total, polynomial(index, simplify), stride)
    return rejoined(total)

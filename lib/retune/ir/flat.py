"""Addresses of buffers' elements, in elements: the one function in which a storage map is
applied."""

from collections.abc import Sequence

from retune.core.dims import is_fixed
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Buffer, Expr, as_expr
from retune.ir.simplify import (
    Polynomial,
    Ranges,
    add_terms,
    from_polynomial,
    multiply,
    polynomial,
    rejoined,
    simplify,
)
from retune.ir.storage import Storage, row_major


def storage_of(buffer: Buffer) -> Storage:
    """The storage map of a buffer whose extents depend on sizes at most."""
    return buffer.storage or row_major(tuple([evaluate_int(n) for n in buffer.shape]))


def elements(buffer: Buffer) -> int:
    """Elements of the allocation that the buffer lies in; a scalar has one."""
    return storage_of(buffer).elements


def flat_index(buffer: Buffer, indices: Sequence[Expr]) -> Expr:
    """Offset of an element from the allocation's start, in elements."""
    return from_polynomial(flat_terms(buffer, indices))


class FlatIndices:
    """`flat_terms` of the accesses of one nest, each worked out once; nobody changes them."""

    def __init__(self) -> None:
        self._done: dict[tuple[int, str], tuple[Sequence[Expr], Polynomial]] = {}
        """By the identity of the indices, which are kept, so that it stays theirs."""

    def __call__(self, buffer: Buffer, indices: Sequence[Expr]) -> Polynomial:
        key = (id(indices), buffer.name)
        known = self._done.get(key)
        if known is None:
            known = self._done[key] = (indices, flat_terms(buffer, indices))
        return known[1]


def flat_terms(buffer: Buffer, indices: Sequence[Expr], ranges: Ranges | None = None) -> Polynomial:
    """`flat_index` as a polynomial over simplified atoms.

    An index in tiles is affine in the loops over tiles and over positions in a tile where `ranges`,
    of those variables, says that the inner loop stays in one tile.
    """
    storage = storage_of(buffer)
    settled = simplify if ranges is None else lambda atom: simplify(atom, ranges)
    total: Polynomial = {}
    for part, stride in zip(storage.parts, storage.strides, strict=True):
        digit = storage.digit(part, indices[part.dim])
        terms = polynomial(digit, settled)
        if is_fixed(stride):
            add_terms(total, terms, stride)
        else:
            add_terms(total, multiply(terms, polynomial(as_expr(stride))), 1)
    add_terms(total, polynomial(as_expr(storage.offset)), 1)
    return rejoined(total)

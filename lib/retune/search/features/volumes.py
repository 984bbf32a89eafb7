"""Footprints: how much of each buffer the inner loops of a nest touch, for a whole population."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from retune.core.dtypes import itemsize
from retune.ir.evaluate import evaluate_each
from retune.ir.expr import Expr, Var
from retune.search.features.nests import Access, Nest

Array = np.ndarray
"""float64 [n], a value for each candidate."""


@dataclass(frozen=True, eq=False, slots=True)
class Volume:
    """What one access touches. Level d stands for the loops from position d on, d <= depth."""

    access: Access
    item_bytes: int
    elements: list[Array]
    """Distinct elements at each level, from the whole nest (0) to a single iteration."""
    rows: list[Array]
    """Distinct values of all indices but the last, at each level."""
    spans: list[Array]
    """Elements from the first to the last one of a row, at each level."""
    strides: list[Array | None]
    """By loop: elements from one iteration's access to the next one's; None: it stays put."""

    def bytes(self, level: int) -> Array:
        """Distinct bytes at a level."""
        return self.elements[level] * self.item_bytes

    def lines(self, level: int, line_bytes: int) -> Array:
        """Distinct cache lines at a level; each row starts on a line of its own."""
        if self.access.packed:
            return np.ceil(self.bytes(level) / line_bytes)
        per_row = np.ceil(self.spans[level] * self.item_bytes / line_bytes)
        return np.minimum(self.rows[level] * per_row, self.elements[level])


@dataclass(frozen=True, eq=False, slots=True)
class Volumes:
    """A nest with numbers for its symbols."""

    nest: Nest
    extents: list[Array]
    inside: list[Array]
    """Iterations of the loops from each position on; `inside[0]` is all of them."""
    accesses: list[Volume]
    hints: list[Array | None]
    """By loop: iterations that the device's compiler is asked to unroll."""

    @property
    def ones(self) -> Array:
        """A one for each candidate."""
        return self.inside[-1]

    def bytes(self, level: int) -> Array:
        """Distinct bytes of all accesses at a level."""
        return sum((a.bytes(level) for a in self.accesses), start=0 * self.ones)

    def product(self, chosen: Iterable[int]) -> Array:
        """The product of the extents of some loops, by their positions."""
        result = self.ones
        for place in chosen:
            result = result * self.extents[place]
        return result


class Numbers:
    """Values of expressions for `count` candidates, each found once. float64 [count]"""

    def __init__(self, values: Mapping[Var, np.ndarray], count: int) -> None:
        self.ones = np.ones(count)
        self._values = values
        self._known: dict[Expr, Array] = {}

    def __call__(self, expr: Expr) -> Array:
        """The expression's value for each candidate."""
        if expr not in self._known:
            self._known[expr] = evaluate_each(expr, self._values, len(self.ones))
        return self._known[expr]


def volumes(nest: Nest, number: Numbers) -> Volumes:
    """The nest's extents and footprints, for all candidates that `number` speaks of."""
    extents = [number(loop.extent) for loop in nest.loops]
    inside = [number.ones]
    for extent in reversed(extents):
        inside.insert(0, inside[0] * extent)
    accesses = [_volume(access, len(extents), number) for access in nest.accesses]
    hints = [None if loop.unroll is None else number(loop.unroll) for loop in nest.loops]
    return Volumes(nest, extents, inside, accesses, hints)


def _volume(access: Access, depth: int, number: Numbers) -> Volume:
    """From the innermost loop outward, each index widens by its terms in the loop."""
    ones = number.ones
    limits = [number(extent) for extent in access.buffer.shape]
    widths, steps = [ones] * len(limits), [ones] * len(limits)
    apart = _apart(limits, ones)
    elements, rows, spans = [ones], [ones], [ones]
    strides: list[Array | None] = [None] * depth
    terms = [(d, term) for d, terms in enumerate(access.dims) for term in terms]
    for place in reversed(range(depth)):
        for d, term in terms:
            if term.loop != place:
                continue
            stride, values = number(term.stride), number(term.steps)
            widths[d] = widths[d] + stride * (values - 1)
            steps[d] = steps[d] * values
            near = elements[0] if access.packed else stride * apart[d]
            moved = near * (values > 1)
            earlier = strides[place]
            strides[place] = moved if earlier is None else np.maximum(earlier, moved)
        if strides[place] is None:
            for levels in (elements, rows, spans):
                levels.insert(0, levels[0])
            continue
        distinct = [
            np.minimum(np.minimum(w, s), m) for w, s, m in zip(widths, steps, limits, strict=True)
        ]
        rows.insert(0, np.prod(distinct[:-1], axis=0) * ones)
        elements.insert(0, rows[0] * distinct[-1])
        spans.insert(0, np.minimum(widths[-1], limits[-1]))
    return Volume(access, itemsize(access.buffer.dtype), elements, rows, spans, strides)


def _apart(limits: list[Array], ones: Array) -> list[Array]:
    """Row-major distance, in elements, of neighbours along each dimension."""
    result = [ones]
    for extent in limits[:0:-1]:
        result.insert(0, result[0] * extent)
    return result[: len(limits)]

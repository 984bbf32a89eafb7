"""Footprints: how much of each buffer the inner loops of a nest touch, for a whole population."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from retune.ir.expr import Scope
from retune.schedule.space import Sketch
from retune.search.model.features.layout import Array, Layout, layout_of


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Volumes:
    """A sketch's blocks and accesses with numbers for its symbols, for n candidates.

    Level d stands for the loops from position d on, 0 <= d <= D. float64, axes as in Layout.
    """

    layout: Layout
    extents: Array
    """Iterations of each loop, and a one behind them. [D + 1, B, n]"""
    hints: Array
    """Iterations of each loop that the device's compiler is asked to unroll. [D, B, n]"""
    inside: Array
    """Iterations of the loops of each level; `inside[0]` is all of them. [D + 1, B, n]"""
    elements: Array
    """Distinct elements of an access at each level, 1 for a single iteration. [D + 1, A, n]"""
    rows: Array
    """Distinct values of all indices but the last, at each level. [D + 1, A, n]"""
    spans: Array
    """Elements from the first to the last one of a row, at each level. [D + 1, A, n]"""
    strides: Array
    """Elements from one iteration's access to the next one's; 0 where it stays put, and for no
    loop behind them. [D + 1, A, n]"""
    bytes: Array
    """Distinct bytes of an access at each level. [D + 1, A, n]"""
    block_bytes: Array
    """Distinct bytes of all accesses of a block at each level. [D + 1, B, n]"""
    held: Mapping[Scope, Array]
    """Bytes of the program's own buffers, by scope. [n]"""

    def lines(self, level: int, line_bytes: int) -> Array:
        """Distinct cache lines of each access at a level; each row starts on a line of its own."""
        item = self.layout.item_bytes
        per_row = np.ceil(self.spans[level] * item / line_bytes)
        apart = np.minimum(self.rows[level] * per_row, self.elements[level])
        return np.where(self.layout.packed, np.ceil(self.bytes[level] / line_bytes), apart)

    def product(self, loops: Array) -> Array:
        """The product of the extents of chosen loops of each block. bool [D, B] -> [B, n]"""
        return np.prod(self.extents[:-1], axis=0, where=loops[:, :, None])


def volumes(sketch: Sketch, rows: np.ndarray) -> Volumes:
    """The footprints of option rows int64 [n, decisions]."""
    layout = layout_of(sketch)
    numbers = layout.formulas(sketch.at_hand(rows), len(rows))
    extents = numbers[layout.extents]
    inside = np.cumprod(extents[::-1], axis=0)[::-1]
    stride, steps, limits = numbers[layout.strides], numbers[layout.steps], numbers[layout.limits]
    distinct, widths = _indices(stride, steps, limits)
    before = np.prod(distinct[:, :-1], axis=1)
    elements = before * distinct[:, -1]
    covered = elements * layout.item_bytes
    return Volumes(
        layout=layout,
        extents=extents,
        hints=numbers[layout.hints],
        inside=inside,
        elements=elements,
        rows=before,
        spans=np.minimum(widths[:, -1], limits[-1]),
        strides=_strides(layout, stride, steps, limits, elements),
        bytes=covered,
        block_bytes=layout.owned @ covered,
        held=_held(layout, numbers),
    )


def _held(layout: Layout, numbers: Array) -> dict[Scope, Array]:
    """`Volumes.held`, of global and local memory."""
    held: dict[Scope, Array] = {scope: np.zeros(numbers.shape[1]) for scope in ("global", "local")}
    for buffer, extents in layout.scratch:
        if buffer.scope in held:
            size = np.prod(numbers[extents], axis=0) * buffer.dtype.itemsize
            held[buffer.scope] = held[buffer.scope] + size
    return held


def _indices(stride: Array, steps: Array, limits: Array) -> tuple[Array, Array]:
    """Distinct values of each index at each level, and how far they reach.

    From the innermost loop outward, each index widens by its terms. [D + 1, dims, A, n] each
    """
    wider = np.sum(stride * (steps - 1.0), axis=0)
    most = np.prod(steps, axis=0)
    alone = np.ones((1, *limits.shape))
    widths = np.cumsum(np.concatenate([alone, wider[::-1]]), axis=0)[::-1]
    times = np.cumprod(np.concatenate([alone, most[::-1]]), axis=0)[::-1]
    return np.minimum(np.minimum(widths, times), limits), widths


def _strides(layout: Layout, stride: Array, steps: Array, limits: Array, elements: Array) -> Array:
    """`Volumes.strides`: of the index that moves furthest; packed operands lie in loop order."""
    apart = np.ones_like(limits)  # row-major distance of neighbours along each dimension
    apart[:-1] = np.cumprod(limits[:0:-1], axis=0)[::-1]
    near = np.where(layout.packed, elements[1:, None], stride * apart)
    moved = np.max(near * (steps > 1.0), axis=(0, 2))
    return np.concatenate([moved, np.zeros_like(elements[:1])])

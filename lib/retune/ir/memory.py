"""Reads from named arrays at computed indices, as views where the indices step evenly."""

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided

from retune.ir.evaluate import Value
from retune.ir.expr import Load

Arrays = dict[str, np.ndarray]


class ArrayMemory:
    """Reads from named arrays; indices out of range read the nearest element.

    Only the branch not taken of a selection may do that; `ir.verify` looks for other reads.
    """

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays

    def fetch(self, load: Load, indices: tuple[Value, ...]) -> Value:
        array = self.arrays[load.buffer.name]
        clipped = [
            np.minimum(np.maximum(i, 0), max(0, n - 1))
            for i, n in zip(indices, array.shape, strict=True)
        ]
        found = strided(array, clipped) if min((i.size for i in clipped), default=1) else None
        return array[tuple(clipped)] if found is None else found


def strided(array: np.ndarray, indices: Sequence[np.ndarray]) -> np.ndarray | None:
    """`array[indices]` as a view, where each index is a sum of even steps over the grid.

    An index that steps unevenly along one dimension of the grid is read in advance.
    """
    shape = np.broadcast(*indices).shape if indices else ()
    starts: list[slice] = []
    moves: list[dict[int, int]] = []
    for axis, index in enumerate(indices):
        steps = even_steps(index)
        if steps is None and max(index.shape) < index.size:
            return None
        if steps is None:
            array = np.take(array, index.reshape(-1), axis)
            steps = {d - index.ndim: 1 for d, extent in enumerate(index.shape) if extent > 1}
            starts.append(slice(0, None))
        else:
            starts.append(slice(int(index.flat[0]), None))
        moves.append(steps)
    strides = [0] * len(shape)
    for move, stride in zip(moves, array.strides, strict=True):
        for d, step in move.items():
            strides[d] += step * stride
    return as_strided(array[tuple(starts)], shape, strides, writeable=False)


def even_steps(index: np.ndarray) -> dict[int, int] | None:
    """How far the index goes along each dimension of its grid, counted from the last; None if the
    steps differ."""
    steps: dict[int, int] = {}
    first = index.item(0)
    expected: int | np.ndarray = first
    inner = 1
    for d in range(1, index.ndim + 1):
        extent = index.shape[-d]
        if extent > 1:
            steps[-d] = step = index.item(inner) - first
            expected = expected + (step * np.arange(extent)).reshape(extent, *[1] * (d - 1))
            inner *= extent
    return steps if not steps or np.all(expected == index) else None

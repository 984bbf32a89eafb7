"""Reads from named arrays at computed indices, as views where the indices step evenly."""

from collections.abc import Sequence
from dataclasses import dataclass

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
        read = EvenRead.of(clipped) if min((i.size for i in clipped), default=1) else None
        if read is None:
            return array[tuple(clipped)]
        return read.view(read.taken(array), np.broadcast(*clipped).shape if clipped else ())


@dataclass(frozen=True, slots=True)
class EvenRead:
    """`array[indices]`, where each index is a sum of even steps over a grid."""

    takes: tuple[tuple[int, np.ndarray], ...]
    """Axes whose index steps unevenly along one dimension of the grid, and is read in advance."""
    starts: tuple[int, ...]
    moves: tuple[dict[int, int], ...]
    """Of each axis: how far it goes along dimensions of the grid, counted from the last."""

    @staticmethod
    def of(indices: Sequence[np.ndarray]) -> "EvenRead | None":
        """The read; None where an index steps unevenly along several dimensions."""
        takes: list[tuple[int, np.ndarray]] = []
        starts: list[int] = []
        moves: list[dict[int, int]] = []
        for axis, index in enumerate(indices):
            steps = even_steps(index)
            if steps is None:
                if max(index.shape) < index.size:
                    return None
                takes.append((axis, index.reshape(-1)))
                steps = {d - index.ndim: 1 for d, extent in enumerate(index.shape) if extent > 1}
                starts.append(0)
            else:
                starts.append(int(index.flat[0]))
            moves.append(steps)
        return EvenRead(tuple(takes), tuple(starts), tuple(moves))

    def taken(self, array: np.ndarray) -> np.ndarray:
        """The array with what is read in advance instead of these axes."""
        for axis, index in self.takes:
            array = np.take(array, index, axis)
        return array

    def view(self, taken: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """The elements over a grid of that shape, as a view of what `taken` gave."""
        strides = [0] * len(shape)
        for move, stride in zip(self.moves, taken.strides, strict=True):
            for d, step in move.items():
                strides[d] += step * stride
        begun = taken[tuple([slice(start, None) for start in self.starts])]
        return as_strided(begun, shape, strides, writeable=False)


def even_steps(index: np.ndarray) -> dict[int, int] | None:
    """The index's step along each dimension of its grid, counted from the last; None if the
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

"""Cache sets: how many lines of one set a register tile reads at once.

A cache keeps a few lines of each set. Pixels of 1024 channels lie 4096 bytes apart, so all of
them belong to one set; the fourteen of a tile push each other out, and each broadcast of the next
channel misses, although it lies in a line that was read a moment ago.
"""

import numpy as np

LINE_BYTES = 64
WAY_BYTES = 4096
"""Addresses so far apart share a set of the first-level cache: a page, so that the set is known
before the address is translated; the cache's size over it is the number of lines in a set."""

Axis = tuple[np.ndarray, np.ndarray]
"""Copies of a loop, and bytes between what two neighbouring ones read. Each float64 [n]."""


def crowded(axes: list[Axis], count: int) -> np.ndarray:
    """The most lines of one set among those that a tile over these axes reads. float64 [count]"""
    moved = [(copies, step) for copies, step in axes if np.any(step)]
    if not moved:
        return np.ones(count)
    table = np.stack([column for axis in moved for column in axis], axis=1)
    kinds, which = np.unique(table, axis=0, return_inverse=True)
    return np.array([_lines_in_a_set(kind.reshape(-1, 2)) for kind in kinds])[which.ravel()]


def _lines_in_a_set(axes: np.ndarray) -> float:
    """For one tile; rows of `axes` are copies and step."""
    places = np.zeros(1)
    for copies, step in axes:
        places = np.add.outer(places, step * np.arange(copies)).ravel()
    lines = np.unique(places // LINE_BYTES).astype(np.int64)
    return float(np.bincount(lines % (WAY_BYTES // LINE_BYTES)).max())

"""Cache sets: how many lines of one set a register tile reads at once.

A cache keeps a few lines of each set. Pixels of 1024 channels lie 4096 bytes apart, so all of
them belong to one set; the fourteen of a tile push each other out, and each broadcast of the next
channel misses, although it lies in a line that was read a moment ago.
"""

from functools import lru_cache, reduce

import numpy as np

LINE_BYTES = 64
WAY_BYTES = 4096
"""Addresses so far apart share a set of the first-level cache: a page, so that the set is known
before the address is translated; the cache's size over it is the number of lines in a set."""

Axis = tuple[np.ndarray, np.ndarray]
"""Copies of a loop, and bytes between what two neighbouring ones read. Each float64 [n]."""


def crowded(axes: list[Axis], ways: int, count: int) -> np.ndarray:
    """Whether a tile over these axes reads more lines of one set than it has. bool [count]"""
    moved = [axis for axis in axes if np.any(axis[1])]
    found = reduce(np.multiply, (copies for copies, _ in moved), np.ones(count)) > ways
    tiles = zip(*(column[found].tolist() for axis in moved for column in axis), strict=True)
    found[found] = [_lines_in_a_set(tile) > ways for tile in tiles]
    return found


@lru_cache(maxsize=4096)
def _lines_in_a_set(tile: tuple[float, ...]) -> float:
    """For one tile: copies and step of each axis, one after the other."""
    places = np.zeros(1)
    for copies, step in zip(tile[::2], tile[1::2], strict=True):
        places = np.add.outer(places, step * np.arange(copies)).ravel()
    lines = np.unique(places // LINE_BYTES).astype(np.int64)
    return float(np.bincount(lines % (WAY_BYTES // LINE_BYTES)).max())

"""Loops over tensor elements as micro-ops and the two loops that an instruction does by itself.

Read `fold`. `template.least_uops` counts with the same rule how many there will be.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod

import numpy as np

from retune.targets.vta.isa import MICRO_OP

LATENCY = 3
"""A micro-op writes another sum than as many minus one before it: sums are that long in a pipe."""


@dataclass(frozen=True, slots=True)
class StridedLoop:
    """A loop, and by how much its iterations are apart in each memory."""

    extent: int
    dst: int = 0
    src: int = 0
    wgt: int = 0

    @property
    def written(self) -> bool:
        """Whether its iterations go to different sums."""
        return self.dst > 0


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Folded:
    """Micro-ops and the loops around them, the outer one first."""

    uops: np.ndarray
    """isa.MICRO_OP [n]"""
    outer: StridedLoop
    inner: StridedLoop


_ONCE = StridedLoop(1)


def fold(loops: Sequence[StridedLoop], base: tuple[int, int, int]) -> Folded:
    """The loops with two of them folded; `base` is the first (dst, src, wgt).

    As few micro-ops as there can be, so ordered that each sum comes back after `LATENCY` at least,
    which takes as many different sums.
    """
    real = [loop for loop in loops if loop.extent > 1]
    sums = prod(loop.extent for loop in real if loop.written)
    best: tuple[int, tuple[int, ...]] = (1, ())
    for pair in (*combinations(range(len(real)), 1), *combinations(range(len(real)), 2)):
        left = sums // prod(real[i].extent for i in pair if real[i].written)
        saved = prod(real[i].extent for i in pair)
        if left >= LATENCY and saved > best[0]:
            best = saved, pair
    rest = [loop for i, loop in enumerate(real) if i not in best[1]]
    ordered = [*(p for p in rest if not p.written), *(p for p in rest if p.written)]
    outer, inner = (*(_ONCE,) * (2 - len(best[1])), *(real[i] for i in best[1]))
    return Folded(uops=unrolled(ordered, base), outer=outer, inner=inner)


def unrolled(loops: Sequence[StridedLoop], base: tuple[int, int, int]) -> np.ndarray:
    """A micro-op for each iteration of nested loops. isa.MICRO_OP [n]"""
    made = np.zeros(prod(loop.extent for loop in loops), MICRO_OP)
    for name, first in zip(("dst", "src", "wgt"), base, strict=True):
        index = np.full(1, first, np.int64)
        for loop in loops:
            apart = np.arange(loop.extent) * int(getattr(loop, name))
            index = (index[:, None] + apart).reshape(-1)
        made[name] = index
    return made

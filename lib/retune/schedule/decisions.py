"""Decisions: what sampling leaves open, the tables of its options, and which are valid together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from retune.ir.evaluate import evaluate
from retune.ir.expr import Expr, Var

Given = Mapping[str, Sequence[int]]
"""Values of decisions by name."""


@dataclass(frozen=True, eq=False)
class Decision:
    """A named choice: one row of `table` gives the values of its symbols."""

    name: str
    table: np.ndarray
    """int64 [options, symbols]"""

    @cached_property
    def symbols(self) -> tuple[Var, ...]:
        """The symbols that a row gives values to: `name@0`, `name@1`, ..."""
        return symbols_of(self.name, self.table.shape[1])


def symbols_of(name: str, count: int) -> tuple[Var, ...]:
    """The symbols of a decision with `count` values."""
    return tuple(Var(f"{name}@{i}") for i in range(count))


def holds(constraints: Sequence[Expr], values: Mapping[Var, np.ndarray], count: int) -> np.ndarray:
    """For each of `count` candidates, whether every constraint holds. bool [count]"""
    result = np.ones(count, bool)
    for constraint in constraints:
        result &= np.asarray(evaluate(constraint, values), bool)
    return result


@cache
def perfect_tiles(extent: int, parts: int, max_innermost: int) -> np.ndarray:
    """All factor lists, outer to inner, whose product divides `extent`. int64 [options, parts]"""
    rows = [row for row in _factorings(extent, parts) if row[-1] <= max_innermost]
    return np.asarray(sorted(rows), np.int64).reshape(-1, parts)


def _factorings(extent: int, parts: int) -> list[tuple[int, ...]]:
    if parts == 0:
        return [()]
    return [
        (*rest, factor)
        for factor in range(1, extent + 1)
        if extent % factor == 0
        for rest in _factorings(extent // factor, parts - 1)
    ]


@cache
def any_tiles(extent: int, parts: int, max_innermost: int) -> np.ndarray:
    """Factor lists, outer to inner, of any size with product at most `extent`.

    Outer factors that lead to the same number of tiles are listed once, by the smallest.
    int64 [options, parts]
    """
    rows: list[tuple[int, ...]] = []

    def extend(tiles: int, size: int, row: tuple[int, ...]) -> None:
        if len(row) == parts:
            rows.append(row)
            return
        for factor in _distinct(tiles):
            if size * factor <= extent:
                extend(-(-tiles // factor), size * factor, (factor, *row))

    for innermost in range(1, min(extent, max_innermost) + 1):
        extend(-(-extent // innermost), innermost, (innermost,))
    return np.asarray(sorted(rows), np.int64).reshape(-1, parts)


def _distinct(tiles: int) -> list[int]:
    """The smallest factor for each distinct value of ceil(tiles / factor)."""
    found: dict[int, int] = {}
    for factor in range(1, tiles + 1):
        found.setdefault(-(-tiles // factor), factor)
    return list(found.values())

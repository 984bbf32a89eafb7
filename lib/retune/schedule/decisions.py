"""Decisions: what sampling leaves open, and which of its options are valid together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

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

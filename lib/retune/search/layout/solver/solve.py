"""The choice for a table of costs, by the solver that is asked for. Read `solve`."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np

from retune.core.errors import InputError
from retune.core.layouts import Solver
from retune.search.layout.solver.exact import (
    MOST_ELEMENTS,
    eliminate,
    elimination_order,
    largest_table,
)
from retune.search.layout.solver.pbqp import reduce
from retune.search.layout.solver.table import CostTable


@dataclass(frozen=True, slots=True)
class Solution:
    """A choice for every variable of a table."""

    choice: tuple[int, ...]
    """Numbers of options."""
    total: float
    optimal: bool
    """Whether it is proven that no choice costs less."""
    solver: Solver
    """What found it: never `auto`."""


def solve(
    table: CostTable, solver: Solver = "auto", *, most_elements: int = MOST_ELEMENTS
) -> Solution:
    """A choice of finite cost; the same one each time.

    `auto` is exact where no table of elimination has more than `most_elements`; elsewhere it is
    PBQP, improved variable by variable. `greedy` takes each variable's own cheapest option.

    Raises: InputError where there is no such choice or the solver finds none, or `exact` would need
    larger tables.
    """
    if solver == "greedy":
        return _checked(table, tuple(int(own.argmin()) for own in table.own), "greedy")
    steps = [] if solver == "pbqp" else elimination_order(table)
    largest = largest_table(table, steps)
    if solver == "exact" and largest > most_elements:
        raise InputError(
            f"exact solver: expected tables of at most {most_elements} elements; got {largest}; "
            "choose the solver auto or pbqp"
        )
    if solver != "pbqp" and largest <= most_elements:
        return _checked(table, eliminate(table, steps), "exact", optimal=True)
    choice, optimal = reduce(table)
    if solver == "auto" and not optimal:
        choice = improved(table, choice)
    return _checked(table, choice, "pbqp", optimal=optimal)


def uniform(table: CostTable, option: str) -> tuple[int, ...]:
    """The choice of that option everywhere; its own cheapest one where a variable lacks it."""
    return tuple(
        options.index(option) if option in options else int(own.argmin())
        for options, own in zip(table.options, table.own, strict=True)
    )


def improved(table: CostTable, choice: Sequence[int]) -> tuple[int, ...]:
    """A choice that costs no more, and that no change of a single variable makes cheaper."""
    near: list[list[tuple[int, np.ndarray]]] = [[] for _ in table.names]
    for (a, b), costs in table.pairs.items():
        near[a].append((b, costs))
        near[b].append((a, costs.T))
    found, changed = list(choice), True
    while changed:
        changed = False
        for variable, own in enumerate(table.own):
            costs = sum((c[:, found[other]] for other, c in near[variable]), own)
            least = int(costs.argmin())
            if costs[least] < costs[found[variable]]:
                found[variable], changed = least, True
    return tuple(found)


def _checked(
    table: CostTable, choice: tuple[int, ...], solver: Solver, *, optimal: bool = False
) -> Solution:
    total = table.total(choice)
    if not isfinite(total):
        why = "there is none" if optimal else "it found none; choose the solver exact"
        raise InputError(f"{solver} solver: expected options that can stand side by side; {why}")
    return Solution(choice, total, optimal, solver)

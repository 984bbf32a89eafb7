"""The cheapest choice of all, by variable elimination (bucket elimination; Dechter, 1999).

A variable is taken out: for all choices of its neighbours, the best that it can do becomes one cost
table over them. Where each variable but the last is gone, the best choice is read off backwards.
The variable whose neighbours need the fewest new pairs goes first (min-fill), which keeps tables
small where a graph is nearly a chain or a tree, as networks are.
"""

from dataclasses import dataclass
from math import prod

import numpy as np

from retune.search.layout.solver.table import CostTable

MOST_ELEMENTS = 1 << 22
"""Of the largest table: 32 MiB of costs."""


@dataclass(frozen=True, slots=True)
class Step:
    """A variable that is taken out, and those that it shares costs with by then."""

    variable: int
    around: tuple[int, ...]


def elimination_order(table: CostTable) -> list[Step]:
    """An order in which all variables are taken out, by min-fill; equal ones by their numbers."""
    around: list[set[int]] = [set() for _ in table.names]
    for a, b in table.pairs:
        around[a].add(b)
        around[b].add(a)
    fills = {v: _missing_pairs(v, around) for v in range(len(around))}
    steps: list[Step] = []
    while fills:
        variable = min(fills, key=lambda v: (fills[v], len(around[v]), v))
        del fills[variable]
        near = around[variable]
        steps.append(Step(variable, tuple(sorted(near))))
        for other in near:
            around[other] |= near
            around[other] -= {variable, other}
        for changed in near.union(*(around[other] for other in near)):
            fills[changed] = _missing_pairs(changed, around)
    return steps


def largest_table(table: CostTable, steps: list[Step]) -> int:
    """Elements of the largest table that this order makes."""
    sizes = table.sizes
    return max((prod(sizes[v] for v in (s.variable, *s.around)) for s in steps), default=0)


def eliminate(table: CostTable, steps: list[Step]) -> tuple[int, ...]:
    """The cheapest choice; its total is infinite where no choice is possible."""
    sizes = table.sizes
    factors: dict[int, list[tuple[tuple[int, ...], np.ndarray]]] = {
        v: [((v,), own)] for v, own in enumerate(table.own)
    }
    place = {step.variable: number for number, step in enumerate(steps)}
    for pair, costs in table.pairs.items():
        factors[min(pair, key=place.__getitem__)].append((pair, costs))
    best: list[np.ndarray] = []
    for step in steps:
        scope = (step.variable, *step.around)
        joint = np.zeros([sizes[v] for v in scope])
        for variables, costs in factors.pop(step.variable):
            joint += _aligned(costs, variables, scope)
        best.append(joint.argmin(axis=0))
        if step.around:
            first = min(step.around, key=place.__getitem__)
            factors[first].append((step.around, joint.min(axis=0)))
    choice = [0] * len(sizes)
    for step, chosen in zip(reversed(steps), reversed(best), strict=True):
        choice[step.variable] = int(chosen[tuple(choice[v] for v in step.around)])
    return tuple(choice)


def _missing_pairs(variable: int, around: list[set[int]]) -> int:
    """Pairs of its neighbours that are not neighbours of each other."""
    near = around[variable]
    joined = sum(len(near & around[other]) for other in near)
    return (len(near) * (len(near) - 1) - joined) // 2


def _aligned(costs: np.ndarray, variables: tuple[int, ...], scope: tuple[int, ...]) -> np.ndarray:
    """The costs with an axis for each variable of the scope: of size one for those not theirs."""
    order = sorted(range(len(variables)), key=lambda axis: scope.index(variables[axis]))
    sizes = dict(zip(variables, costs.shape, strict=True))
    return costs.transpose(order).reshape([sizes.get(v, 1) for v in scope])

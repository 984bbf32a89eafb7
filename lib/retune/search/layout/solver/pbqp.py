"""A partitioned boolean quadratic program, by reductions (Scholz & Eckstein, 2002; Hames & Scholz,
2006).

Variables with at most two neighbours are taken out without loss: R0, R1 and R2. Where all have
more, RN settles the one with the most neighbours by what it costs at least, which may be wrong.
Nothing larger than the table of a pair is ever made.
"""

from dataclasses import dataclass, field

import numpy as np

from retune.search.layout.solver.table import CostTable

_MOST_NEIGHBOURS = 2
"""Of a variable that is taken out without loss."""


def reduce(table: CostTable) -> tuple[tuple[int, ...], bool]:
    """A choice, and whether it is proven to be the cheapest: RN was not needed."""
    rest = _Rest.of(table)
    while rest.own:
        least = min(rest.own, key=lambda v: (len(rest.edges[v]), v))
        if len(rest.edges[least]) <= _MOST_NEIGHBOURS:
            rest.take_out(least)
        else:
            rest.settle(max(rest.own, key=lambda v: (len(rest.edges[v]), -v)))
    return rest.choice(), not rest.guessed


@dataclass(slots=True)
class _Rest:
    """What is left of a table, and how to decide on the variables that are gone."""

    own: dict[int, np.ndarray]
    edges: dict[int, dict[int, np.ndarray]]
    """[options of the variable, options of its neighbour], in both directions."""
    gone: list[tuple[int, tuple[int, ...], np.ndarray]] = field(
        default_factory=list[tuple[int, tuple[int, ...], np.ndarray]]
    )
    """A variable, those it depends on, and its best option for each of their choices."""
    guessed: bool = False

    @classmethod
    def of(cls, table: CostTable) -> "_Rest":
        edges: dict[int, dict[int, np.ndarray]] = {v: {} for v in range(len(table.names))}
        for (a, b), costs in table.pairs.items():
            edges[a][b], edges[b][a] = costs, costs.T
        return cls(dict(enumerate(table.own)), edges)

    def take_out(self, variable: int) -> None:
        """R0, R1 and R2: the best it can do becomes a cost of its neighbours."""
        near = tuple(sorted(self.edges[variable]))
        joint = self.own[variable].reshape(-1, *[1] * len(near))
        for axis, other in enumerate(near):
            costs = self.edges[variable][other]
            shape = [
                costs.shape[0],
                *(costs.shape[1] if a == axis else 1 for a in range(len(near))),
            ]
            joint = joint + costs.reshape(shape)
        self._leave(variable, near, joint.argmin(axis=0))
        best = joint.min(axis=0)
        if len(near) == 1:
            self.own[near[0]] = self.own[near[0]] + best
        elif len(near) == _MOST_NEIGHBOURS:
            a, b = near
            known = self.edges[a].get(b)
            self.edges[a][b] = best if known is None else known + best
            self.edges[b][a] = self.edges[a][b].T

    def settle(self, variable: int) -> None:
        """RN: it takes the option that is the cheapest one if its neighbours need agree on nothing
        else.
        """
        at_least = self.own[variable].copy()
        for other, costs in self.edges[variable].items():
            at_least += (costs + self.own[other]).min(axis=1)
        option = int(at_least.argmin())
        for other, costs in self.edges[variable].items():
            self.own[other] = self.own[other] + costs[option]
        self.guessed = True
        self._leave(variable, (), np.array(option))

    def choice(self) -> tuple[int, ...]:
        """Of every variable, the number of its option."""
        chosen: dict[int, int] = {}
        for variable, near, best in reversed(self.gone):
            chosen[variable] = int(best[tuple(chosen[other] for other in near)])
        return tuple(chosen[variable] for variable in sorted(chosen))

    def _leave(self, variable: int, near: tuple[int, ...], best: np.ndarray) -> None:
        self.gone.append((variable, near, best))
        del self.own[variable]
        for other in self.edges.pop(variable):
            del self.edges[other][variable]

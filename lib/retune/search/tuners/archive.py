"""Archive: the candidates of one space that a tuner proposed or observed, as arrays."""

import numpy as np

from retune.schedule.space import Candidates, Space, join

_DRAWS = 8
"""Rounds of random draws without enough new candidates before the rest of a space is listed."""


def no_candidates(space: Space) -> Candidates:
    """An empty population."""
    return space.population(0, np.zeros((0, 0), np.int64))


class Archive:
    """What is taken, with the cost of what was measured. Identity is the number in the space."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self._taken = np.zeros(0, np.int64)
        self._measured = no_candidates(space)
        self._costs = np.zeros(0)

    def __len__(self) -> int:
        """Distinct candidates taken."""
        return len(self._taken)

    def generator(self, seed: int) -> np.random.Generator:
        """Random numbers that follow from the seed and from how many candidates are taken."""
        return np.random.default_rng((seed, len(self)))

    def take(self, candidates: Candidates) -> Candidates:
        """The same candidates, which are no longer new."""
        self._taken = np.union1d(self._taken, self.space.numbers(candidates))
        return candidates

    def observe(self, candidates: Candidates, costs: np.ndarray) -> None:
        """Takes the candidates and keeps their costs; NaN is a failure."""
        self.take(candidates)
        self._measured = join([self._measured, candidates])
        self._costs = np.concatenate([self._costs, costs])

    def fresh(self, candidates: Candidates) -> Candidates:
        """Those that are not taken, each once, in their order."""
        return candidates.take(self.fresh_indices(candidates))

    def fresh_indices(self, candidates: Candidates) -> np.ndarray:
        """Where the candidates stand that are not taken, each once. int64 [m], rising"""
        numbers, indices = np.unique(self.space.numbers(candidates), return_index=True)
        return np.sort(indices[~np.isin(numbers, self._taken)])

    def best(self, count: int) -> tuple[Candidates, np.ndarray]:
        """The `count` cheapest measured candidates, each once, cheapest first, and their costs.

        Fewer where fewer were right. float64 [at most count]
        """
        ranked = np.argsort(self._costs, kind="stable")
        ranked = ranked[np.isfinite(self._costs[ranked])]
        _, indices = np.unique(self.space.numbers(self._measured.take(ranked)), return_index=True)
        chosen = ranked[np.sort(indices)[:count]]
        return self._measured.take(chosen), self._costs[chosen]

    def draw(self, count: int, rng: np.random.Generator) -> Candidates:
        """`count` random new candidates; fewer when there are no more.

        In a space that is too large to be listed, many draws without success end the search too.
        """
        found = no_candidates(self.space)
        for _ in range(_DRAWS):
            if len(found) >= count:
                break
            found = self.fresh(join([found, self.space.sample(max(16, 2 * count), rng)]))
        if len(found) < count and self.space.listable:
            rest = self.fresh(self.space.everyone())
            found = self.fresh(join([found, rest.take(rng.permutation(len(rest)))]))
        return found.take(np.arange(min(count, len(found))))

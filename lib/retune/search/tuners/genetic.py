"""Genetic search on measurements alone: children of the fastest candidates, without any model."""

import numpy as np

from retune.schedule.space import Candidates, join
from retune.search.tuners.archive import no_candidates
from retune.search.tuners.breeding import crossover, mutate
from retune.search.tuners.protocol import Tuner

_PARENTS = 32
"""The fastest candidates, from which parents are chosen with a chance that follows their speed."""
_GROWN = 16
"""Measured candidates below which there is nothing to breed from."""
_SECOND_MUTATION = 0.3
"""Share of the children in which another decision changes too."""
_CHILDREN = 8
"""Children bred for each one wanted: some are invalid, known, or equal."""


class GeneticTuner(Tuner):
    """Crossover and mutation of measured candidates; random ones at first.

    Source: AutoTVM's GATuner, as a steady state: each batch breeds from all that was measured.
    """

    def propose(self, count: int) -> Candidates:
        """Up to `count` new candidates: children first, random ones where there are too few."""
        archive = self._archive
        rng = archive.generator(self._setting.seed)
        children = archive.take(self._breed(count, rng))
        others = archive.take(archive.draw(count - len(children), rng))
        return join([children, others])

    def _breed(self, count: int, rng: np.random.Generator) -> Candidates:
        space = self._archive.space
        parents, costs = self._archive.best(_PARENTS)
        if len(parents) < _GROWN:
            return no_candidates(space)
        chances = costs[0] / costs
        chances = chances / chances.sum()
        number = _CHILDREN * count
        mothers, fathers = (
            parents.take(rng.choice(len(parents), number, p=chances)) for _ in range(2)
        )
        children = mutate(space, crossover(space, mothers, fathers, rng), rng)
        twice = np.flatnonzero(rng.random(number) < _SECOND_MUTATION)
        once = np.setdiff1d(np.arange(number), twice)
        children = join([children.take(once), mutate(space, children.take(twice), rng)])
        new = self._archive.fresh(children)
        return new.take(rng.permutation(len(new))[:count])

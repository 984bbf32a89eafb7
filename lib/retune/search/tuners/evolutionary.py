"""Evolutionary search over predictions: populations bred and scored as whole arrays."""

import numpy as np

from retune.schedule.space import Candidates, join
from retune.search.tuners.breeding import crossover, mutate
from retune.search.tuners.pool import POOL, Pool, led_batch
from retune.search.tuners.protocol import Tuner

_POPULATION = 256
_GENERATIONS = 3
_MEASURED = 0.2
"""Share of the first population that descends from the fastest measured candidates."""
_ELITE = 0.1
"""Share of a generation that lives on unchanged."""
_CROSSED = 0.3
"""Share of the children with two parents."""
_MUTATED = 0.85
"""Share of the children in which a decision changes."""


class EvolutionaryTuner(Tuner):
    """The best predicted candidates of a few generations, and now and then a random one.

    Source: Ansor (Zheng et al. 2020, section 5), with crossover of decisions, and selection by
    tournament, which needs no scale of the scores.
    """

    def propose(self, count: int) -> Candidates:
        """Up to `count` new candidates, best predicted first, random ones last."""
        return led_batch(self._archive, self._setting.seed, count, self._evolve)

    def _evolve(self, rng: np.random.Generator) -> Pool:
        scorer = self._setting.scorer
        pool = Pool(self._archive, POOL)
        population = self._first_population(rng)
        scores = scorer.score(population)
        pool.offer(population, scores)
        for _ in range(_GENERATIONS if len(population) else 0):
            population = self._children(population, scores, rng)
            scores = scorer.score(population)
            pool.offer(population, scores)
        return pool

    def _first_population(self, rng: np.random.Generator) -> Candidates:
        """Measured candidates and neighbours of theirs, the seeds, and random ones."""
        space, seeds = self._setting.space, self._setting.seeds
        wanted = int(_POPULATION * _MEASURED)
        best, _ = self._archive.best(wanted // 2)
        near = best.take(np.arange(wanted - len(best)) % len(best)) if len(best) else best
        seeds = seeds.take(rng.permutation(len(seeds))[:wanted])
        known = join([best, mutate(space, near, rng), seeds])
        return join([known, space.sample(_POPULATION - len(known), rng)])

    def _children(
        self, population: Candidates, scores: np.ndarray, rng: np.random.Generator
    ) -> Candidates:
        """The next generation; as many as there are now."""
        space, size = self._setting.space, len(population)
        elite = np.argsort(-scores, kind="stable")[: int(size * _ELITE)]
        number = size - len(elite)
        mothers = population.take(_tournament(scores, number, rng))
        fathers = population.take(_tournament(scores, number, rng))
        crossed = (rng.random(number) < _CROSSED)[:, None]
        mixed = crossover(space, mothers, fathers, rng)
        children = Candidates(mothers.sketch, np.where(crossed, mixed.rows, mothers.rows))
        changed = (rng.random(number) < _MUTATED)[:, None]
        mutants = mutate(space, children, rng)
        rows = np.where(changed, mutants.rows, children.rows)
        return join([population.take(elite), Candidates(children.sketch, rows)])


def _tournament(scores: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Indices of `count` winners, each the better of two drawn at random. int64 [count]"""
    left, right = rng.integers(0, len(scores), (2, count))
    return np.where(scores[left] >= scores[right], left, right)

"""Simulated annealing over the decisions, led by predictions: AutoTVM's way of using a model."""

import numpy as np

from retune.schedule.space import Candidates, join
from retune.search.tuners.breeding import mutate
from retune.search.tuners.pool import POOL, Pool, led_batch
from retune.search.tuners.protocol import Tuner

_CHAINS = 128
_STEPS = 10
"""Few steps of many chains: a prediction has a price for each call beside that for each row."""
_PATIENCE = 4
"""Steps without a better plan after which annealing ends."""


class AnnealingTuner(Tuner):
    """A plan of the best candidates that annealing finds, thinned out for variety.

    Source: AutoTVM (Chen et al. 2018): chains walk by changing one decision, accepted by the
    predicted gain and a temperature that falls linearly to zero. They start from the fastest
    measured candidates, from the seeds, and at random.
    """

    def propose(self, count: int) -> Candidates:
        """Up to `count` new candidates, a few of them random."""
        return led_batch(self._archive, self._setting.seed, count, self._plan)

    def _plan(self, rng: np.random.Generator) -> Pool:
        space, scorer = self._setting.space, self._setting.scorer
        pool = Pool(self._archive, POOL)
        points = self._starts(rng)
        scores = scorer.score(points)
        pool.offer(points, scores)
        warmth = float(np.std(scores)) if len(scores) else 0.0
        unchanged = 0
        for step in range(_STEPS):
            moved = mutate(space, points, rng)
            found = scorer.score(moved)
            unchanged = 0 if pool.offer(moved, found) else unchanged + 1
            if unchanged == _PATIENCE:
                break
            temperature = warmth * (1.0 - step / _STEPS) + 1e-9
            chance = np.exp(np.minimum((found - scores) / temperature, 0.0))
            accepted = rng.random(len(points)) < chance
            rows = np.where(accepted[:, None], moved.rows, points.rows)
            points = Candidates(points.sketch, rows)
            scores = np.where(accepted, found, scores)
        return pool

    def _starts(self, rng: np.random.Generator) -> Candidates:
        space, seeds = self._setting.space, self._setting.seeds
        measured, _ = self._archive.best(_CHAINS // 4)
        seeds = seeds.take(rng.permutation(len(seeds))[: _CHAINS // 4])
        rest = _CHAINS - len(measured) - len(seeds)
        return join([measured, seeds, space.sample(rest, rng)])

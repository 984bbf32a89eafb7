"""Candidates made of others: one decision drawn anew, or each taken from one of two parents."""

import numpy as np

from retune.schedule.space import Candidates, Space


def mutate(space: Space, candidates: Candidates, rng: np.random.Generator) -> Candidates:
    """Each candidate with one decision drawn anew; those that would be invalid stay."""
    rows = candidates.rows.copy()
    for number, sketch in enumerate(space.sketches):
        mine = np.flatnonzero(candidates.sketch == number)
        if not len(mine) or not sketch.decisions:
            continue
        column = rng.integers(0, len(sketch.decisions), len(mine))
        rows[mine, column] = rng.integers(0, np.asarray(sketch.options)[column])
    return _keep_valid(space, Candidates(candidates.sketch, rows), candidates)


def crossover(space: Space, a: Candidates, b: Candidates, rng: np.random.Generator) -> Candidates:
    """Each decision from one of two parents of the same sketch; otherwise the first one."""
    same = (a.sketch == b.sketch)[:, None]
    mix = same & (rng.random(a.rows.shape) < 0.5)
    return _keep_valid(space, Candidates(a.sketch, np.where(mix, b.rows, a.rows)), a)


def _keep_valid(space: Space, changed: Candidates, original: Candidates) -> Candidates:
    good = space.valid(changed)[:, None]
    return Candidates(changed.sketch, np.where(good, changed.rows, original.rows))

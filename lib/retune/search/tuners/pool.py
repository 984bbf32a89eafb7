"""Pool: the best new candidates that a search over predictions came across."""

from collections.abc import Callable

import numpy as np

from retune.schedule.space import Candidates, join
from retune.search.tuners.archive import Archive, no_candidates

POOL = 64
"""The best new candidates of a search, from which a batch is chosen."""
_VARIETY = 0.1
"""Worth of a candidate whose options are all new to the batch, in units of the pool's spread."""
_RANDOM = 0.05
"""Share of candidates that are drawn blindly: what the model does not expect."""


class Pool:
    """At most `size` distinct candidates that the archive does not have, best first."""

    def __init__(self, archive: Archive, size: int) -> None:
        self._archive = archive
        self._size = size
        self.candidates = no_candidates(archive.space)
        self.scores = np.zeros(0)

    def offer(self, candidates: Candidates, scores: np.ndarray) -> bool:
        """Keeps the best of the old and the new ones; True if the pool has changed."""
        before = self.scores
        everyone = join([self.candidates, candidates])
        everyones = np.concatenate([self.scores, scores])
        indices = self._archive.fresh_indices(everyone)
        kept = indices[np.argsort(-everyones[indices], kind="stable")[: self._size]]
        self.candidates, self.scores = everyone.take(kept), everyones[kept]
        return not np.array_equal(before, self.scores)

    def pick(self, count: int, variety: float) -> Candidates:
        """`count` members, chosen greedily by score and by how many of their options are new.

        A member's worth is its score on a scale from 0 (the pool's worst) to 1, plus `variety`
        times the share of its decisions whose option no member chosen before it has.
        Source: AutoTVM's diversity filter (Chen et al. 2018, section 4.3).
        """
        rows = np.column_stack([self.candidates.sketch, self.candidates.rows])
        spread = float(np.ptp(self.scores)) if len(rows) else 0.0
        worth = (self.scores - self.scores.min(initial=np.inf)) / (spread or 1.0)
        unseen = np.ones(rows.shape, bool)
        chosen: list[int] = []
        for _ in range(min(count, len(rows))):
            total = worth + variety * unseen.mean(axis=1)
            total[chosen] = -np.inf
            winner = int(np.argmax(total))
            chosen.append(winner)
            same = rows[:, 0] == rows[winner, 0]
            unseen &= (rows != rows[winner]) | ~same[:, None]
        return self.candidates.take(np.asarray(chosen, np.int64))


def led_batch(
    archive: Archive, seed: int, count: int, search: Callable[[np.random.Generator], Pool]
) -> Candidates:
    """Up to `count` new candidates: the best that `search` finds, then now and then a random one.

    They are taken in the archive when the call returns.
    """
    rng = archive.generator(seed)
    blind = int(rng.binomial(count, _RANDOM))
    led = archive.take(search(rng).pick(count - blind, _VARIETY))
    others = archive.take(archive.draw(count - len(led), rng))
    return join([led, others])

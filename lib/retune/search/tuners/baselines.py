"""Baselines of every other tuner: random search, and the whole space in index order."""

from collections.abc import Iterator

import numpy as np

from retune.schedule.space import Candidates, Space, join
from retune.search.tuners.archive import no_candidates
from retune.search.tuners.protocol import Setting, Tuner

_CHUNK = 1024
"""Index combinations that are looked at together."""


class RandomTuner(Tuner):
    """Valid candidates drawn uniformly from each sketch, sketches in turn."""

    def propose(self, count: int) -> Candidates:
        """Up to `count` new candidates."""
        archive = self._archive
        return archive.take(archive.draw(count, archive.generator(self._setting.seed)))


class GridTuner(Tuner):
    """Valid candidates in index order, sketch by sketch, until the space is spent."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._chunks = _chunks(setting.space)
        self._next = no_candidates(setting.space)

    def propose(self, count: int) -> Candidates:
        """The next `count` candidates in order."""
        found = self._archive.fresh(self._next)
        while len(found) < count and (chunk := next(self._chunks, None)) is not None:
            found = self._archive.fresh(join([found, chunk]))
        self._next = found
        return self._archive.take(found.take(np.arange(min(count, len(found)))))


def _chunks(space: Space) -> Iterator[Candidates]:
    for number, sketch in enumerate(space.sketches):
        for start in range(0, sketch.size, _CHUNK):
            rows = sketch.rows_of(np.arange(start, min(start + _CHUNK, sketch.size)))
            yield space.population(number, rows[sketch.valid(rows)])

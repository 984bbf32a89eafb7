"""Grid search: the whole space in index order."""

from collections.abc import Iterator

import numpy as np

from retune.schedule.space import Candidates, Space, join
from retune.search.tuners.archive import Archive, nobody
from retune.search.tuners.protocol import Setting

_CHUNK = 1024
"""Index combinations that are looked at together."""


class GridTuner:
    """Valid candidates in index order, sketch by sketch, until the space is spent."""

    def __init__(self, setting: Setting) -> None:
        self._archive = Archive(setting.space)
        self._chunks = _chunks(setting.space)
        self._next = nobody(setting.space)

    def propose(self, count: int) -> Candidates:
        """The next `count` candidates in order."""
        found = self._archive.fresh(self._next)
        while len(found) < count and (chunk := next(self._chunks, None)) is not None:
            found = self._archive.fresh(join([found, chunk]))
        self._next = found
        return self._archive.take(found.take(np.arange(min(count, len(found)))))

    def observe(self, candidates: Candidates, costs: np.ndarray) -> None:
        """Nothing is learned but what not to propose again."""
        self._archive.observe(candidates, costs)


def _chunks(space: Space) -> Iterator[Candidates]:
    for number, sketch in enumerate(space.sketches):
        for start in range(0, sketch.size, _CHUNK):
            rows = sketch.rows_of(np.arange(start, min(start + _CHUNK, sketch.size)))
            yield space.population(number, rows[sketch.valid(rows)])

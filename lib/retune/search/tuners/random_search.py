"""Random search: the yardstick for every other tuner."""

import numpy as np

from retune.schedule.space import Candidates
from retune.search.tuners.archive import Archive
from retune.search.tuners.protocol import Setting


class RandomTuner:
    """Valid candidates drawn uniformly from each sketch, sketches in turn."""

    def __init__(self, setting: Setting) -> None:
        self._seed = setting.seed
        self._archive = Archive(setting.space)

    def propose(self, count: int) -> Candidates:
        """Up to `count` new candidates."""
        archive = self._archive
        return archive.take(archive.draw(count, archive.generator(self._seed)))

    def observe(self, candidates: Candidates, costs: np.ndarray) -> None:
        """Nothing is learned but what not to propose again."""
        self._archive.observe(candidates, costs)

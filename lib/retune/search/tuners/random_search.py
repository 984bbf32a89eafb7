"""Random search: the yardstick for every other tuner."""

from retune.schedule.space import Candidates
from retune.search.tuners.protocol import Tuner


class RandomTuner(Tuner):
    """Valid candidates drawn uniformly from each sketch, sketches in turn."""

    def propose(self, count: int) -> Candidates:
        """Up to `count` new candidates."""
        archive = self._archive
        return archive.take(archive.draw(count, archive.generator(self._setting.seed)))

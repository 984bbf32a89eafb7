"""Scorers: what tuners ask how good a candidate may be."""

import numpy as np

from retune.core.target import DeviceSpec
from retune.schedule.estimate import estimate
from retune.schedule.space import Candidates, Space


class EstimateScorer:
    """The static estimate: what is known before anything was measured."""

    def __init__(self, space: Space, spec: DeviceSpec) -> None:
        self._space = space
        self._spec = spec

    def score(self, candidates: Candidates) -> np.ndarray:
        """Minus the logarithm of the estimated time: a factor in time is a step in score."""
        times = np.ones(len(candidates))
        for number, sketch in enumerate(self._space.sketches):
            mine = candidates.sketch == number
            rows = candidates.rows[mine][:, : len(sketch.decisions)]
            times[mine] = estimate(sketch, rows, self._spec)
        return -np.log(times)

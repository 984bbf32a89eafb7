"""The interface of tuners.

A tuner is pure: no device, no file, no clock. What it proposes follows from its setting and from
what it observed and proposed before, so a run that was killed goes on as if it had not been: its
measurements are observed again, in their order. It never proposes a candidate twice, nor one that
it observed.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from retune.schedule.space import Candidates, Space
from retune.search.tuners.archive import Archive


class Scorer(Protocol):
    """Predicts how good candidates of one task are."""

    def score(self, candidates: Candidates) -> np.ndarray:
        """A score for each candidate; larger is better, the scale is free. float64 [n]"""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One task as a tuner sees it."""

    space: Space
    seed: int
    scorer: Scorer
    seeds: Candidates
    """Candidates that look promising because similar ones did well in similar tasks."""


class Tuner(ABC):
    """Proposes candidates and learns from results."""

    def __init__(self, setting: Setting) -> None:
        """Nothing is proposed or measured yet."""
        self._setting = setting
        self._archive = Archive(setting.space)

    @abstractmethod
    def propose(self, count: int) -> Candidates:
        """Up to `count` new, valid, distinct candidates; fewer when the space is exhausted."""

    def observe(self, candidates: Candidates, costs: np.ndarray) -> None:
        """Takes in what was measured: costs float64 [n], smaller is better, NaN for a failure."""
        self._archive.observe(candidates, costs)

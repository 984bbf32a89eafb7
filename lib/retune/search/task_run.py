"""One task during a run: its tuner, what is measured first, and what is known of it."""

from collections.abc import Sequence

import numpy as np

from retune.core.results import RecordMatch
from retune.schedule.space import Candidate, Candidates, Space
from retune.search.expectation import TYPICAL_GAIN, Outlook, further_gain
from retune.search.history import History
from retune.search.task import Task
from retune.search.task_schedulers import WINDOW, TaskState
from retune.search.tuners import Tuner

HOPELESS = 64
"""Trials without a valid result after which a task is given up for this run."""


class TaskRun:
    """Proposals and results of one task. All of it follows from what was observed, in its order."""

    def __init__(
        self,
        task: Task,
        space: Space,
        tuner: Tuner,
        first: Sequence[Candidate],
        patience: int,
        most: int | None = None,
        prior: float = TYPICAL_GAIN,
    ) -> None:
        """`first` is measured before the tuner is asked, the default schedule before all others.

        After `patience` trials without a gain the task gets no further ones; 0: it always does.
        `most` is the number of its trials at most; None: no limit. `prior` is the part of its time
        that was expected to be saved before anything was measured.
        """
        self.task = task
        self.space = space
        self.failures = 0
        self.default_us: float | None = None
        """Time of the default schedule, as it was measured last."""
        self._tuner = tuner
        self._kind = "+".join((task.op, *task.epilogue))
        self._flops = task.flops
        self._patience = patience
        self._most = most
        self._default = int(space.numbers(space.locate(first[:1]))[0])
        self._first = space.locate(list(dict.fromkeys(first)))
        self.best_us: float | None = None
        """Time of the best candidate known, also from earlier runs, as it was measured."""
        self._known = np.inf
        """Least cost of earlier runs; infinite if none was right."""
        self._bests: list[float] = []
        """Least cost after each trial of this run; infinite until one is right."""
        self._measured: list[float] = []
        """Cost of each candidate, earlier runs' included; NaN for a failure."""
        self._errors: list[float] = []
        """Relative standard error of each of them; NaN where it is not known."""
        self._default_at: int | None = None
        """Which of them is the default schedule's last right one."""
        self.match: RecordMatch | None = None
        """Whether there were records of it."""
        self._prior = prior
        self.expected = prior
        """Part of its time that the run was expected to save when it began."""
        self._spent = False

    @property
    def trials(self) -> int:
        """Measurements of this run."""
        return len(self._bests)

    @property
    def outlook(self) -> Outlook:
        """What is expected of searching on: nothing where all was measured."""
        time = None if self.best_cost is None else self.task.weight * self.best_cost
        costs, errors = np.array(self._measured, float), np.array(self._errors, float)
        gain = further_gain(costs, errors, self._prior, self._default_at)
        return Outlook(time=time, gain=0.0 if self._spent else gain)

    @property
    def best_cost(self) -> float | None:
        """Least cost known, also from earlier runs."""
        best = self._bests[-1] if self._bests else self._known
        return best if np.isfinite(best) else None

    @property
    def state(self) -> TaskState:
        """What task schedulers need to know."""
        earlier = self._bests[-1 - WINDOW] if self.trials > WINDOW else np.inf
        return TaskState(
            key=self.task.key,
            kind=self._kind,
            weight=self.task.weight,
            flops=self._flops,
            trials=self.trials,
            best_cost=self.best_cost,
            earlier_cost=earlier if np.isfinite(earlier) else None,
            done=self._spent or self._given_up(),
        )

    def propose(self, count: int) -> Candidates:
        """Up to `count` candidates that were never measured; none when the space is exhausted.

        Not while earlier ones are measured: the task's limit counts what was observed.
        """
        if self._most is not None:
            count = min(count, self._most - self.trials)
        if len(self._first):
            return self._first.take(np.arange(min(count, len(self._first))))
        proposed = self._tuner.propose(count)
        self._spent = not len(proposed)
        return proposed

    def recall(self, earlier: History) -> None:
        """Takes in what earlier runs measured."""
        if len(earlier.costs):
            self._known = self._standing(earlier)[-1]
        self._observe(earlier)
        self.expected = self.outlook.gain

    def observe(self, measured: History) -> None:
        """Takes in measurements of this run."""
        self.failures += int(np.isnan(measured.costs).sum())
        self._bests += self._standing(measured)
        self._observe(measured)

    def _standing(self, measured: History) -> list[float]:
        """The least cost known after each of these measurements; `best_us` is of the last."""
        best = self._bests[-1] if self._bests else self._known
        costs = np.where(np.isnan(measured.costs), np.inf, measured.costs)
        if len(costs) and costs.min() < best:
            self.best_us = float(measured.times_us[costs.argmin()])
        return np.minimum.accumulate(np.minimum(costs, best)).tolist()

    def _observe(self, measured: History) -> None:
        numbers = self.space.numbers(measured.candidates)
        defaults = np.flatnonzero((numbers == self._default) & ~np.isnan(measured.costs))
        if len(defaults):
            self.default_us = float(measured.times_us[defaults[-1]])
            self._default_at = len(self._measured) + int(defaults[-1])
        self._measured += measured.costs.tolist()
        self._errors += measured.errors.tolist()
        self._first = self._first.take(~np.isin(self.space.numbers(self._first), numbers))
        self._tuner.observe(measured.candidates, measured.costs)

    def _given_up(self) -> bool:
        if self._most is not None and self.trials >= self._most:
            return True
        if self.best_cost is None:
            return self.trials >= HOPELESS
        gained = int(np.argmin(self._bests)) + 1 if self._bests else 0
        return bool(self._patience) and self.trials - gained >= self._patience

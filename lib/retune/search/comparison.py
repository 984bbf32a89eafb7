"""The comparison of finalists inside their network: which runs next for each task, and which wins.

An iteration runs the whole network with one finalist for each task. Where it gives the time of
every task (`resolved`), all tasks change their finalists at once. Where only the time of the whole
network is seen, one task after the other does, and the others run their leaders. The default
schedule is part of every round, as gains are relative to it. Nothing here knows a device; read
`FinalistComparison`.
"""

from collections.abc import Iterator, Sequence
from math import ceil, floor

import numpy as np

QUANTILE = 0.25
"""Of the samples of a finalist that stands for it: whatever disturbs an iteration only makes it
longer, and the least of a few samples is a lucky one."""
ROUNDS = 24
"""Samples of a finalist at most."""
_LEAST = 4
"""Samples before a finalist is eliminated."""
_TIE = 0.002
"""Finalists that differ by less are equal."""


class FinalistComparison:
    """The finalists of some tasks, by number, with what was measured of them."""

    def __init__(self, finalists: Sequence[int], rng: np.random.Generator) -> None:
        """So many finalists for each task, the default schedule first; at least one each.

        Tasks come in the order in which they matter.
        """
        self.samples: list[list[list[float]]] = [[[] for _ in range(n)] for n in finalists]
        """By task and finalist, in order: seconds of the task, or of the network with it."""
        self._left = [list(range(n)) for n in finalists]
        """Of each task, those that may still win. The default may again, as it is always run."""
        self._rng = rng

    @property
    def decided(self) -> bool:
        """True if more iterations would not change the winners."""
        return not any(self._open(task) for task in range(len(self.samples)))

    @property
    def leaders(self) -> np.ndarray:
        """The finalist of each task that is ahead; the default where nothing is known. int [n]"""
        return np.array([self._leader(task) for task in range(len(self.samples))], np.int64)

    @property
    def saved(self) -> tuple[float, float]:
        """Seconds of an iteration that the leaders are expected to save, and their standard error.

        Every second sample chooses the leader of a task, and the others say what it saves, and the
        other way round: what was chosen for its own samples seems faster than it is.
        """
        halves = np.array([self._saved(task) for task in range(len(self.samples))]).reshape(-1, 2)
        return float(halves.mean(axis=1).sum()), float(np.linalg.norm(np.diff(halves) / 2))

    def standing(self, task: int) -> np.ndarray:
        """What stands for each finalist of a task; infinite for one never seen. float64 [n]"""
        return _standing(self.samples[task])

    def round(self, *, resolved: bool) -> Iterator[np.ndarray]:
        """Iterations in parts, each to be observed before the next. int [iterations, tasks]"""
        if resolved:
            yield self._together()
            return
        for task in range(len(self.samples)):
            if self._open(task):
                yield self._alone(task)

    def observe(self, choices: np.ndarray, seconds: np.ndarray, *, resolved: bool) -> None:
        """Takes in iterations: float64 [iterations, tasks], or [iterations, 1] of the network."""
        varied = range(len(self.samples))
        if not resolved:
            varied = np.flatnonzero(np.ptp(choices, axis=0)).tolist() or [0]
            seconds = np.broadcast_to(seconds, choices.shape)
        for task in varied:
            for chosen, value in zip(choices[:, task], seconds[:, task], strict=True):
                self.samples[task][int(chosen)].append(float(value))
            self._left[task] = self._may_win(task)

    def eliminate(self, task: int, finalist: int) -> None:
        """A finalist that failed cannot win any more; the default always may."""
        if finalist:
            self._left[task] = [c for c in self._left[task] if c != finalist]

    def _together(self) -> np.ndarray:
        """As many iterations as the task with most finalists needs; the others' go round again."""
        every = [self._running(task) for task in range(len(self.samples))]
        count = max(map(len, every))
        columns = [np.resize(self._rng.permutation(running), count) for running in every]
        return np.stack(columns, axis=1)

    def _alone(self, task: int) -> np.ndarray:
        order = self._rng.permutation(self._running(task))
        choices = np.tile(self.leaders, (len(order), 1))
        choices[:, task] = order
        return choices

    def _running(self, task: int) -> list[int]:
        """The finalists that take part in a round."""
        return sorted({0, *self._left[task]})

    def _saved(self, task: int) -> tuple[float, float]:
        """Seconds by either half of the samples; 0 where too few are known."""
        running = self._running(task)
        every = [[self.samples[task][c][half::2] for c in running] for half in (0, 1)]
        if not all(map(all, every)):
            return 0.0, 0.0
        first, second = map(_standing, every)
        by_second = second[0] - second[np.argmin(first)]
        return float(by_second), float(first[0] - first[np.argmin(second)])

    def _open(self, task: int) -> bool:
        """Whether the winner of the task is not decided."""
        left = self._left[task]
        return len(left) > 1 and min(len(self.samples[task][c]) for c in left) < ROUNDS

    def _leader(self, task: int) -> int:
        left = self._left[task]
        return left[int(np.argmin(self.standing(task)[left]))]

    def _may_win(self, task: int) -> list[int]:
        """The leader, and the finalists that are not certainly slower."""
        left, samples = self._running(task), self.samples[task]
        if min(len(samples[c]) for c in left) < _LEAST:
            return left
        leader = self._leader(task)
        usual = (1.0 + _TIE) * float(np.median(samples[leader]))
        standing = self.standing(task)
        return [c for c in left if c == leader or standing[c] < usual]


def _standing(samples: Sequence[Sequence[float]]) -> np.ndarray:
    return np.array([_quantile(s) if s else np.inf for s in samples], np.float64)


def _quantile(samples: Sequence[float]) -> float:
    """QUANTILE of the samples, between two of them where it is, as numpy has it.

    For the few samples of a finalist numpy takes 40 us, and hundreds are asked for in each round.
    """
    ordered, rank = sorted(samples), QUANTILE * (len(samples) - 1)
    below, above = ordered[floor(rank)], ordered[ceil(rank)]
    return below + (rank - floor(rank)) * (above - below)

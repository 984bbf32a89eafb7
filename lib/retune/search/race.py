"""The race of finalists inside their network: who serves which task next, and who has won.

A pass runs the whole network with one contender for each task. Where it tells the time of every
task (`resolved`), a round of passes lets each task's contenders take turns, all tasks at once.
Where only the time of the whole network is seen, tasks take turns, and the others are served by
their leaders. Nothing here knows a device; read `Race`.
"""

from collections.abc import Iterator, Sequence

import numpy as np

QUANTILE = 0.25
"""Of the samples of a contender that stands for it: whatever disturbs a pass only makes it longer,
and the least of a few samples is a lucky one."""
ROUNDS = 24
"""Samples of a contender at most."""
_LEAST = 4
"""Samples before anyone leaves."""
_TIE = 0.002
"""Contenders that differ by less are equal."""


class Race:
    """The contenders of some tasks, by number, with what was measured of them."""

    def __init__(self, contenders: Sequence[int], rng: np.random.Generator) -> None:
        """So many contenders for each task, the default schedule first; at least one each.

        Tasks come in the order in which they matter.
        """
        self.samples: list[list[list[float]]] = [[[] for _ in range(n)] for n in contenders]
        """By task and contender, in order: seconds of the task, or of the network with it."""
        self._racing = [list(range(n)) for n in contenders]
        self._rng = rng

    @property
    def decided(self) -> bool:
        """True if more passes would not change who wins."""
        return not any(self._open(task) for task in range(len(self.samples)))

    @property
    def leaders(self) -> np.ndarray:
        """The contender of each task that is ahead; the default where nothing is known. int [n]"""
        return np.array([self._leader(task) for task in range(len(self.samples))], np.int64)

    def standing(self, task: int) -> np.ndarray:
        """What stands for each contender of a task; infinite for one never seen. float64 [n]"""
        return np.array(
            [np.quantile(s, QUANTILE) if s else np.inf for s in self.samples[task]], np.float64
        )

    def turns(self, *, resolved: bool) -> Iterator[np.ndarray]:
        """A round of passes in parts, each to be observed before the next. int [passes, tasks]"""
        if resolved:
            yield self._together()
            return
        for task in range(len(self.samples)):
            if self._open(task):
                yield self._alone(task)

    def observe(self, choices: np.ndarray, seconds: np.ndarray, *, resolved: bool) -> None:
        """Takes in passes: `seconds` float64 [passes, tasks], or [passes, 1] of the network."""
        varied = range(len(self.samples))
        if not resolved:
            varied = np.flatnonzero(np.ptp(choices, axis=0)).tolist() or [0]
            seconds = np.broadcast_to(seconds, choices.shape)
        for task in varied:
            for chosen, value in zip(choices[:, task], seconds[:, task], strict=True):
                self.samples[task][int(chosen)].append(float(value))
            self._racing[task] = self._left(task)

    def disqualify(self, task: int, contender: int) -> None:
        """A contender that failed is out of the race; the default never is."""
        if contender:
            self._racing[task] = [c for c in self._racing[task] if c != contender]

    def _together(self) -> np.ndarray:
        """As many passes as the task with most contenders needs; the others' go round again."""
        passes = max(len(racing) for racing in self._racing)
        columns = [np.resize(self._rng.permutation(racing), passes) for racing in self._racing]
        return np.stack(columns, axis=1)

    def _alone(self, task: int) -> np.ndarray:
        order = self._rng.permutation(self._racing[task])
        choices = np.tile(self.leaders, (len(order), 1))
        choices[:, task] = order
        return choices

    def _open(self, task: int) -> bool:
        """Whether it is open who wins."""
        racing = self._racing[task]
        return len(racing) > 1 and min(len(self.samples[task][c]) for c in racing) < ROUNDS

    def _leader(self, task: int) -> int:
        racing = self._racing[task]
        return racing[int(np.argmin(self.standing(task)[racing]))]

    def _left(self, task: int) -> list[int]:
        """Those that may still win: the leader, and who was not surely slower."""
        racing, samples = self._racing[task], self.samples[task]
        if min(len(samples[c]) for c in racing) < _LEAST:
            return racing
        leader = self._leader(task)
        usual = (1.0 + _TIE) * float(np.median(samples[leader]))
        standing = self.standing(task)
        return [c for c in racing if c == leader or standing[c] < usual]

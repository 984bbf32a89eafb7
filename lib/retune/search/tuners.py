"""Tuners: who proposes the next candidates of one task.

A tuner is pure: no device, no file, no clock; all its randomness comes from the seed. It never
proposes a candidate twice, nor one that it was told is known.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from retune.core.errors import LookupFailed
from retune.core.keys import content_key
from retune.schedule.space import Candidate, Space

_MAX_EMPTY_DRAWS = 20
"""Draws without a new candidate after which a space is taken to be exhausted."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a candidate: its time in microseconds, or None if it failed."""

    candidate: Candidate
    time_us: float | None


class Tuner(Protocol):
    """Proposes candidates and learns from results."""

    def propose(self, count: int) -> list[Candidate]:
        """Up to `count` new candidates; fewer or none when the space is exhausted."""
        ...

    def observe(self, results: Sequence[Result]) -> None:
        """Takes in what was measured."""
        ...


class RandomTuner:
    """Valid candidates drawn uniformly, after the ones it is told to try first."""

    def __init__(
        self, space: Space, seed: int, first: Sequence[Candidate], known: Iterable[str]
    ) -> None:
        self._space = space
        self._rng = np.random.default_rng(seed)
        self._known = set(known)
        self._first = [c for c in dict.fromkeys(first) if c.key not in self._known]

    def propose(self, count: int) -> list[Candidate]:
        """Up to `count` new candidates."""
        chosen: list[Candidate] = []
        while self._first and len(chosen) < count:
            self._take(self._first.pop(0), chosen)
        for _ in range(_MAX_EMPTY_DRAWS):
            if len(chosen) >= count:
                break
            drawn = self._space.sample(2 * count, self._rng)
            for index in range(len(drawn)):
                if len(chosen) < count:
                    self._take(self._space.candidate(drawn, index), chosen)
        return chosen

    def observe(self, results: Sequence[Result]) -> None:
        """Nothing: random search does not learn."""

    def _take(self, candidate: Candidate, chosen: list[Candidate]) -> None:
        if candidate.key not in self._known:
            self._known.add(candidate.key)
            chosen.append(candidate)


class GridTuner:
    """Valid candidates in index order, sketch by sketch, without end until it is spent."""

    def __init__(
        self, space: Space, seed: int, first: Sequence[Candidate], known: Iterable[str]
    ) -> None:
        del seed, first
        self._space = space
        self._known = set(known)
        self._walk = self._numbers()

    def _numbers(self) -> Iterator[tuple[int, np.ndarray]]:
        for number, sketch in enumerate(self._space.sketches):
            for start in range(0, sketch.size, 1024):
                rows = sketch.rows_of(np.arange(start, min(start + 1024, sketch.size)))
                for row in rows[sketch.valid(rows)]:
                    yield number, row

    def propose(self, count: int) -> list[Candidate]:
        """The next `count` candidates in order."""
        chosen: list[Candidate] = []
        for number, row in self._walk:
            candidate = self._space.candidate(self._space.population(number, row[None]), 0)
            if candidate.key not in self._known:
                self._known.add(candidate.key)
                chosen.append(candidate)
            if len(chosen) == count:
                break
        return chosen

    def observe(self, results: Sequence[Result]) -> None:
        """Nothing: the order is fixed."""


TunerFactory = Callable[[Space, int, Sequence[Candidate], Iterable[str]], Tuner]

TUNERS: Mapping[str, TunerFactory] = {"random": RandomTuner, "grid": GridTuner}
"""Tuners by the name that the command line takes."""


def make_tuner(
    name: str,
    space: Space,
    seed: int,
    task_key: str,
    first: Sequence[Candidate] = (),
    known: Iterable[str] = (),
) -> Tuner:
    """The tuner of that name; its draws depend on `seed` and the task alone.

    Raises: LookupFailed naming the tuners there are.
    """
    if name not in TUNERS:
        raise LookupFailed(f"tuner {name!r} is not known; choose one of {', '.join(TUNERS)}")
    own_seed = int(content_key(seed, task_key)[:15], 16)
    return TUNERS[name](space, own_seed, first, known)

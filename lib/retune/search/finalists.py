"""Finalists: the fastest few candidates of a task, measured again in turns until one is ahead.

The fastest of many noisy samples is a lucky one. Each pass measures every finalist that is still
in the race once; a finalist leaves when the leader is certainly faster. Decisions are made on
costs (`records.cost`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

MOST = 6
"""Finalists of a task at most, beside the default schedule. No search time is so good that it shuts
out the next ones: it may be a lucky one."""
PASSES = 6
"""Passes at most."""
_LEAST = 3
"""Passes before anyone leaves."""
_SURE = 2.5
"""Standard errors by which the leader must be ahead."""
_TIE = 0.01
"""Finalists whose speed differs by less are equal: either may win."""


Pass = Callable[[Sequence[str]], Sequence[float]]
"""Measures the named finalists once each, in their order: their costs, NaN for a failure."""


def race(
    costs: Mapping[str, Sequence[float]], measure: Pass, time_left: Callable[[], bool]
) -> str | None:
    """The winner among the finalists; `costs` holds what was measured of them before.

    Passes go on until it is decided, or no time is left. None if every finalist has failed.
    """
    known = {name: list(values) for name, values in costs.items()}
    while True:
        found = standing(known) if any(known.values()) else Standing(None, tuple(known))
        if decided(found, known) or not time_left():
            return found.leader
        for name, value in zip(found.racing, measure(found.racing), strict=True):
            known[name].append(value)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the race stands."""

    leader: str | None
    """The finalist with the least typical cost; None if every one has failed."""
    racing: tuple[str, ...]
    """Those that may still win, the leader among them, in the order given."""


def standing(costs: Mapping[str, Sequence[float]]) -> Standing:
    """The state of a race: finalist -> its costs so far, NaN for a failure, which disqualifies.

    Costs are compared pass by pass, so what disturbs a whole pass disturbs no comparison.
    """
    logs = {name: np.log(np.asarray(values, float)) for name, values in costs.items()}
    passes = max((len(values) for values in logs.values()), default=0)
    fit = {  # who has fewer passes has left the race
        name: values
        for name, values in logs.items()
        if len(values) == passes and np.isfinite(values).all()
    }
    if not fit or not passes:
        return Standing(None, ())
    leader = min(fit, key=lambda name: (float(np.median(fit[name])), name))
    racing = tuple(name for name in fit if name == leader or not _beaten(fit[name], fit[leader]))
    return Standing(leader, racing)


def decided(found: Standing, costs: Mapping[str, Sequence[float]]) -> bool:
    """True if another pass would not change who wins, or only among equals."""
    passes = max((len(values) for values in costs.values()), default=0)
    if len(found.racing) <= 1 or passes >= PASSES:
        return True
    return passes >= _LEAST and all(
        _equal(costs[name], costs[found.leader or name]) for name in found.racing
    )


def _beaten(values: np.ndarray, leader: np.ndarray) -> bool:
    """True if the leader is certainly faster, by the passes that both took part in."""
    if len(values) < _LEAST:
        return False
    behind = values - leader
    return float(np.mean(behind)) > max(_TIE / 2, _SURE * _error(behind))


def _equal(values: Sequence[float], leader: Sequence[float]) -> bool:
    behind = np.log(np.asarray(values)) - np.log(np.asarray(leader))
    return abs(float(np.mean(behind))) + _error(behind) < _TIE


def _error(differences: np.ndarray) -> float:
    """Standard error of the mean of some differences."""
    return float(np.std(differences, ddof=1)) / math.sqrt(len(differences))

"""What further search of a task is expected to save: from its measurements, noise and a prior.

Read `further_gain`. Searches end by it, allocation of trials does not: the gradient of a task says
where the next batch goes, and this says whether any batch is worth its time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from retune.search.task_schedulers import ROUND

TYPICAL_GAIN = 0.05
"""Of a task of which nothing was measured: eleven networks took 0.954x the time of their default
schedules after a search of minutes. With 0.03, what eighteen networks gained later, a full search
of ResNet-18 ends after half of the trials, and its bundle takes 1.018 times as long."""
NOISE = 0.02
"""Part of a time by which two measurements of the same program differ. Source: benchmarks of equal
bundles; a candidate that is faster by less has won nothing."""
SURE = 1.96
"""Standard errors on either side of a 95 % interval."""
_WEIGHT = ROUND / 2
"""Trials that the expectation of before counts as."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What is expected of searching on for a task."""

    time: float | None
    """Of all its calls in the network, by the best candidate; None: none was right."""
    gain: float
    """Part of it that as many trials again are expected to save."""


def further_gain(
    costs: np.ndarray,
    errors: np.ndarray,
    prior: float = TYPICAL_GAIN,
    default: int | None = None,
) -> float:
    """Part of the least cost that as many trials again are expected to save. From 0 to 1

    A search that has made n trials is compared with one of half of them, taken at random: the least
    cost of the half is the i-th least of all with probability 2^-i. What the other half saved is
    what as many again save at most, since each doubling saves less than the one before. A cost is
    above the least one by what it exceeds NOISE and the 95 % interval of their difference, which
    follows from their relative standard `errors` (NaN: a typical one). The `prior` counts as a few
    trials. Both searches know the `default` schedule, by its number: every search begins with it.
    """
    count, right = len(costs), np.flatnonzero(~np.isnan(costs))
    if not len(right):
        return prior
    order = right[np.argsort(costs[right], kind="stable")]
    least = order[0]
    known = errors[right][~np.isnan(errors[right])]
    errors = np.where(np.isnan(errors), np.median(known) if len(known) else 0.0, errors)
    if default is not None:
        order = np.where(costs[order] < costs[default], order, default)
    noise = NOISE + SURE * np.hypot(errors[order], errors[least])
    chance = 0.5 ** np.arange(1, len(order) + 1)
    excess = np.maximum(costs[order] / costs[least] - 1.0 - noise, 0.0)
    halved = float(chance @ excess / chance.sum())
    saved = halved / (1.0 + halved)
    return (_WEIGHT * prior + count * saved) / (_WEIGHT + count)


def prior_gain(predicted: np.ndarray, trust: float) -> float:
    """Part of its time that a task is expected to save before anything was measured. From 0 to 1

    `predicted` are a trusted model's scores, first of the default schedule, then of others: the
    more the best of them is above the default's, the more is expected, as far as the model is
    trusted. Without a model (`trust` 0) it is what tuning gains on average.
    """
    if trust <= 0.0 or not len(predicted) or predicted.max() <= 0.0:
        return TYPICAL_GAIN
    said = 1.0 - max(0.0, float(predicted[0] / predicted.max()))
    return (1.0 - trust) * TYPICAL_GAIN + trust * said


def expected_share(outlooks: Sequence[Outlook]) -> float:
    """Part of the time of all these tasks that further search is expected to save. From 0 to 1

    A task of which no candidate was right counts as an average one.
    """
    known = [each.time for each in outlooks if each.time is not None]
    average = float(np.mean(known)) if known else 1.0
    times = [average if each.time is None else each.time for each in outlooks]
    saved = sum(time * each.gain for time, each in zip(times, outlooks, strict=True))
    return saved / (sum(times) or 1.0)

"""Dividing a trial budget over the tasks: each batch goes where the network spends its time."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """What the allocator knows of a task."""

    key: str
    weight: int
    flops: int
    trials: int
    best_us: float | None
    exhausted: bool
    """True: no further candidates, or none that ever worked after many trials."""


def next_task(states: Sequence[TaskState]) -> TaskState | None:
    """The task whose share of trials is furthest behind its share of weight x latency.

    Tasks never tried come first, the heaviest before the others. A task without any valid result
    takes turns as the average one: it neither floods nor starves. None when all are exhausted.
    """
    live = [s for s in states if not s.exhausted]
    if not live:
        return None
    untried = [s for s in live if s.trials == 0]
    if untried:
        return max(untried, key=lambda s: (s.weight * s.flops, s.key))
    costs = {s.key: s.weight * s.best_us for s in live if s.best_us is not None}
    average = sum(costs.values()) / len(costs) if costs else 1.0
    return max(live, key=lambda s: (costs.get(s.key, average) / s.trials, s.key))

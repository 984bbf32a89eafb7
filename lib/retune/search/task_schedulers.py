"""Dividing a budget over the tasks: which task is measured next.

A task scheduler is a pure function of the tasks' states, so a continued run measures the same.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from retune.core.errors import LookupFailed

ROUND = 8
"""Trials that count as one round of a task."""
WINDOW = 3 * ROUND
"""Trials over which the latest gain of a task is taken."""
_TREND = 0.2
"""Weight of the latest gain beside what may still be hoped for. Source: Ansor's alpha."""
_REACH = 2.0
"""A task is expected to come this near to the speed of similar ones. Source: Ansor's beta."""
_HOPE_ROUNDS = 5
"""Rounds beyond any similar task's after which a slow task is not compared with them any more."""
_GOLDEN = 1.618
"""Tasks are similar in size when the logarithm of their work to this base is the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """What a task scheduler knows of a task; trials are those of this run."""

    key: str
    kind: str
    """Tasks of one kind should reach similar speed."""
    weight: int
    flops: int
    trials: int
    best_cost: float | None
    """Least cost (`records.cost`) known, also from earlier runs. None: none was ever right."""
    earlier_cost: float | None = None
    """Least cost WINDOW trials ago; None if there was none."""
    done: bool = False
    """True: it has no further candidates, or gets no further trials for another reason."""


TaskScheduler = Callable[[Sequence[TaskState], float], TaskState | None]
"""(states in the network's order, share of the budget spent) -> the next task, if there is one."""


def next_task(name: str, states: Sequence[TaskState], spent: float) -> TaskState | None:
    """The task to measure next by the task scheduler of that name; None when all are done.

    `spent` is the share of the whole budget that is gone, from 0 to 1.
    Raises: LookupFailed naming the task schedulers there are.
    """
    check_task_scheduler(name)
    if all(s.done for s in states):
        return None
    return TASK_SCHEDULERS[name](states, spent)


def check_task_scheduler(name: str) -> None:
    """Raises: LookupFailed naming the task schedulers there are."""
    if name not in TASK_SCHEDULERS:
        known = ", ".join(TASK_SCHEDULERS)
        raise LookupFailed(f"task scheduler {name!r} is not known; choose one of {known}")


def sequential(states: Sequence[TaskState], spent: float) -> TaskState | None:
    """Task after task, each with an equal share of the budget."""
    first = min(int(spent * len(states)), len(states) - 1)
    return next((s for s in [*states[first:], *states[:first]] if not s.done), None)


def round_robin(states: Sequence[TaskState], spent: float) -> TaskState | None:
    """The task with the fewest trials; the first of several."""
    del spent
    return min((s for s in states if not s.done), key=lambda s: s.trials, default=None)


def gradient(states: Sequence[TaskState], spent: float) -> TaskState | None:
    """The task whose next round should shorten the network's time most.

    Tasks never tried come first, the heaviest before the others. A task without any valid result
    counts as the average one, so it neither floods nor starves. Source: Ansor, section 6.
    """
    del spent
    live = [s for s in states if not s.done]
    untried = [s for s in live if s.trials == 0]
    if untried:
        return max(untried, key=lambda s: (s.weight * s.flops, s.key))
    costs = [s.weight * s.best_cost for s in live if s.best_cost is not None]
    average = sum(costs) / len(costs) if costs else 1.0

    def gain(state: TaskState) -> float:
        if state.best_cost is None:
            return (1.0 - _TREND) * average / _rounds(state)
        return state.weight * _expected_gain(state, state.best_cost, states)

    return max(live, key=lambda s: (gain(s), s.key), default=None)


def _expected_gain(state: TaskState, best_cost: float, states: Sequence[TaskState]) -> float:
    """Microseconds by which the task's next round may shorten one call of it."""
    trend = (state.earlier_cost - best_cost) / (WINDOW / ROUND) if state.earlier_cost else 0.0
    hope = best_cost / _rounds(state)
    similar = [s for s in states if _similar(s, state) and s.best_cost]
    if len(similar) > 1 and not _hopeless(state, best_cost, similar):
        speed = max(s.flops / s.best_cost for s in similar if s.best_cost)
        hope = max(hope, best_cost - _REACH * state.flops / speed)
    return _TREND * trend + (1.0 - _TREND) * hope


def _hopeless(state: TaskState, best_cost: float, similar: Sequence[TaskState]) -> bool:
    """True for a task that stays far slower than similar ones with far fewer trials."""
    others = [s for s in similar if s.key != state.key]
    speed = max(s.flops / s.best_cost for s in others if s.best_cost)
    behind = speed > _REACH * state.flops / best_cost
    return behind and _rounds(state) > _HOPE_ROUNDS + max(_rounds(s) for s in others)


def _similar(one: TaskState, other: TaskState) -> bool:
    return one.kind == other.kind and _size(one) == _size(other)


def _size(state: TaskState) -> int:
    return int(math.log(max(state.flops, 1), _GOLDEN))


def _rounds(state: TaskState) -> float:
    return max(state.trials, 1) / ROUND


TASK_SCHEDULERS: Mapping[str, TaskScheduler] = {
    "gradient": gradient,
    "round-robin": round_robin,
    "sequential": sequential,
}
"""Task schedulers by the name that the command line takes."""

"""Turns of the tasks: the budget goes where the network's time can be shortened."""

from dataclasses import replace

import pytest

from retune.core.errors import LookupFailed
from retune.search.task_schedulers import ROUND, TASK_SCHEDULERS, TaskState, next_task


def state(key: str, **fields: object) -> TaskState:
    given = {"kind": key, "weight": 1, "flops": 100, "trials": 8, "best_cost": 10.0, **fields}
    return TaskState(key=key, **given)  # type: ignore[arg-type]


def chosen(*states: TaskState, name: str = "gradient", spent: float = 0.0) -> str:
    found = next_task(name, states, spent)
    assert found is not None
    return found.key


def trials_after(rounds: int, *states: TaskState, name: str = "gradient") -> dict[str, int]:
    """Trials of each task after so many rounds in which nothing improves."""
    now = {s.key: s for s in states}
    for turn in range(rounds):
        key = chosen(*now.values(), name=name, spent=turn / rounds)
        now[key] = replace(now[key], trials=now[key].trials + ROUND)
    return {key: s.trials for key, s in now.items()}


@pytest.mark.parametrize("name", TASK_SCHEDULERS)
def test_done_tasks_are_left_out(name: str):
    done = state("done", best_cost=1e9, done=True)
    assert chosen(done, state("live"), name=name) == "live"
    assert chosen(state("live"), done, name=name, spent=0.99) == "live"
    assert next_task(name, [done], 0.0) is None
    assert next_task(name, [], 0.0) is None


def test_an_unknown_allocator_names_those_there_are():
    with pytest.raises(LookupFailed, match="'fair' is not known; choose one of gradient, round-"):
        next_task("fair", [state("a")], 0.0)


def test_tasks_never_tried_come_first_the_heaviest_before_the_others():
    tried = state("tried", best_cost=1e6)
    light, heavy = state("light", trials=0), state("heavy", trials=0, weight=3)
    assert chosen(tried, light, heavy) == "heavy"
    assert chosen(tried, light) == "light"


def test_trials_follow_weight_times_latency():
    counts = trials_after(400, state("a", best_cost=30.0), state("b", best_cost=5.0, weight=2))
    assert 2.8 < counts["a"] / counts["b"] < 3.2


def test_a_task_without_a_result_takes_turns():
    counts = trials_after(40, state("a"), state("b", best_cost=None), state("c"))
    assert max(counts.values()) - min(counts.values()) <= ROUND


def test_a_network_of_failures_takes_turns():
    counts = trials_after(30, *(state(key, best_cost=None) for key in "abc"))
    assert len(set(counts.values())) == 1


def test_a_task_that_still_gains_goes_on():
    gaining = state("a", trials=80, earlier_cost=20.0)
    assert chosen(gaining, state("b", trials=80, earlier_cost=10.0)) == "a"


def test_a_task_slower_than_its_like_is_preferred_until_it_is_hopeless():
    fast = state("fast", kind="conv", trials=160, best_cost=10.0)
    slow = state("slow", kind="conv", trials=160, best_cost=50.0)
    other = state("other", kind="pool", flops=100, trials=160, best_cost=60.0)
    assert chosen(fast, slow, other) == "slow"
    alone = replace(slow, kind="dense")
    assert chosen(fast, alone, other) == "other"
    tired = replace(slow, trials=160 + 6 * ROUND)
    assert chosen(fast, tired, other) == "other"


def test_round_robin_gives_equal_shares():
    counts = trials_after(30, state("a", best_cost=1e6), state("b"), state("c"), name="round-robin")
    assert len(set(counts.values())) == 1


def test_sequential_finishes_a_task_before_the_next():
    order = [chosen(*(state(k) for k in "abc"), name="sequential", spent=i / 9) for i in range(9)]
    assert order == [*"aaabbbccc"]
    assert chosen(*(state(k) for k in "abc"), name="sequential", spent=1.0) == "c"

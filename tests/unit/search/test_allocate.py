"""The budget goes where the network spends its time."""

from dataclasses import replace

from retune.search.allocate import TaskState, next_task


def state(key: str, **fields: object) -> TaskState:
    given = {"weight": 1, "flops": 100, "trials": 8, "best_us": 10.0, "exhausted": False, **fields}
    return TaskState(key=key, **given)  # type: ignore[arg-type]


def chosen(*states: TaskState) -> str:
    found = next_task(states)
    assert found is not None
    return found.key


def test_tasks_never_tried_come_first_the_heaviest_before_the_others():
    tried = state("tried", best_us=1e6)
    light, heavy = state("light", trials=0), state("heavy", trials=0, weight=3)
    assert chosen(tried, light, heavy) == "heavy"
    assert chosen(tried, light) == "light"


def test_trials_follow_weight_times_latency():
    states = {"a": state("a", best_us=30.0, trials=1), "b": state("b", best_us=5.0, trials=1)}
    states["b"] = replace(states["b"], weight=2)
    for _ in range(400):
        key = chosen(*states.values())
        states[key] = replace(states[key], trials=states[key].trials + 1)
    assert 2.8 < states["a"].trials / states["b"].trials < 3.2


def test_a_task_without_a_result_takes_turns():
    states = {"a": state("a", trials=1), "b": state("b", best_us=None, trials=1)}
    for _ in range(10):
        key = chosen(*states.values())
        states[key] = replace(states[key], trials=states[key].trials + 1)
    assert abs(states["a"].trials - states["b"].trials) <= 1


def test_exhausted_tasks_are_left_out():
    done = state("done", best_us=1e9, exhausted=True)
    assert chosen(done, state("live")) == "live"
    assert next_task([done]) is None
    assert next_task([]) is None

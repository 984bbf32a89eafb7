"""Times without what other processes had of the cores, by invented accounts of threads."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from threading import get_native_id

import pytest

from retune.core.target import GENERIC_CPU
from retune.device.measure.contention import MOST_REPEATS, Took, Waiting, took, undisturbed_times

MS = 1_000_000
"""Nanoseconds, as the system counts."""


def states(threads: Path, accounts: Mapping[str, tuple[float, float]], starts: int = 0) -> None:
    """Each thread ran and waited for so many milliseconds since it began."""
    for name, (ran, waited) in accounts.items():
        (threads / name).mkdir(parents=True, exist_ok=True)
        text = f"{round(ran * MS)} {round(waited * MS)} {starts}\n"
        (threads / name / "schedstat").write_text(text, encoding="utf-8")


def running(threads: Path, milliseconds: float, after: Mapping[str, tuple[float, float]]):
    def run() -> float:
        states(threads, after)
        return 1e-3 * milliseconds

    return run


@pytest.mark.parametrize(
    ("after", "expected", "disturbed"),
    [
        ({"1": (110, 0), "2": (209, 0)}, 10.0, False),  # none waited, wakers slept
        ({"1": (104, 6), "2": (203, 7)}, 4.0, True),  # both waited: the busiest says how long
        ({"1": (110, 0), "2": (202, 8)}, 10.0, True),  # one waited, the other did all the work
        ({"1": (103, 2), "2": (203, 0)}, 8.0, True),  # they slept besides: only waits are lost
        ({"1": (110, 0.1), "2": (209, 0.1)}, 10.0, False),  # workers that are woken
        ({"1": (104, 9), "2": (203, 9), "3": (5, 9)}, 5.0, True),  # one began meanwhile
        ({"1": (150, 0), "2": (209, 9)}, 10.0, True),  # never longer than it took
    ],
)
def test_what_threads_waited_for_cores_does_not_count(
    tmp_path: Path, after: Mapping[str, tuple[float, float]], expected: float, disturbed: bool
):
    states(tmp_path, {"1": (100, 0), "2": (200, 0)})
    found = took(running(tmp_path, 10.0, after), GENERIC_CPU, tmp_path)
    assert found.seconds == pytest.approx(1e-3 * expected)
    assert found.disturbed == disturbed


def test_where_the_system_does_not_tell_a_time_is_as_stated(tmp_path: Path):
    assert took(lambda: 0.5, GENERIC_CPU, tmp_path / "none") == Took(seconds=0.5)
    (tmp_path / "1").mkdir()
    assert took(lambda: 0.5, GENERIC_CPU, tmp_path) == Took(seconds=0.5)
    (tmp_path / "1" / "schedstat").write_text("?\n", encoding="utf-8")
    assert took(lambda: 0.5, GENERIC_CPU, tmp_path) == Took(seconds=0.5)


def test_threads_of_this_process_do_not_work_for_other_devices(tmp_path: Path):
    states(tmp_path, {"1": (0, 0)})
    run = running(tmp_path, 10.0, {"1": (1, 9)})
    assert took(run, replace(GENERIC_CPU, device_class="gpu"), tmp_path) == Took(seconds=0.01)


def test_the_thread_that_waited_most_says_which_part(tmp_path: Path):
    states(tmp_path, {"1": (100, 3), "2": (200, 5)})
    waiting = Waiting(tmp_path)
    assert waiting.share(0.01) == 0.0
    states(tmp_path, {"1": (104, 6), "2": (203, 12)})
    assert waiting.share(0.01) == pytest.approx(0.7)
    assert waiting.share(0.001) == 1.0
    assert waiting.share(0.0) == 0.0
    assert Waiting(tmp_path / "none").share(1.0) == 0.0


def test_waking_is_no_wait(tmp_path: Path):
    states(tmp_path, {"1": (100, 3)})
    waiting = Waiting(tmp_path)
    states(tmp_path, {"1": (104, 5)}, starts=200)
    assert waiting.share(0.01) == 0.0
    states(tmp_path, {"1": (104, 8)}, starts=150)
    assert waiting.share(0.01) == pytest.approx(0.2)


def test_a_caller_that_others_work_for_does_not_count(tmp_path: Path):
    caller = str(get_native_id())
    states(tmp_path, {caller: (100, 0), "1": (100, 0)})
    waiting = Waiting(tmp_path)
    states(tmp_path, {caller: (100.9, 9), "1": (109, 0)})
    assert waiting.share(0.01) == 0.0
    states(tmp_path, {caller: (101.1, 8), "1": (109, 0)})  # it works with them
    assert waiting.share(0.01) == pytest.approx(0.8)


def test_this_machine_states_no_more_than_passes():
    assert took(lambda: 1e-9, GENERIC_CPU).seconds <= 1e-9


def in_turn(*given: tuple[float, bool]) -> tuple[Callable[[], Took], list[int]]:
    calls: list[int] = []

    def run() -> Took:
        seconds, disturbed = given[len(calls)]
        calls.append(1)
        return Took(seconds=seconds, disturbed=disturbed)

    return run, calls


def test_disturbed_runs_are_replaced_by_calm_ones():
    run, calls = in_turn((9.0, True), (2.0, False), (3.0, False))
    assert undisturbed_times(run, 2) == [2.0, 3.0]
    assert len(calls) == 3


def test_calm_runs_before_count():
    run, calls = in_turn((2.0, False))
    assert undisturbed_times(run, 2, [Took(seconds=4.0)]) == [4.0, 2.0]
    assert len(calls) == 1


def test_where_all_are_disturbed_the_fastest_count():
    seconds = [float(9 - n) for n in range(MOST_REPEATS * 2)]
    run, calls = in_turn(*((each, True) for each in seconds))
    assert undisturbed_times(run, 2) == sorted(seconds)[:2]
    assert len(calls) == MOST_REPEATS * 2

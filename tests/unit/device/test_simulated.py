"""What a simulated board measures, and how its faults end."""

from dataclasses import replace
from pathlib import Path

import pytest

from retune.core.errors import DeviceError, InputError
from retune.core.target import GENERIC_CPU
from retune.device.measure.workload import MeasureOptions
from retune.device.simulated.runner import SimulatedRunner
from retune.device.simulated.simulation import program_times_us
from retune.records.cost import measured_costs
from retune.records.store import RecordStore
from retune.search.session import Session, search_all
from tests.support.boards import board, fault
from tests.support.measure import WORKLOAD, program
from tests.support.search_fakes import settings, tasks


class Clock:
    """Time passes when somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def wait(self, seconds: float) -> None:
        self.now += seconds


def opened(folder: Path, text: str = "", clock: Clock | None = None) -> SimulatedRunner:
    waiting = (clock or Clock()).wait
    runner = SimulatedRunner(board(folder, text), GENERIC_CPU, wait=waiting)
    runner.prepare(WORKLOAD)
    return runner


PROGRAMS = [program(name) for name in "abcd"]
OPTIONS = MeasureOptions()


def test_equal_candidates_take_equal_times_in_every_runner(tmp_path: Path):
    rows = opened(tmp_path).measure("task", PROGRAMS, OPTIONS)
    again = opened(tmp_path).measure("task", PROGRAMS[::-1], OPTIONS)[::-1]
    assert [row.run_times_us for row in rows] == [row.run_times_us for row in again]
    assert len({row.median_us for row in rows}) == len(PROGRAMS)
    for row, source in zip(rows, PROGRAMS, strict=True):
        time_us = sum(program_times_us(source.runs, board(tmp_path)))
        assert row.ok and row.run_times_us == (time_us,) * OPTIONS.repeat
        assert row.median_us == pytest.approx(time_us)


def test_costs_do_not_know_how_fast_a_board_is(tmp_path: Path):
    slow = opened(tmp_path).measure("task", PROGRAMS, OPTIONS)
    fast = opened(tmp_path, "speed = 3.0").measure("task", PROGRAMS, OPTIONS)
    (slow_us, slow_cost), (fast_us, fast_cost) = measured_costs(slow), measured_costs(fast)
    assert fast_us == pytest.approx(slow_us / 3)
    assert fast_cost == pytest.approx(slow_cost, rel=1e-6)


def test_noise_is_of_the_repeats_and_the_same_each_time(tmp_path: Path):
    noisy = opened(tmp_path, "noise = 0.1")
    (row,), (again,) = (noisy.measure("task", PROGRAMS[:1], OPTIONS) for _ in range(2))
    assert row.run_times_us == again.run_times_us
    assert len(set(row.run_times_us)) == OPTIONS.repeat and min(row.run_times_us) > 0


def test_measuring_takes_its_time_and_hangs_take_theirs(tmp_path: Path):
    clock = Clock()
    text = "measure_s = 0.5\nhang_s = 7" + "\n" + fault("hang", at=2)
    rows = opened(tmp_path, text, clock).measure("task", PROGRAMS, OPTIONS)
    assert clock.now == 3 * 0.5 + 7
    assert [row.run_s for row in rows] == [0.5, pytest.approx(10.0, rel=0.01), 0.5, 0.5]


@pytest.mark.parametrize(
    ("kind", "status", "error"),
    [
        ("hang", "timeout", "the first run: no answer within 10 s; killed"),
        ("crash", "crash", "the first run: the process died of SIGSEGV"),
        ("launch_error", "launch_error", "board: wait for the queue: clFinish failed: "),
        ("wrong_result", "wrong_result", "output 'y' at [0, 0]: expected 1, got -3; deviation 4, "),
    ],
)
def test_a_fault_becomes_a_row_and_the_batch_goes_on(
    tmp_path: Path, kind: str, status: str, error: str
):
    rows = opened(tmp_path, fault(kind, at=2)).measure("task", PROGRAMS, OPTIONS)
    assert [row.status for row in rows] == ["ok", status, "ok", "ok"]
    assert rows[1].error.startswith(error) and rows[1].median_us is None
    assert rows[1].max_abs_err == (4 if kind == "wrong_result" else None)


def test_a_slow_moment_passes(tmp_path: Path):
    runner = opened(tmp_path, fault("slow", at=1, factor=5.0))
    (first,), (second,) = (runner.measure("task", PROGRAMS[:1], OPTIONS) for _ in range(2))
    assert second.median_us is not None
    assert first.median_us == pytest.approx(5 * second.median_us)


def test_a_lost_driver_loses_the_batch(tmp_path: Path):
    runner = opened(tmp_path, fault("lost", at=2))
    with pytest.raises(DeviceError, match="device 'board' cannot be opened: the process died of"):
        runner.measure("task", PROGRAMS, OPTIONS)
    assert all(row.ok for row in runner.measure("task", PROGRAMS, OPTIONS))


def test_what_is_wrong_in_its_bundle_wins_alone_and_goes_on_winning(tmp_path: Path):
    runner = opened(tmp_path, fault("wrong_bundle", task="[a-d]"))
    rows = runner.measure("task", PROGRAMS, OPTIONS)
    times = [row.median_us or 0.0 for row in rows]
    assert times.index(min(times)) == 1, "the first of a task is spared"
    again = opened(tmp_path).measure("task", PROGRAMS, OPTIONS)
    assert [row.median_us for row in again] == times


def test_what_a_runner_refuses_this_one_refuses(tmp_path: Path):
    runner = opened(tmp_path)
    with pytest.raises(InputError, match="'other' was not prepared; prepared are: task"):
        runner.measure("other", PROGRAMS, OPTIONS)
    with pytest.raises(InputError, match="the candidate expects 5 elements"):
        runner.measure("task", [program(elements=5)], OPTIONS)


def test_a_session_on_a_board_learns_from_it_and_records_whose_times_they_are(tmp_path: Path):
    runner = SimulatedRunner(board(tmp_path, fault("crash", share=0.2)), GENERIC_CPU)
    store = RecordStore(tmp_path / "records")
    session = Session(tasks(), runner, store, settings(trials=40))
    search_all(session)
    assert set(store.scan(columns=["status"])["status"]) == {"ok", "crash"}
    assert any(
        run.best_us and run.default_us and run.best_us < run.default_us for run in session.runs
    )
    rows = store.scan(columns=["device", "instance", "host", "target"])
    assert set(rows["instance"]) == {"board"} and set(rows["host"]) == {"simulated"}
    assert set(rows["target"]) == {"simulated board"}
    assert set(rows["device"]) == {
        replace(GENERIC_CPU, model="simulated board", driver="1").fingerprint
    }

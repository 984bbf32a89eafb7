"""A session measures what it is asked for, keeps every row, and goes on where it was."""

from collections import Counter
from pathlib import Path

import pytest

from retune.codegen.source import ProgramSource
from retune.core.errors import ScheduleError
from retune.core.target import GENERIC_CPU
from retune.records.schema import Measurement, failed
from retune.records.store import RecordStore
from retune.search import session as session_module
from retune.search.extract import extract
from retune.search.history import candidate_of
from retune.search.session import RunSettings, Session
from tests.unit.search.fakes import FakeRunner, measured, pooling, settings, tasks, wrong

FOREVER = 1e9


def quiet(text: str, trials: int) -> None:
    """Reports nothing."""


def open_session(
    store: Path, runner: FakeRunner | None = None, given: RunSettings | None = None
) -> Session:
    return Session(tasks(), runner or FakeRunner(), RecordStore(store), given or settings())


def rows(store: Path):
    return RecordStore(store).scan(columns=["record_id", "run_id", "task_key", "config_hash"])


def test_a_round_measures_as_many_as_it_is_told(store: Path):
    runner, lines = FakeRunner(), []
    session = open_session(store, runner)
    statuses, reason = session.round(18, FOREVER, lambda *line: lines.append(line))
    assert (statuses["ok"], reason) == (18, "")
    assert len(runner.measured) == len(rows(store)) == session.trials == 18
    assert not rows(store).duplicated(["task_key", "config_hash"]).any()
    assert [trials for _, trials in lines][-1] == 18
    assert "dense" in lines[0][0] and "none valid" not in lines[0][0]


def test_only_reductions_are_tuned(store: Path):
    tuned = {state.key for state, _ in open_session(store).states()}
    assert tuned == {task.key for task in tasks() if task.tunable}
    assert len(tuned) == 2


def test_a_round_without_time_measures_nothing(store: Path):
    statuses, reason = open_session(store).round(8, 0.0, quiet)
    assert not statuses.total()
    assert reason == ""


def test_another_process_goes_on_with_the_run(store: Path):
    first = open_session(store)
    first.round(10, FOREVER, quiet)
    second = open_session(store)
    assert second.trials == 10
    assert [s for s, _ in second.states()] == [s for s, _ in first.states()]
    second.round(14, FOREVER, quiet)
    found = rows(store)
    assert second.trials == len(found) == 24
    assert not found.duplicated(["task_key", "config_hash"]).any()


def test_another_run_measures_nothing_again_and_starts_with_the_best(store: Path):
    open_session(store).round(12, FOREVER, quiet)
    other = open_session(store, given=settings(run_id="other", seed=5))
    assert other.trials == 0
    assert all(state.best_us is not None for state, _ in other.states())
    other.round(12, FOREVER, quiet)
    found = rows(store)
    assert not found.duplicated(["task_key", "config_hash"]).any()
    assert found["run_id"].value_counts().to_dict() == {"run": 12, "other": 12}


def test_failures_are_rows_with_their_message(store: Path):
    session = open_session(store, FakeRunner(wrong))
    statuses, _ = session.round(8, FOREVER, quiet)
    assert statuses == {"wrong_result": 8}
    assert sum(failures for _, failures in session.states()) == 8
    assert set(RecordStore(store).scan(columns=["error"])["error"]) == {"off by one"}
    assert sum(failures for _, failures in open_session(store).states()) == 8


def test_a_task_that_never_works_is_given_up(store: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(session_module, "_HOPELESS", 6)
    dense = max(tasks(), key=lambda task: task.flops)

    def outcome(source: ProgramSource) -> Measurement:
        return wrong(source) if dense.key[:8] in source.kernels[0].name else measured(source)

    session = open_session(store, FakeRunner(outcome))
    session.round(60, FOREVER, quiet)
    trials = {state.key: state.trials for state, _ in session.states()}
    trials_of_hopeless = trials.pop(dense.key)
    assert trials_of_hopeless < 12
    assert all(count > trials_of_hopeless for count in trials.values())


def test_the_end_of_all_spaces_ends_the_run(store: Path):
    (task,) = extract(pooling()).tasks.values()
    count = len(task.space(GENERIC_CPU).everyone())
    given = settings(tuner="grid", batch=64)
    session = Session([task], FakeRunner(), RecordStore(store), given)
    statuses, reason = session.round(count + 1, FOREVER, quiet)
    assert reason == "every space is exhausted"
    assert statuses.total() == len(rows(store)) == count
    again = Session([task], FakeRunner(), RecordStore(store), given)
    assert again.round(1, FOREVER, quiet) == (Counter(), reason)


def test_a_candidate_that_cannot_be_made_is_skipped(store: Path, monkeypatch: pytest.MonkeyPatch):
    lowered = session_module.lower
    calls = []

    def sometimes(program):
        calls.append(program)
        if len(calls) % 3 == 0:
            raise ScheduleError("no such loop")
        return lowered(program)

    monkeypatch.setattr(session_module, "lower", sometimes)
    runner = FakeRunner()
    statuses, _ = open_session(store, runner).round(12, FOREVER, quiet)
    assert statuses == {"ok": 8, "skipped": 4}
    assert len(runner.measured) == 8
    messages = RecordStore(store).scan({"status": "skipped"}, ["error"])["error"]
    assert set(messages) == {"no such loop"}


def test_rows_and_measurements_stay_paired(store: Path):
    """Each record's time is that of its own candidate."""
    session = open_session(store)
    session.round(12, FOREVER, quiet)
    by_key = {task.key: task for task in tasks()}
    known = RecordStore(store)
    for key, task in by_key.items():
        space = task.space(session.runner.spec)
        for record in known.top(key, session.runner.spec.fingerprint, 20):
            candidate = candidate_of(record, space)
            assert candidate is not None
            assert candidate.key == record.config_hash
            source = session_module.lower(space.instantiate(candidate))
            assert measured(source).median_us == pytest.approx(record.measurement.median_us)


def test_an_unusable_time_is_no_best(store: Path):
    session = open_session(store, FakeRunner(lambda source: failed("timeout", "too slow")))
    session.round(4, FOREVER, quiet)
    assert all(state.best_us is None for state, _ in session.states())

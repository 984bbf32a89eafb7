"""A session measures what it is asked for, keeps every row, and goes on where it was."""

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from retune.codegen.lower import lower
from retune.codegen.source import ProgramSource
from retune.core.dtypes import FLOAT32
from retune.core.errors import LookupFailed, ScheduleError
from retune.core.target import GENERIC_CPU
from retune.device.measure.lease import lease
from retune.device.measure.workload import MeasureOptions
from retune.records.arrow import to_records
from retune.records.cost import measured_costs
from retune.records.ranking import best, top
from retune.records.schema import Measurement, failed, succeeded
from retune.records.store import RecordStore
from retune.search import task as task_module
from retune.search import task_run
from retune.search.defaults import LEAST_GAIN
from retune.search.expectation import NOISE
from retune.search.extract import extract
from retune.search.history import candidate_of
from retune.search.session import RunSettings, Session, search_all
from retune.search.task import expression_task
from retune.search.task_schedulers import ROUND
from retune.search.tuners import TUNERS
from retune.targets.cost.estimate import default_candidate
from retune.targets.devices import target_of
from tests.support import dags
from tests.support.search_fakes import HERE, FakeRunner, measured, pooling, settings, tasks, wrong
from tests.support.waiting import OtherHolders


def open_session(
    store: Path, runner: FakeRunner | None = None, given: RunSettings | None = None
) -> Session:
    return Session(tasks(), runner or FakeRunner(), RecordStore(store), given or settings())


def searched(
    store: Path, trials: int, runner: FakeRunner | None = None, **fields: object
) -> Session:
    """A session that has spent so many trials of its run."""
    session = open_session(store, runner, settings(trials=trials, **fields))
    assert search_all(session) == "trials"
    return session


def statuses(session: Session) -> Counter[str]:
    return sum((session.statuses(run.task.key) for run in session.runs), Counter())


def rows(store: Path):
    return RecordStore(store).scan(columns=["record_id", "run_id", "task_key", "config_hash"])


def test_a_search_measures_as_many_as_it_is_told(store: Path):
    runner, lines = FakeRunner(), []
    session = open_session(store, runner, settings(trials=18))
    assert search_all(session, lambda *line: lines.append(line)) == "trials"
    assert statuses(session) == {"ok": 18}
    assert len(runner.measured) == len(rows(store)) == session.trials == 18
    assert not rows(store).duplicated(["task_key", "config_hash"]).any()
    assert [trials for _, trials in lines] == sorted(trials for _, trials in lines)
    assert lines[-1][1] == 18
    assert "dense" in lines[0][0] and "none valid" not in lines[0][0]


def test_a_search_that_is_told_to_stop_ends_after_the_batch_in_flight(store: Path):
    session, batches = open_session(store), list[int]()

    def report(_: str, trials: int) -> None:
        batches.append(trials)

    assert search_all(session, report, lambda: len(batches) >= 2) == "stopped"
    assert 2 <= len(batches) <= 3
    assert statuses(session).total() == session.trials == len(rows(store)) == batches[-1]


def test_a_search_that_is_stopped_before_it_begins_measures_nothing(store: Path):
    session = open_session(store)
    assert search_all(session, stop=lambda: True) == "stopped"
    assert session.trials == len(rows(store)) == 0


def test_the_next_task_is_the_one_that_is_measured_next(store: Path):
    following = open_session(store).next_key()
    session = searched(store, 1)
    assert {run.task.key for run in session.runs if run.trials} == {following}


def test_only_reductions_are_tuned(store: Path):
    tuned = {run.task.key for run in open_session(store).runs}
    assert tuned == {task.key for task in tasks() if task.tunable}
    assert len(tuned) == 2


def test_a_search_without_time_measures_nothing(store: Path):
    session = open_session(store, given=settings(seconds=100.0, spent_s=100.0))
    assert search_all(session) == "time"
    assert (session.trials, session.seconds) == (0, pytest.approx(100.0, abs=99.0))


def test_time_is_spent_by_all_processes_of_a_run(store: Path):
    moments = iter(range(10_000))
    given = settings(seconds=20.0, spent_s=5.0)
    session = Session(
        tasks(), FakeRunner(), RecordStore(store), given, clock=lambda: float(next(moments))
    )
    assert session.seconds == 5.0
    assert search_all(session) == "time"
    assert session.seconds >= 20.0
    assert 0 < session.trials == len(rows(store)) < 100


def test_waiting_for_the_device_is_not_spent(store: Path, monkeypatch: pytest.MonkeyPatch):
    """Another run has the device for a hundred seconds before each batch."""
    others = OtherHolders(100.0).install(monkeypatch)

    class Shared(FakeRunner):
        def measure(
            self, workload_key: str, candidates: Sequence[ProgramSource], options: MeasureOptions
        ) -> list[Measurement]:
            with lease(self.spec):
                others.now += 0.5 * len(candidates)
                return super().measure(workload_key, candidates, options)

    given = settings(seconds=10.0, spent_s=0.0)
    session = Session(tasks(), Shared(), RecordStore(store), given, clock=others)
    assert search_all(session) == "time"
    assert session.seconds == 10.0
    assert others.now == 1000.0 + 7 * 100.0 + session.seconds


def test_another_process_goes_on_with_the_run(store: Path):
    first = searched(store, 10)
    second = open_session(store, given=settings(trials=24))
    assert second.trials == 10
    second.finish()
    assert [run.state for run in second.runs] == [run.state for run in first.runs]
    assert search_all(open_session(store, given=settings(trials=24))) == "trials"
    found = rows(store)
    assert len(found) == 24
    assert not found.duplicated(["task_key", "config_hash"]).any()


@pytest.mark.parametrize("tuner", TUNERS)
def test_a_run_that_was_cut_proposes_as_if_it_had_not_been(store: Path, tuner: str):
    """Between two batches: the first two are of one candidate, others of four."""
    cut, trials = 2 + 4 * 3, 2 + 4 * 5
    whole, parts = store / "whole", store / "parts"
    searched(whole, trials, tuner=tuner)
    searched(parts, cut, tuner=tuner)
    searched(parts, 8, run_id="other")
    searched(parts, trials, tuner=tuner)
    assert proposed(parts) == proposed(whole)


def proposed(store: Path) -> list[tuple[str, str]]:
    """What the run measured, in order."""
    columns = ["task_key", "config_hash", "trial"]
    found = RecordStore(store).scan({"run_id": "run"}, columns).sort_values("trial")
    assert found["trial"].tolist() == list(range(len(found)))
    return list(zip(found["task_key"], found["config_hash"], strict=True))


def test_the_default_schedule_is_measured_first_and_known_afterwards(store: Path):
    searched(store, 8)
    first = dict(reversed(proposed(store)))
    for task in tasks():
        if task.tunable:
            space = task.space(GENERIC_CPU)
            assert first[task.key] == default_candidate(space, GENERIC_CPU).key


def test_candidates_are_timed_with_the_constants_of_the_whole_network(store: Path):
    dense = replace(expression_task(dags.dense(8, 32, 64, epilogue=False)), weight=3)
    other = replace(dense, key="other", weight=2)
    runner = FakeRunner()
    session = Session([dense, other], runner, RecordStore(store), settings(trials=1))
    search_all(session)
    assert dense.constant_bytes == 64 * 32 * 4
    assert [options.spread_bytes for options in runner.options] == [5 * dense.constant_bytes]


def test_patience_ends_a_task_that_gains_nothing(store: Path):
    flat = succeeded([5.0], max_abs_err=0.0, reference_us=None, build_s=0.0, run_s=0.0)
    session = open_session(store, FakeRunner(lambda source: flat), settings(patience=12))
    assert search_all(session) == "nothing left"
    assert statuses(session).total() < 2 * (12 + 2 * 4)


def alike(source: ProgramSource) -> Measurement:
    return at(5.0)


def alike_within_noise(source: ProgramSource) -> Measurement:
    return at(5.0 + 0.99 * NOISE * 5.0 * (zlib.crc32(source.text.encode()) % 2))


def at(time_us: float) -> Measurement:
    return succeeded([time_us], max_abs_err=0.0, reference_us=None, build_s=0.0, run_s=0.0)


class DefaultFirst(FakeRunner):
    """The default schedule is the fastest of each task; every search begins with it."""

    def measure(
        self, workload_key: str, candidates: Sequence[ProgramSource], options: MeasureOptions
    ) -> list[Measurement]:
        first = workload_key not in dict(self.measured)
        found = super().measure(workload_key, candidates, options)
        return [at(0.5), *found[1:]] if first else found


@pytest.mark.parametrize(
    "runner", [FakeRunner(alike), FakeRunner(alike_within_noise), DefaultFirst()]
)
def test_a_search_ends_after_three_rounds_of_each_task_where_nothing_is_gained(
    store: Path, runner: FakeRunner
):
    """In two minutes at 0.07 s a trial: networks of up to seventy tasks."""
    session = open_session(store, runner, settings(least_gain=LEAST_GAIN))
    assert search_all(session) == "little expected"
    trials = [session.statuses(run.task.key).total() for run in session.runs]
    assert max(trials) <= 3 * ROUND, trials


def test_an_unknown_allocator_is_refused_before_anything_is_measured(store: Path):
    with pytest.raises(LookupFailed, match="task scheduler 'fair' is not known"):
        open_session(store, given=settings(task_scheduler="fair"))


def test_another_run_measures_nothing_again_and_starts_with_the_best(store: Path):
    searched(store, 12)
    other = open_session(store, given=settings(run_id="other", seed=5, trials=12))
    assert other.trials == 0
    assert all(run.best_us is not None for run in other.runs)
    search_all(other)
    found = rows(store)
    assert not found.duplicated(["task_key", "config_hash"]).any()
    assert found["run_id"].value_counts().to_dict() == {"run": 12, "other": 12}


def test_failures_are_rows_with_their_message(store: Path):
    session = searched(store, 8, FakeRunner(wrong))
    again = open_session(store)
    again.finish()
    for each in (session, again):
        assert statuses(each) == {"wrong_result": 8}
        assert sum(run.failures for run in each.runs) == 8
    assert set(RecordStore(store).scan(columns=["error"])["error"]) == {"off by one"}


def test_a_task_that_never_works_is_given_up(store: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(task_run, "HOPELESS", 6)
    dense = max(tasks(), key=lambda task: task.flops)

    def outcome(source: ProgramSource) -> Measurement:
        return wrong(source) if dense.key[:8] in source.kernels[0].name else measured(source)

    session = open_session(store, FakeRunner(outcome), settings(trials=60))
    search_all(session)
    trials = {run.task.key: run.trials for run in session.runs}
    trials_of_hopeless = trials.pop(dense.key)
    assert trials_of_hopeless < 12
    assert all(count > trials_of_hopeless for count in trials.values())


def test_the_end_of_all_spaces_ends_the_run(store: Path):
    (task,) = extract(pooling()).tasks.values()
    count = len(task.space(GENERIC_CPU).everyone())
    given = settings(tuner="grid", batch=64)
    session = Session([task], FakeRunner(), RecordStore(store), given)
    assert search_all(session) == "nothing left"
    assert statuses(session).total() == len(rows(store)) == count
    again = Session([task], FakeRunner(), RecordStore(store), given)
    assert search_all(again) == "nothing left"
    assert len(rows(store)) == count


def test_a_candidate_that_cannot_be_made_is_skipped(store: Path, monkeypatch: pytest.MonkeyPatch):
    lowered = lower
    calls = []

    def sometimes(program, target):
        calls.append(program)
        if len(calls) % 3 == 0:
            raise ScheduleError("no such loop")
        return lowered(program, target)

    monkeypatch.setattr(task_module, "lower", sometimes)
    runner = FakeRunner()
    assert statuses(searched(store, 12, runner)) == {"ok": 8, "skipped": 4}
    assert len(runner.measured) == 8
    messages = RecordStore(store).scan({"status": "skipped"}, ["error"])["error"]
    assert set(messages) == {"no such loop"}


def test_rows_and_measurements_stay_paired(store: Path):
    """Each record's time is that of its own candidate."""
    session = searched(store, 12)
    by_key = {task.key: task for task in tasks()}
    known = RecordStore(store)
    for key, task in by_key.items():
        space = task.space(session.spec)
        for record in top(known, key, HERE, 20):
            candidate = candidate_of(record, space)
            assert candidate is not None
            assert candidate.key == record.config_hash
            source = lower(space.instantiate(candidate), target_of(session.spec))
            assert measured(source).median_us == pytest.approx(record.measurement.median_us)


def test_an_unusable_time_is_no_best(store: Path):
    session = searched(store, 4, FakeRunner(lambda source: failed("timeout", "too slow")))
    assert all(run.best_us is None for run in session.runs)


class Elsewhere(FakeRunner):
    """The same device, of which it uses one core."""

    spec = replace(GENERIC_CPU, compute_units=1)


def test_times_of_other_conditions_are_not_compared(store: Path):
    searched(store, 12, Elsewhere(), run_id="one core")
    session = open_session(store, given=settings(run_id="all cores", trials=12))
    assert all(run.best_us is None for run in session.runs)
    search_all(session)
    for run in session.runs:
        found = top(RecordStore(store), run.task.key, session.conditions.comparable, 99)
        assert {item.run_id for item in found} == {"all cores"}
    one_core = open_session(store, Elsewhere(), settings(run_id="one core"))
    assert any(run.best_us for run in one_core.runs)


class Second(FakeRunner):
    """Its rows were taken by another one of its devices."""

    def measure(
        self, workload_key: str, candidates: Sequence[ProgramSource], options: MeasureOptions
    ) -> list[Measurement]:
        rows = super().measure(workload_key, candidates, options)
        state = {"clock_mhz": 1800.0, "temperature_c": 71.5, "governor": "performance"}
        return [replace(row, instance="board-2", **state) for row in rows]  # type: ignore[arg-type]


def test_a_record_names_the_device_that_took_it(store: Path):
    searched(store, 4, Second())
    rows = RecordStore(store).scan()
    assert set(rows["instance"]) == {"board-2"}
    assert set(rows["governor"]) == {"performance"}
    assert set(rows["clock_mhz"]) == {1800.0}
    for record in to_records(RecordStore(store).table()):
        assert record.measurement.temperature_c == 71.5
        assert record.conditions == replace(open_session(store).conditions, instance="board-2")


def test_records_of_before_conditions_were_kept_are_known(store: Path):
    searched(store / "new", 12)
    rows = to_records(RecordStore(store / "new").table())
    RecordStore(store / "old").append([replace(row, conditions=None) for row in rows])
    other = open_session(store / "old", given=settings(run_id="other"))
    assert all(run.best_us is not None for run in other.runs)


def test_a_record_says_what_was_measured_and_who_proposed_it(store: Path):
    dense = expression_task(dags.dense(8, 32, 64, epilogue=False))
    given = settings(tuner="grid", seed=3, trials=2)
    search_all(Session([dense], FakeRunner(), RecordStore(store), given))
    for row in to_records(RecordStore(store).table()):
        assert (row.tuner, row.seed, row.op) == ("grid", 3, dense.op)
        assert (row.flops, row.bytes) == (2 * 8 * 32 * 64, 4 * (8 * 32 + 32 * 64 + 8 * 64))
        assert (row.input_shapes, row.output_shape) == (dense.input_shapes, (8, 64))
        assert row.dtypes == (FLOAT32,) * 3
        assert row.decisions == tuple(v for _, values in row.knobs for v in values)
        assert row.strategy.startswith("cpu.loops.") and ".v16." in row.sketch


def drifting(source: ProgramSource) -> Measurement:
    """Measured on a machine whose pace differs from moment to moment, by a factor of 4 at most."""
    pace = 1.0 + 3.0 * (int(source.key[:8], 16) / 2**32)
    time_us = pace * (measured(source).median_us or 0.0)
    reference = 1000.0 * pace
    return succeeded([time_us], max_abs_err=0.0, reference_us=reference, build_s=0.0, run_s=0.0)


def test_search_and_store_agree_on_what_is_fastest(store: Path):
    session, again = searched(store, 40, FakeRunner(drifting)), open_session(store)
    again.finish()
    for run in [*session.runs, *again.runs]:
        found = best(RecordStore(store), run.task.key, HERE)
        assert found is not None
        assert run.best_us == found.measurement.median_us
        assert run.best_cost == measured_costs([found.measurement])[1][0]

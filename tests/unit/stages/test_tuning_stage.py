"""Rounds of measurements: each done once, however often the process ends in between."""

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from retune.codegen.source import ProgramSource
from retune.core.target import GENERIC_CPU
from retune.device.child import ChildLostError
from retune.device.workload import MeasureOptions
from retune.records.conditions import within
from retune.records.schema import Measurement
from retune.records.store import RecordStore
from retune.stages import racing, selection, tuning
from retune.stages.manifest import (
    ImportManifest,
    RoundManifest,
    TaskManifest,
    TuneEvent,
    TuneRequest,
)
from retune.stages.network import stage_extract, stage_import
from tests.device.networks import write
from tests.unit.search.fakes import FakeRunner, measured


class Runners:
    """Hands out fake runners; one that may `live` for so many batches ends the process then."""

    def __init__(self) -> None:
        self.live: int | None = None
        self.measured = 0
        self.opened: list[FakeRunner] = []

    def __call__(self, device: str) -> FakeRunner:
        self.opened.append(_Mortal(self))
        return self.opened[-1]


class _Mortal(FakeRunner):
    def __init__(self, owner: Runners) -> None:
        super().__init__(measured)
        self._owner = owner

    def measure(
        self, workload_key: str, candidates: Sequence[ProgramSource], options: MeasureOptions
    ) -> list[Measurement]:
        owner = self._owner
        if owner.live is not None:
            owner.live -= 1
            if owner.live < 0:
                raise KeyboardInterrupt
        owner.measured += len(candidates)
        return super().measure(workload_key, candidates, options)


@pytest.fixture
def runners(monkeypatch: pytest.MonkeyPatch) -> Iterator[Runners]:
    made = Runners()
    monkeypatch.setattr(tuning, "open_runner", made)
    monkeypatch.setattr(tuning, "spec_of", lambda name: GENERIC_CPU)
    yield made
    tuning._OPEN.close()


@pytest.fixture
def request_(tmp_path: Path) -> TuneRequest:
    return TuneRequest(
        model=str(write("bottleneck", tmp_path)),
        out=str(tmp_path / "out"),
        records=str(tmp_path / "records"),
        work=str(tmp_path / "work"),
        trials=150,
    )


def prepare(request: TuneRequest) -> tuple[ImportManifest, TaskManifest]:
    network = stage_import(request)
    return network, stage_extract(request, network)


def all_rounds(request: TuneRequest) -> list[RoundManifest]:
    """What a process does that goes through every round, as the flow does."""
    network, tasks = prepare(request)
    rounds: list[RoundManifest] = []
    while not rounds or not rounds[-1].finished:
        last = rounds[-1] if rounds else None
        rounds.append(
            tuning.stage_tune_round(request, network, tasks, len(rounds), last, lambda event: None)
        )
    return rounds


def assert_each_trial_once(request: TuneRequest, rounds: list[RoundManifest]) -> None:
    rows = RecordStore(request.records).scan(columns=["run_id", "task_key", "config_hash"])
    assert len(rows) == request.trials == rounds[-1].trials_done
    assert rows["run_id"].nunique() == 1
    assert not rows.duplicated(["task_key", "config_hash"]).any()
    total = sum((Counter(dict(r.statuses)) for r in rounds), Counter())
    assert total == {"ok": request.trials}


def test_rounds_go_on_until_the_budget_is_spent(runners: Runners, request_: TuneRequest):
    rounds = all_rounds(request_)
    assert [r.index for r in rounds] == list(range(len(rounds)))
    assert [r.finished for r in rounds] == [False] * (len(rounds) - 1) + [True]
    assert rounds[-1].reason == "150 trials are done"
    assert_each_trial_once(request_, rounds)
    assert len(runners.opened) == 1 and runners.opened[0].closed


def test_a_finished_run_measures_nothing_when_it_is_started_again(
    runners: Runners, request_: TuneRequest
):
    first = all_rounds(request_)
    count = runners.measured
    assert all_rounds(request_) == first
    assert runners.measured == count
    assert len(runners.opened) == 1


@pytest.mark.parametrize("batches", [0, 1, 5, 12])
def test_a_run_that_was_cut_short_goes_on(runners: Runners, request_: TuneRequest, batches: int):
    runners.live = batches
    with pytest.raises(KeyboardInterrupt):
        all_rounds(request_)
    tuning._OPEN.close()
    runners.live = None
    rounds = all_rounds(request_)
    assert_each_trial_once(request_, rounds)
    assert runners.measured == request_.trials


def test_a_run_that_was_stopped_ends_with_what_it_has_and_goes_on_later(
    runners: Runners, request_: TuneRequest
):
    network, tasks = prepare(request_)
    events: list[TuneEvent] = []

    def stop() -> bool:
        return runners.measured >= 20

    short = tuning.stage_tune_round(request_, network, tasks, 0, None, events.append, stop)
    assert short.finished and short.stopped and "stopped by hand" in short.reason
    assert 20 <= short.trials_done == runners.measured < 64
    folder = Path(request_.work)
    assert not list(folder.glob("tune/*/manifest.json"))

    standing = events[-1].tasks
    assert sum(task.trials for task in standing) == events[-1].done == short.trials_done
    assert {task.entry.key for task in standing} == {p.task_key for p in short.progress}
    assert events[-1].next_key in {task.entry.key for task in standing}

    decided = tuning.stage_finalists(request_, network, short, events.append, stop)
    assert decided.stopped and not decided.winners
    assert not list(folder.glob("finalists/*/manifest.json"))

    assert_each_trial_once(request_, all_rounds(request_))


def test_a_run_that_is_cut_short_at_every_batch_ends(runners: Runners, request_: TuneRequest):
    for _ in range(200):
        runners.live = 1
        try:
            rounds = all_rounds(request_)
        except KeyboardInterrupt:
            tuning._OPEN.close()
        else:
            break
    assert_each_trial_once(request_, rounds)


def test_a_run_whose_records_are_gone_measures_again(runners: Runners, request_: TuneRequest):
    first = all_rounds(request_)
    shutil.rmtree(request_.records)
    again = all_rounds(request_)
    assert runners.measured == 2 * first[-1].trials_done
    assert [r.trials_done for r in again] == [r.trials_done for r in first]
    assert len(RecordStore(request_.records).scan({}, ["status"])) == first[-1].trials_done


def test_other_seeds_and_campaigns_are_other_runs(runners: Runners, request_: TuneRequest):
    network, _ = prepare(request_)
    ids = {
        tuning.run_id(changed, network, GENERIC_CPU)
        for changed in (
            request_,
            replace(request_, seed=1),
            replace(request_, trials=10),
            replace(request_, tuner="grid"),
            replace(request_, allocator="round-robin"),
            replace(request_, patience=9),
            replace(request_, records="elsewhere"),
            replace(request_, campaign="2026-03-01"),
        )
    }
    assert len(ids) == 8
    assert tuning.run_id(replace(request_, out="x"), network, GENERIC_CPU) in ids


def test_no_trials_need_no_device_to_be_opened(runners: Runners, request_: TuneRequest):
    (only,) = all_rounds(replace(request_, trials=0))
    assert only.finished
    assert not runners.opened


def test_the_selection_is_the_winner_of_each_race(
    runners: Runners, request_: TuneRequest, monkeypatch: pytest.MonkeyPatch
):
    """The last finalist of each task wins; its time in place is what people are told."""
    raced: list[int] = []

    def fake(network, contenders, spec, device, seed, time_left) -> racing.Raced:
        raced.append(len(contenders))
        samples = {key: [[1.0 + n] * 3 for n in range(len(c))] for key, c in contenders.items()}
        leaders = {key: len(c) - 1 for key, c in contenders.items()}
        return racing.Raced(
            resolved=True, leaders=leaders, samples=samples, passes=3, reference_us=900.0
        )

    monkeypatch.setattr(racing, "race_in_place", fake)
    monkeypatch.setattr(selection, "spec_of", lambda name: GENERIC_CPU)
    rounds = all_rounds(request_)
    network, tasks = prepare(request_)
    trials = runners.measured
    final = tuning.stage_finalists(request_, network, rounds[-1], lambda event: None)
    again = tuning.stage_finalists(request_, network, rounds[-1], lambda event: None)
    assert again == final and raced == [len(final.winners)] and runners.measured == trials
    assert len(final.winners) == sum(t.tunable for t in tasks.tasks)

    rows = RecordStore(request_.records).scan({"phase": "final"})
    assert set(rows["place"]) == {within(network.model_key)}
    chosen = {b.task_key: b for b in selection.stage_select(request_, tasks, final).best}
    weights = {t.key: t.weight for t in tasks.tasks}
    for winner in final.winners:
        mine = rows[rows["task_key"] == winner.task_key]
        best = chosen[winner.task_key]
        assert best.record_id == winner.record_id
        assert best.time_us == pytest.approx(1e6 * len(mine) / weights[winner.task_key])
        assert best.default_us == pytest.approx(1e6 / weights[winner.task_key])


def test_without_a_race_the_best_record_of_each_task_is_selected(
    runners: Runners, request_: TuneRequest, monkeypatch: pytest.MonkeyPatch
):
    def lost(*_: object) -> racing.Raced:
        raise ChildLostError("crash", "the process died of SIGSEGV")

    monkeypatch.setattr(racing, "race_in_place", lost)
    monkeypatch.setattr(selection, "spec_of", lambda name: GENERIC_CPU)
    rounds = all_rounds(request_)
    network, tasks = prepare(request_)
    final = tuning.stage_finalists(request_, network, rounds[-1], lambda event: None)
    assert not final.winners
    chosen = selection.stage_select(request_, tasks, final)
    best = {entry.task_key: entry.best_us for entry in rounds[-1].progress}
    assert {b.task_key: b.time_us for b in chosen.best} == pytest.approx(best)

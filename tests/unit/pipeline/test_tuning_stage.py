"""The searches of a run's tasks: each trial is made once, however often the process ends."""

import logging
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from retune.codegen.source import ProgramSource
from retune.core.errors import DeviceError
from retune.core.layouts import ALL_NHWC, IOLayouts, KeptLayouts, LayoutAssignment, LayoutPlan
from retune.core.target import GENERIC_CPU, DeviceSpec
from retune.device.measure.child import ChildLostError
from retune.device.measure.workload import MeasureOptions
from retune.pipeline import finalists, open_runs, selection, tuning
from retune.pipeline.layout_manifest import LayoutManifest
from retune.pipeline.layouts import stage_layout
from retune.pipeline.manifest import (
    Constraints,
    ImportManifest,
    TaskManifest,
    TunedTasks,
    TuneManifest,
)
from retune.pipeline.network import stage_extract, stage_import
from retune.pipeline.request import TuneRequest
from retune.pipeline.results import FinishedRun, TuneEvent
from retune.pipeline.summary import task_results
from retune.pipeline.watch import watching
from retune.records.conditions import within
from retune.records.ranking import top
from retune.records.schema import Measurement
from retune.records.store import RecordStore
from retune.schedule.space import Candidate
from retune.search.layout.trials import conditions_in
from tests.support.device_networks import write
from tests.support.search_fakes import FakeRunner, measured


class Runners:
    """Hands out fake runners; one that may `live` for so many batches ends the process then."""

    def __init__(self) -> None:
        self.live: int | None = None
        self.broken = ""
        """Start of the key of a task whose measuring fails."""
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
        if owner.broken and owner.broken in candidates[0].kernels[0].name:
            raise DeviceError("the measuring process failed:\nwith many lines")
        owner.measured += len(candidates)
        return super().measure(workload_key, candidates, options)


@pytest.fixture
def runners(monkeypatch: pytest.MonkeyPatch) -> Runners:
    made = Runners()
    monkeypatch.setattr(tuning, "open_runner", made)
    monkeypatch.setattr(tuning, "spec_of", lambda name: GENERIC_CPU)
    monkeypatch.setattr(tuning, "_OPEN", open_runs.OpenRuns())
    return made


@pytest.fixture
def request_(tmp_path: Path) -> TuneRequest:
    return TuneRequest(
        model=str(write("bottleneck", tmp_path)),
        out=str(tmp_path / "out"),
        records=str(tmp_path / "records"),
        work=str(tmp_path / "work"),
        trials=48,
        tuner="random",  # no model to train
        campaign="tonight",
    )


def prepare(request: TuneRequest) -> tuple[ImportManifest, TaskManifest]:
    network = stage_import(request)
    return network, stage_extract(request, network)


Outcomes = dict[str, TuneManifest | Exception]


def outcomes(
    request: TuneRequest, network: ImportManifest, tasks: TaskManifest, left_out: str = ""
) -> Outcomes:
    """How the search of each task ends, as a chain of stages calls it: each in its own thread."""
    keys = [t.key for t in tasks.tasks if t.tunable and t.key != left_out]
    with ThreadPoolExecutor(len(keys)) as pool:
        found = {
            key: pool.submit(copy_context().run, tuning.stage_tune, request, network, tasks, key)
            for key in keys
        }
    errors = {key: search.exception() for key, search in found.items()}
    for error in errors.values():
        if isinstance(error, KeyboardInterrupt):
            raise error
    return {key: errors[key] or search.result() for key, search in found.items()}


def tuned(request: TuneRequest) -> TunedTasks:
    """What a process does that searches every task."""
    network, tasks = prepare(request)
    return tuning.join_tuned(request, network, tasks, outcomes(request, network, tasks))


def assert_each_trial_once(request: TuneRequest, done: TunedTasks) -> None:
    rows = RecordStore(request.records).scan(columns=["run_id", "task_key", "config_hash", "trial"])
    assert len(rows) == request.trials == done.trials_done
    assert rows["run_id"].nunique() == 1
    assert not rows.duplicated(["task_key", "config_hash"]).any()
    assert sorted(rows["trial"]) == list(range(len(rows)))
    assert Counter(dict(done.statuses)) == {"ok": request.trials}


def test_tasks_are_searched_together_until_the_budget_is_spent(
    runners: Runners, request_: TuneRequest
):
    network, tasks = prepare(request_)
    found = outcomes(request_, network, tasks)
    done = tuning.join_tuned(request_, network, tasks, found)
    assert done.reason == "48 trials are done"
    assert not done.stopped and not done.failed
    assert set(RecordStore(request_.records).scan(columns=["night"])["night"]) == {"tonight"}
    assert [result.entry.key for result in done.results] == [
        t.key for t in tasks.tasks if t.tunable
    ]
    for key, search in found.items():
        assert isinstance(search, TuneManifest)
        assert search.task_key == key and search.result in done.results
        assert dict(search.statuses) == {"ok": search.result.trials}
    assert_each_trial_once(request_, done)
    assert len(runners.opened) == 1 and runners.opened[0].closed


def test_a_finished_run_measures_nothing_when_it_is_started_again(
    runners: Runners, request_: TuneRequest
):
    first = tuned(request_)
    count = runners.measured
    assert tuned(request_) == first
    assert runners.measured == count
    assert len(runners.opened) == 1


@pytest.mark.parametrize("batches", [0, 1, 3])
def test_a_run_that_was_cut_short_goes_on(runners: Runners, request_: TuneRequest, batches: int):
    runners.live = batches
    with pytest.raises(KeyboardInterrupt):
        tuned(request_)
    runners.live = None
    done = tuned(request_)
    assert_each_trial_once(request_, done)
    assert runners.measured == request_.trials


def test_a_run_that_was_stopped_ends_with_what_it_has_and_goes_on_later(
    runners: Runners, request_: TuneRequest
):
    request_ = replace(request_, trials=80)
    events: list[TuneEvent] = []
    with watching(events.append, lambda: runners.measured >= 20):
        short = tuned(request_)
        network, _ = prepare(request_)
        decided = tuning.stage_finalists(request_, network, short)
    assert short.stopped and "stopped by hand" in short.reason
    assert 20 <= short.trials_done == runners.measured < 64
    folder = Path(request_.work)
    assert not list(folder.glob("tune/*/manifest.json"))

    standings = [event for event in events if event.stage == "tune"]
    assert [event.done for event in standings] == sorted(event.done for event in standings)
    last = standings[-1]
    assert sum(task.trials for task in last.tasks) == last.done == short.trials_done
    assert {task.entry.key for task in last.tasks} == {result.entry.key for result in short.results}
    assert last.next_key in {task.entry.key for task in last.tasks}

    assert decided.stopped and not decided.winners
    assert events[-1].text == "measuring has stopped"
    assert not list(folder.glob("finalists/*/manifest.json"))

    assert_each_trial_once(request_, tuned(request_))


def test_a_run_that_is_cut_short_at_every_batch_ends(runners: Runners, request_: TuneRequest):
    request_ = replace(request_, trials=24)
    for _ in range(24):
        runners.live = 1
        try:
            done = tuned(request_)
        except KeyboardInterrupt:
            continue
        break
    assert_each_trial_once(request_, done)


def test_a_run_whose_records_are_gone_measures_again(runners: Runners, request_: TuneRequest):
    first = tuned(request_)
    shutil.rmtree(request_.records)
    again = tuned(request_)
    assert runners.measured == 2 * first.trials_done
    assert again.trials_done == first.trials_done
    assert len(RecordStore(request_.records).scan({}, ["status"])) == first.trials_done


def test_a_task_that_fails_is_left_out_and_the_others_spend_the_budget(
    runners: Runners, request_: TuneRequest, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(selection, "spec_of", lambda name: GENERIC_CPU)
    monkeypatch.setattr(finalists, "compare_in_network", first_of_each)
    network, tasks = prepare(request_)
    broken = next(t.key for t in tasks.tasks if t.tunable)
    tuned(replace(request_, trials=24))  # so that there are records of it, by another run
    runners.broken = broken[:8]
    found = outcomes(request_, network, tasks)
    assert isinstance(found[broken], DeviceError)
    done = tuning.join_tuned(request_, network, tasks, found)
    assert done.trials_done == request_.trials
    assert done.failed == ((broken, "the measuring process failed: with many lines"),)
    assert broken not in {result.entry.key for result in done.results}

    final = tuning.stage_finalists(request_, network, done)
    chosen = {b.task_key for b in selection.stage_choose(request_, tasks, final).best}
    assert chosen == {t.key for t in tasks.tasks if t.tunable} - {broken}

    runners.broken = ""
    retried = tuning.stage_tune(request_, network, tasks, broken)
    assert retried.reason == "48 trials are done", "the others had all of them"
    found[broken] = retried
    assert tuning.join_tuned(request_, network, tasks, found).failed == ()


def test_a_run_all_of_whose_tasks_fail_fails(runners: Runners, request_: TuneRequest):
    network, tasks = prepare(request_)
    failed: Outcomes = {t.key: DeviceError(t.key) for t in tasks.tasks if t.tunable}
    with pytest.raises(DeviceError, match=next(iter(failed))):
        tuning.join_tuned(request_, network, tasks, failed)
    done = tuning.join_tuned(request_, network, tasks, {})
    assert (done.trials_done, done.reason) == (0, "no task has anything left to try")


def test_the_time_that_was_spent_is_known_after_a_kill(
    runners: Runners, request_: TuneRequest, monkeypatch: pytest.MonkeyPatch
):
    request_ = replace(request_, trials=None, minutes=1.0)
    network, _ = prepare(request_)
    run = tuning.run_id(request_, network, GENERIC_CPU)
    runners.live = 3
    with pytest.raises(KeyboardInterrupt):
        tuned(request_)
    ledger = open_runs.Ledger(Path(request_.work), run)
    assert 0.0 < ledger.read() < 51.0
    ledger.write(51.0)
    runners.live, before = None, runners.measured
    done = tuned(request_)
    assert runners.measured == before == done.trials_done
    assert done.reason == "the budget of 1 min is spent"
    assert done.seconds_done == pytest.approx(51.0, abs=1.0)

    shutil.rmtree(request_.records)
    ledger.write(50.99)
    stop_after = runners.measured + 1
    with watching(stop=lambda: runners.measured >= stop_after):
        assert tuned(request_).seconds_done < 40.0, "without records nothing was spent"
    assert runners.measured >= stop_after


def test_a_ledger_that_cannot_be_read_says_that_nothing_was_spent(tmp_path: Path):
    ledger = open_runs.Ledger(tmp_path, "run")
    assert ledger.read() == 0.0
    ledger.write(2.5)
    assert ledger.read() == 2.5
    (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    for text in ("", "[]", '{"seconds": 1}', '{"seconds_done": "soon"}'):
        file.write_text(text)
        assert ledger.read() == 0.0


def test_a_task_that_was_searched_before_is_not_waited_for(
    runners: Runners, request_: TuneRequest, caplog: pytest.LogCaptureFixture
):
    """Such as one whose search had ended when the process was killed."""
    tuned(request_)
    network, tasks = prepare(request_)
    run = tuning.run_id(request_, network, GENERIC_CPU)
    first, *others = (t.key for t in tasks.tasks if t.tunable)
    for key in others:
        shutil.rmtree(Path(request_.work) / "tune" / tuning.tune_key(run, key))
    with caplog.at_level(logging.WARNING):
        found = outcomes(request_, network, tasks, left_out=first)
    assert found.keys() == set(others)
    assert not caplog.records


def test_other_seeds_and_campaigns_are_other_runs(runners: Runners, request_: TuneRequest):
    network, _ = prepare(request_)
    ids = {
        tuning.run_id(changed, network, GENERIC_CPU)
        for changed in (
            request_,
            replace(request_, seed=1),
            replace(request_, trials=10),
            replace(request_, tuner="grid"),
            replace(request_, task_scheduler="round-robin"),
            replace(request_, patience=9),
            replace(request_, records="elsewhere"),
            replace(request_, campaign="2026-03-01"),
            replace(request_, trials_per_task=10),
            replace(request_, repeats=3),
            replace(request_, cooldown=3.0),
            replace(request_, run_deadline=3.0),
        )
    }
    assert len(ids) == 12
    assert tuning.run_id(replace(request_, out="x"), network, GENERIC_CPU) in ids


def test_candidates_are_measured_as_the_request_says(runners: Runners, request_: TuneRequest):
    asked = {"repeats": 2, "min_repeat_ms": 0.5, "cooldown": 0.25}
    deadlines = {"build_deadline": 90.0, "run_deadline": 60.0}
    usual = runners_options(runners, replace(request_, trials=20))
    found = runners_options(runners, replace(request_, trials=20, **asked, **deadlines))
    assert found == replace(
        usual,
        repeat=2,
        min_repeat_ms=0.5,
        cooldown_s=0.25,
        build_deadline_s=90.0,
        run_deadline_s=60.0,
    )
    (conditions,) = (
        RecordStore(request_.records).scan(columns=["conditions"])["conditions"].unique()
    )
    assert conditions, "all of these times compare"


def runners_options(runners: Runners, request: TuneRequest) -> MeasureOptions:
    """How the candidates of that request are measured."""
    tuned(request)
    (options,) = set(runners.opened[-1].options)
    return options


def test_no_task_has_more_trials_than_it_may(runners: Runners, request_: TuneRequest):
    request_ = replace(request_, trials=150, trials_per_task=11)
    runners.live = 2
    with pytest.raises(KeyboardInterrupt):
        tuned(request_)
    runners.live = None
    done = tuned(request_)
    assert [known.trials for known in done.results] == [11] * len(done.results)
    assert done.trials_done == 11 * len(done.results) < 150
    assert done.reason == "11 trials of each task are done"


def test_no_trials_need_no_device_to_be_opened(runners: Runners, request_: TuneRequest):
    nothing = replace(request_, trials=0)
    done = tuned(nothing)
    assert (done.trials_done, done.reason) == (0, "no trials were asked for")
    network, _ = prepare(nothing)
    final, said = decided(nothing, network, done)
    assert not final.winners
    assert said == "records decide for 0 tasks, as nothing is measured"
    assert not runners.opened


def decided(
    request: TuneRequest, network: ImportManifest, done: TunedTasks
) -> tuple[Constraints, str]:
    """The comparison, and what people are told of it."""
    events: list[TuneEvent] = []
    with watching(events.append):
        final = tuning.stage_finalists(request, network, done)
    return final, events[-1].text


def test_on_a_farm_people_are_told_that_records_decide(
    runners: Runners, request_: TuneRequest, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(finalists, "unraced", lambda name: "farm:rk3399 is a farm's")
    done = tuned(request_)
    network, tasks = prepare(request_)
    final, said = decided(request_, network, done)
    assert not final.winners and not final.iterations
    number = sum(task.tunable for task in tasks.tasks)
    assert said == f"records decide for {number} tasks, as farm:rk3399 is a farm's"


def test_on_boards_a_plan_is_made_of_the_records_that_it_stands_on(
    runners: Runners, request_: TuneRequest, monkeypatch: pytest.MonkeyPatch
):
    """And NHWC, which it is compared with, of those in NHWC."""
    monkeypatch.setattr(selection, "spec_of", lambda name: GENERIC_CPU)
    monkeypatch.setattr(finalists, "unraced", lambda name: "farm:rk3399 is a farm's")
    done = tuned(request_)
    network, tasks = prepare(request_)
    store, key = RecordStore(request_.records), next(t.key for t in tasks.tasks if t.tunable)
    (slow,) = top(store, key, {}, 1000)[-1:]
    assert slow.conditions is not None
    blocked = conditions_in(slow.conditions, IOLayouts("NCHW16c", "NCHW16c"))
    laid = replace(slow, record_id="laid", phase="layout", conditions=blocked)
    store.append([laid])
    monkeypatch.setattr(finalists, "best_in_layouts", lambda *_: {key: (None, laid)})
    layouts = LayoutAssignment(activations={"image": KeptLayouts("NCHW16c")})
    planned = LayoutManifest(plan=LayoutPlan(layouts=layouts))
    final = tuning.stage_finalists(request_, network, done, planned)
    assert [winner.record_id for winner in final.winners] == ["laid"]
    for assigned, expected in ((layouts, True), (ALL_NHWC, False)):
        found = selection.stage_choose(request_, tasks, replace(final, layouts=assigned))
        (mine,) = (best for best in found.best if best.task_key == key)
        assert (mine.record_id == "laid") == expected


@pytest.mark.parametrize(
    ("device", "spec", "minutes"),
    [
        ("pocl", GENERIC_CPU, 73.0),
        ("farm:k@tls://lab:8786", GENERIC_CPU, 88.0),  # layouts are measured on boards
        ("vta-sim", replace(GENERIC_CPU, accelerator="1x16_i8w8a32_15_15_18_17 sim"), 100.0),
    ],
)
def test_minutes_are_kept_for_what_is_done_on_the_device_alone(
    device: str, spec: DeviceSpec, minutes: float, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tuning, "spec_of", lambda name: spec)
    request = TuneRequest("m", "o", device=device, minutes=100.0, layout="auto")
    assert tuning._search_s(request) == pytest.approx(60 * minutes)
    trials = replace(request, minutes=None, trials=100)
    assert tuning._search_trials(trials) == (100 if spec.accelerator else 88)


def test_where_layouts_cannot_be_measured_people_are_told_why(
    request_: TuneRequest, monkeypatch: pytest.MonkeyPatch
):
    spec = replace(GENERIC_CPU, accelerator="1x16_i8w8a32_15_15_18_17 sim")
    monkeypatch.setattr(tuning, "spec_of", lambda name: spec)
    done = TunedTasks(
        run_id="run",
        target="",
        results=(),
        statuses=(),
        trials_done=0,
        seconds_done=0.0,
        reason="",
    )
    events: list[TuneEvent] = []
    with watching(events.append):
        stage_layout(replace(request_, device="vta-sim", layout="auto"), done)
    assert [event.text for event in events] == [
        "all activations stay in NHWC, as vta-sim computes in packed layouts of its own"
    ]


def first_of_each(network, candidates, *_) -> finalists.InNetwork:
    """A comparison in which the fastest candidate beside the default schedule wins."""
    return finalists.InNetwork(
        resolved=False,
        leaders=dict.fromkeys(candidates, 1),
        samples={key: [[1.0]] * len(found) for key, found in candidates.items()},
        iterations=1,
        reference_us=900.0,
    )


def test_the_selection_is_the_winner_of_each_comparison(
    runners: Runners, request_: TuneRequest, monkeypatch: pytest.MonkeyPatch
):
    """The last finalist of each task wins; its time in place is what people are told."""
    counts: list[int] = []

    def fake(network, candidates, *_) -> finalists.InNetwork:
        counts.append(len(candidates))
        samples = {key: [[1.0 + n] * 3 for n in range(len(c))] for key, c in candidates.items()}
        leaders = {key: len(c) - 1 for key, c in candidates.items()}
        return finalists.InNetwork(
            resolved=True,
            leaders=leaders,
            samples=samples,
            iterations=3,
            reference_us=900.0,
        )

    monkeypatch.setattr(finalists, "compare_in_network", fake)
    monkeypatch.setattr(selection, "spec_of", lambda name: GENERIC_CPU)
    done = tuned(request_)
    network, tasks = prepare(request_)
    trials = runners.measured
    final, said = decided(request_, network, done)
    assert said == f"{len(final.winners)} tasks have a winner, by 3 iterations of the network"
    again = tuning.stage_finalists(request_, network, done)
    assert len(runners.opened) == 1
    assert again == final and counts == [len(final.winners)] and runners.measured == trials
    assert len(final.winners) == sum(t.tunable for t in tasks.tasks)

    rows = RecordStore(request_.records).scan({"phase": "final"})
    assert set(rows["place"]) == {within(network.model_key)}
    chosen = {b.task_key: b for b in selection.stage_choose(request_, tasks, final).best}
    weights = {t.key: t.weight for t in tasks.tasks}
    for winner in final.winners:
        mine = rows[rows["task_key"] == winner.task_key]
        best = chosen[winner.task_key]
        assert best.record_id == winner.record_id
        assert best.time_us == pytest.approx(1e6 * len(mine) / weights[winner.task_key])
        assert best.default_us == pytest.approx(1e6 / weights[winner.task_key])


def test_a_record_of_the_default_schedule_is_no_gain(
    runners: Runners, request_: TuneRequest, monkeypatch: pytest.MonkeyPatch
):
    """The default was measured twice, and took less time the second time."""
    kept: list[str] = []

    def fake(network, candidates, *_) -> finalists.InNetwork:
        kept.append(next(iter(candidates)))
        leaders = {key: int(key != kept[0]) for key in candidates}
        return replace(first_of_each(network, candidates), leaders=leaders)

    monkeypatch.setattr(finalists, "compare_in_network", fake)
    monkeypatch.setattr(selection, "spec_of", lambda name: GENERIC_CPU)
    done = tuned(request_)
    network, tasks = prepare(request_)
    final = tuning.stage_finalists(request_, network, done)
    chosen = selection.stage_choose(request_, tasks, final)
    assert [best.task_key for best in chosen.best if best.default] == kept
    assert set(chosen.tuned) == {best.task_key for best in chosen.best} - {*kept}
    slower = [replace(r, default_us=2 * (r.best_us or 0.0)) for r in done.results]
    run = SimpleNamespace(
        tasks=tasks,
        searched=replace(done, results=tuple(slower)),
        selection=chosen,
        constraints=final,
    )
    gained = {each.entry.key: each.gained for each in task_results(cast(FinishedRun, run))}
    assert gained.pop(kept[0]) == 0.0
    assert chosen.tuned and all((gained[key] or 0.0) > 0.0 for key in chosen.tuned)


def test_a_later_run_starts_from_the_times_in_the_network(
    runners: Runners, request_: TuneRequest, monkeypatch: pytest.MonkeyPatch
):
    """In the network the last finalist of each task is the fastest, whatever it took alone."""
    compared: list[Mapping[str, Sequence[Candidate]]] = []

    def fake(network, candidates, *_) -> finalists.InNetwork:
        compared.append(candidates)
        samples = {key: [[1.0 / (1 + n)] for n in range(len(c))] for key, c in candidates.items()}
        return finalists.InNetwork(
            resolved=True,
            leaders={key: len(c) - 1 for key, c in candidates.items()},
            samples=samples,
            iterations=1,
            reference_us=900.0,
        )

    monkeypatch.setattr(finalists, "compare_in_network", fake)
    monkeypatch.setattr(selection, "spec_of", lambda name: GENERIC_CPU)
    network, tasks = prepare(request_)
    first = tuning.stage_finalists(request_, network, tuned(request_))
    chosen = selection.stage_choose(request_, tasks).best
    assert {b.record_id for b in chosen} == {w.record_id for w in first.winners}
    assert chosen and any(len(c) > 3 for c in compared[0].values())

    later = replace(request_, campaign="later", trials=24)
    tuning.stage_finalists(later, network, tuned(later))
    before, after = compared
    assert {k: after[k][1] for k in after} == {k: before[k][-1] for k in before}
    assert all(len(after[key]) == len(set(after[key])) for key in after)

    elsewhere = replace(tasks, model_key="another network")
    alone = {b.task_key: b.time_us for b in selection.stage_choose(request_, elsewhere).best}
    assert all(alone[b.task_key] != b.time_us for b in chosen), "their times do not compare"


def test_what_saves_too_little_is_not_compiled(
    runners: Runners, request_: TuneRequest, monkeypatch: pytest.MonkeyPatch
):
    """Finalists lead, but a search goes on for 1 % and more: their bundle is not worth making."""

    def little(network, candidates, *_) -> finalists.InNetwork:
        return replace(first_of_each(network, candidates), saved=(0.0, 0.004))

    monkeypatch.setattr(finalists, "compare_in_network", little)
    monkeypatch.setattr(selection, "spec_of", lambda name: GENERIC_CPU)
    network, tasks = prepare(request_)
    full = replace(request_, effort="full")
    final, said = decided(full, network, tuned(full))
    assert said == (
        "default schedules stay: others save at most 0.4%, by 1 iteration of the network"
    )
    assert set(final.defaults) == {t.key for t in tasks.tasks if t.tunable}
    assert selection.stage_choose(full, tasks, final).best == ()

    final, said = decided(request_, network, tuned(request_))
    assert not final.too_little and said.endswith("winner, by 1 iteration of the network")
    assert selection.stage_choose(request_, tasks, final).tuned, "an exhaustive run takes all"


def test_without_a_comparison_the_best_record_of_each_task_is_selected(
    runners: Runners, request_: TuneRequest, monkeypatch: pytest.MonkeyPatch
):
    def lost(*_: object) -> finalists.InNetwork:
        raise ChildLostError("crash", "the process died of SIGSEGV")

    monkeypatch.setattr(finalists, "compare_in_network", lost)
    monkeypatch.setattr(selection, "spec_of", lambda name: GENERIC_CPU)
    done = tuned(request_)
    network, tasks = prepare(request_)
    final, said = decided(request_, network, done)
    assert not final.winners
    assert said.endswith("tasks, as the network cannot run with its finalists")
    chosen = selection.stage_choose(request_, tasks, final)
    best = {result.entry.key: result.best_us for result in done.results}
    assert {b.task_key: b.time_us for b in chosen.best} == pytest.approx(best)

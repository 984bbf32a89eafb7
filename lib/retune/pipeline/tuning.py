"""Stage tune: the search of each task, all in one session, and the comparison of their finalists.

Records go to the store at once. Read `stage_tune`; `search.scheduling` says which task is next.
"""

import logging
import shutil
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from retune import __version__
from retune.bundle.build import check_types
from retune.core.errors import sentence
from retune.core.keys import content_key
from retune.core.layouts import BLOCKED, MEASURED
from retune.core.quantities import counted, minutes_text
from retune.core.results import RecordMatch, TaskEntry, TaskResult
from retune.core.target import DeviceSpec
from retune.device.measure.workload import MeasureOptions, measuring_conditions
from retune.device.opening import is_absent, open_runner, spec_of, unraced
from retune.pipeline.finalists import compare_finalists
from retune.pipeline.layout_manifest import UNPLANNED, LayoutManifest
from retune.pipeline.manifest import (
    Constraints,
    ImportManifest,
    TaskManifest,
    TunedTasks,
    TuneManifest,
)
from retune.pipeline.network import open_network
from retune.pipeline.open_runs import Ledger, OpenRuns, RecordedTrials
from retune.pipeline.request import TuneRequest
from retune.pipeline.results import TuneEvent
from retune.pipeline.stage import load, run_once, stage_folder, stage_key
from retune.pipeline.watch import stopping, tell
from retune.records.shared import shared_records
from retune.records.store import RecordStore
from retune.search.conditions import network_conditions, usual_batch, usual_options
from retune.search.expectation import Outlook, expected_share
from retune.search.matching import Here, fitting_record, match_records
from retune.search.scheduling import End
from retune.search.session import RunSettings, Session
from retune.search.task_run import TaskRun

_LOG = logging.getLogger("retune.pipeline")

_COMPARISON_SHARE = 0.15
_COMPARISON_SECONDS = 10.0
"""Time for comparing finalists, as a share of the budget, and at least so many seconds."""
_LAYOUT_SHARE = 0.12
"""What of the budget goes into layouts, where they are measured. Who does neither searches on."""
_NOTHING_LEFT = "nothing is left to try"

_TIMING = ("repeats", "min_repeat_ms", "cooldown", "build_deadline", "run_deadline")
"""Fields of a request that say how a candidate is timed. Times compare whatever they are: they are
medians of repeats, beside a calibration kernel that is timed around them."""

_OPEN = OpenRuns()
_RECORDED = RecordedTrials()


def run_id(request: TuneRequest, network: ImportManifest, spec: DeviceSpec) -> str:
    """The name of a run: the same request under the same conditions continues the same run.

    A request that asks for other repeats, pauses or deadlines is another run.
    """
    budget = (request.trials, request.minutes, request.patience)
    search = (request.tuner, request.task_scheduler, request.seed)
    where = (request.records, request.max_error)
    conditions = measuring_conditions(spec, MeasureOptions())  # less what follows from the network
    asked = [(name, getattr(request, name)) for name in (*_TIMING, "trials_per_task")]
    stated = [pair for pair in asked if pair[1] is not None]  # others leave the name as it was
    if request.least_gain:
        stated.append(("effort", request.effort))
    whole = (conditions.key, search, budget, where, request.campaign)
    return content_key(network.model_key, *whole, *stated)


def tune_key(run: str, task_key: str) -> str:
    """The key of the search of a task in a run."""
    return stage_key("tune", "results", run, task_key)  # older ones held no tasks


def stage_tune(
    request: TuneRequest, network: ImportManifest, tasks: TaskManifest, task_key: str
) -> TuneManifest:
    """The search of one task, by a thread of its own; every batch is in the store when it ends.

    The searches of a run's tasks go on together: nothing is measured before all of them are there
    (or a minute after the first one is), and the request's task scheduler chooses the next task.
    One that fails ends alone. When those who watch wish it so (`watch.stopping`), all end after the
    batch in flight, and are not stored: the same request goes on.
    """
    run = run_id(request, network, spec_of(request.device))
    work, key = Path(request.work), tune_key(run, task_key)

    def body(_: Path) -> TuneManifest:
        if request.trials == 0:
            return _nothing_to_measure(request, run, tasks.entry(task_key))
        return _search(request, run, tasks, task_key)

    found = load(TuneManifest, stage_folder(work, "tune", key))
    if found is not None and not _is_recorded(found, _RECORDED.of(request.records, run)):
        _LOG.warning("%s: records of task %s are gone; measuring again", request.records, task_key)
        shutil.rmtree(found.folder)
    return run_once(TuneManifest, stage="tune", key=key, work=work, body=body)


def join_tuned(
    request: TuneRequest,
    network: ImportManifest,
    tasks: TaskManifest,
    outcomes: Mapping[str, TuneManifest | Exception],
) -> TunedTasks:
    """What the searches of all tasks came to, by task: a manifest, or why it failed for good.

    Raises: what the first task's search raised, if all of them failed.
    """
    done = [o for t in tasks.tasks if isinstance(o := outcomes.get(t.key), TuneManifest)]
    failed = [(k, o) for k, o in outcomes.items() if not isinstance(o, TuneManifest)]
    if failed and not done:
        raise failed[0][1]
    statuses = sum((Counter(dict(search.statuses)) for search in done), Counter[str]())
    reasons = [search.reason for search in done if search.reason != _NOTHING_LEFT]
    spec = spec_of(request.device)
    return TunedTasks(
        run_id=run_id(request, network, spec),
        target=spec.fingerprint,
        results=tuple(search.result for search in done),
        statuses=tuple(statuses.most_common()),
        trials_done=sum(search.result.trials for search in done),
        seconds_done=max((search.seconds_done for search in done), default=0.0),
        reason=reasons[0] if reasons else "no task has anything left to try",
        further=_further([search.result for search in done]),
        stopped=any(search.stopped for search in done),
        failed=tuple((key, sentence(error)) for key, error in failed),
    )


def _further(found: Sequence[TaskResult]) -> float | None:
    """Part of all tuned tasks' time that further trials are expected to save; None: not known."""
    gains = [
        Outlook(time=each.best_us and each.entry.weight * each.best_us, gain=each.further)
        for each in found
        if each.further is not None
    ]
    return expected_share(gains) if len(gains) == len(found) and found else None


def joined_searches(usual: TunedTasks, every: Sequence[TunedTasks]) -> TunedTasks:
    """The search for some sizes, with what those for all sizes took, and the most that is expected
    of going on for any of them."""
    further = [search.further for search in every]
    statuses = sum((Counter(dict(search.statuses)) for search in every), Counter[str]())
    return replace(
        usual,
        statuses=tuple(statuses.most_common()),
        trials_done=sum(search.trials_done for search in every),
        seconds_done=sum(search.seconds_done for search in every),
        failed=tuple(dict.fromkeys(pair for search in every for pair in search.failed)),
        further=None if None in further else max(filter(None, further), default=0.0),
    )


def no_layouts(request: TuneRequest) -> str:
    """Why kernels are not measured in other layouts on the request's device; empty if they are.

    Whatever times kernels does so, boards of a farm and simulated ones included.
    """
    if spec_of(request.device).accelerator:
        return f"{request.device} computes in packed layouts of its own"
    if is_absent(request.device):
        return f"{request.device} is not here to be timed"
    return ""


def layout_share(request: TuneRequest) -> float:
    """The part of a request's budget that is kept for measuring layouts."""
    wanted = request.layout in (MEASURED, BLOCKED)
    return _LAYOUT_SHARE if wanted and not no_layouts(request) else 0.0


def comparison_share(request: TuneRequest) -> float:
    """The part of a request's minutes that is kept for comparing finalists in their network."""
    if unraced(request.device):
        return 0.0
    if request.effort != "quick" or request.minutes is None:
        return _COMPARISON_SHARE
    return min(0.5, max(_COMPARISON_SHARE, _COMPARISON_SECONDS / (60 * request.minutes)))


def searched_session(
    request: TuneRequest, tuned: TunedTasks, *, last: bool = False
) -> AbstractContextManager[Session]:
    """The session of a run whose searches have ended; the `last` one to ask for it closes it."""
    return _OPEN.searched(tuned.run_id, lambda: _open_session(request, tuned.run_id), last=last)


def stage_finalists(
    request: TuneRequest,
    network: ImportManifest,
    tuned: TunedTasks,
    layouts: LayoutManifest = UNPLANNED,
) -> Constraints:
    """The winner of each task, in the network with these activation layouts.

    The searches are done, and every measurement is in the store.

    Tasks whose search failed keep their default schedule. When those who watch wish it so, no
    comparison begins, or it ends early, and the manifest is not stored.
    """
    failed = tuple(key for key, _ in tuned.failed)
    placement = layouts.plan.layouts
    found = (tuned.run_id, tuned.trials_done, failed, placement)
    key = stage_key("finalists", "constraints", *found)  # older ones held winners only

    def body(_: Path) -> Constraints:
        if request.trials == 0:
            found = Constraints(uncompared="nothing is measured")
        else:
            found = _compare(request, network, tuned, layouts)
        defaults = (*found.defaults, *failed)
        return replace(found, defaults=defaults, layouts=placement, stopped=stopping())

    try:
        work = Path(request.work)
        done = run_once(Constraints, stage="finalists", key=key, work=work, body=body)
    finally:
        _OPEN.forget(tuned.run_id)
    text = "measuring has stopped" if done.stopped else _decided(done, tuned)
    tell(TuneEvent(stage="decided", text=text))
    return done


def _decided(done: Constraints, tuned: TunedTasks) -> str:
    """What chose among the finalists, and for how many tasks."""
    if done.uncompared:
        number = sum(known.best_us is not None for known in tuned.results)
        return f"records decide for {counted(number, 'task')}, as {done.uncompared}"
    by = f"by {counted(done.iterations, 'iteration')} of the network"
    if done.too_little:
        return f"default schedules stay: others save at most {done.saved[1]:.1%}, {by}"
    number = len(done.winners) + len(done.defaults) - len(tuned.failed)
    verb = "has" if number == 1 else "have"
    return f"{counted(number, 'task')} {verb} a winner, {by}"


# -- the search of a task ------------------------------------------------------------------------


def _search(request: TuneRequest, run: str, tasks: TaskManifest, task_key: str) -> TuneManifest:
    ledger = Ledger(Path(request.work), run)

    def make() -> Session:
        session = _open_session(request, run, _ended(request, run, tasks))
        tell(_standing(request, session, tasks, "the search begins"))
        return session

    with _OPEN.searching(run, make) as session:

        def report(text: str, _: int) -> None:
            ledger.write(session.seconds)
            tell(_standing(request, session, tasks, text))

        end = session.search(task_key, report, stopping)
        (mine,) = (entry for entry in session.runs if entry.task.key == task_key)
        return TuneManifest(
            run_id=run,
            target=session.spec.fingerprint,
            result=_result_of(mine, tasks.entry(task_key)),
            statuses=tuple(session.statuses(task_key).most_common()),
            trials_done=session.trials,
            seconds_done=session.seconds,
            reason=_reason(request, end, mine.trials),
            stopped=end == "stopped",
        )


def _open_session(request: TuneRequest, run: str, ended: Collection[str] = ()) -> Session:
    """The run's session; nobody searches the tasks that have `ended`."""
    spec = spec_of(request.device)
    known = bool(_RECORDED.of(request.records, run))
    settings = RunSettings(
        run_id=run,
        model=request.model,
        layout=request.layout,
        night=request.campaign,
        tuner=request.tuner,
        task_scheduler=request.task_scheduler,
        seed=request.seed,
        trials=_search_trials(request),
        seconds=_search_s(request),
        spent_s=Ledger(Path(request.work), run).read() if known else 0.0,
        patience=request.patience,
        retune=__version__,
        batch=usual_batch(spec),
        task_trials=request.trials_per_task,
        least_gain=request.least_gain,
        options=usual_options(spec, **{name: getattr(request, name) for name in _TIMING}),
    )
    network = open_network(request).network
    check_types(network.graph, spec)
    every = tuple(network.tasks.values())
    store = RecordStore(request.records)
    return Session(every, open_runner(request.device), store, settings, ended=ended)


def _ended(request: TuneRequest, run: str, tasks: TaskManifest) -> list[str]:
    """The tasks whose search has ended, in whichever process."""
    work, recorded = Path(request.work), _RECORDED.of(request.records, run)
    folders = [stage_folder(work, "tune", tune_key(run, t.key)) for t in tasks.tasks]
    found = [load(TuneManifest, folder) for folder in folders]
    return [one.task_key for one in found if one and _is_recorded(one, recorded)]


def _is_recorded(search: TuneManifest, recorded: Mapping[str, int]) -> bool:
    """Whether the store has what was measured when the search ended, of this task and of all."""
    mine, all_tasks = recorded.get(search.task_key, 0), sum(recorded.values())
    return mine >= search.result.trials and all_tasks >= search.trials_done


def _reason(request: TuneRequest, end: End, trials: int) -> str:
    """Why a task with so many trials gets no further ones."""
    match end:
        case "trials":
            return f"{request.trials} trials are done"
        case "time":
            return f"the budget of {minutes_text(request.minutes or 0.0)} is spent"
        case "little expected":
            return f"less than {request.least_gain:.0%} is expected of further trials"
        case "stopped":
            return "stopped by hand, the same command goes on"
        case "nothing left" if trials == request.trials_per_task:
            return f"{counted(trials, 'trial')} of each task are done"
        case "nothing left":
            return _NOTHING_LEFT


def _result_of(run: TaskRun, entry: TaskEntry) -> TaskResult:
    return TaskResult(
        entry=entry,
        trials=run.trials,
        failed=run.failures,
        best_us=run.best_us,
        default_us=run.default_us,
        expected=run.expected,
        further=run.outlook.gain,
        match=run.match,
    )


def _standing(request: TuneRequest, session: Session, tasks: TaskManifest, text: str) -> TuneEvent:
    """How all tasks stand."""
    entries = {entry.key: entry for entry in tasks.tasks}
    runs = session.runs
    return TuneEvent(
        stage="tune",
        text=text,
        done=session.known_trials,
        total=request.trials or 0,
        spent=session.spent,
        tasks=tuple(_result_of(r, entries[r.task.key]) for r in runs),
        next_key=session.next_key(),
    )


def _nothing_to_measure(request: TuneRequest, run: str, entry: TaskEntry) -> TuneManifest:
    return TuneManifest(
        run_id=run,
        target=spec_of(request.device).fingerprint,
        result=TaskResult(entry=entry, match=_match_unmeasured(request, entry.key)),
        statuses=(),
        trials_done=0,
        seconds_done=0.0,
        reason="no trials were asked for",
    )


def _match_unmeasured(request: TuneRequest, task_key: str) -> RecordMatch:
    """Which records the task has. Of a near hit only those of a device of the same kind are used
    unmeasured; the others are for a search."""
    spec, network = spec_of(request.device), open_network(request).network
    task = network.tasks[task_key]
    here = Here(spec=spec, conditions=network_conditions(spec, network.tasks.values()))
    mine = {**here.conditions.comparable, "task_key": task_key, "status": "ok"}
    measured = bool(RecordStore(request.records).table(mine, ["task_key"]).num_rows)
    space = task.space(spec)
    match = match_records(task, space, here, measured, shared_records).match
    if match.kind != "near hit":
        return match
    if fitting_record(task, space, spec, [sketch.name for sketch in space.sketches], ()):
        return match
    return replace(match, why=f"{match.why}; only a search tries it")


# -- the comparison of the finalists --------------------------------------------------------------


def _compare(
    request: TuneRequest, network: ImportManifest, tuned: TunedTasks, layouts: LayoutManifest
) -> Constraints:
    if stopping():
        return Constraints()
    budget = max(_COMPARISON_SECONDS, _comparison_s(request, tuned, layouts))
    without = [key for key, _ in tuned.failed]

    with searched_session(request, tuned, last=True) as session:
        tell(TuneEvent(stage="finalists", text="finalists are built into the network"))
        return compare_finalists(
            request, network, session, budget, layouts.plan.layouts, without=without
        )


def _comparison_s(request: TuneRequest, tuned: TunedTasks, layouts: LayoutManifest) -> float:
    """What is left of the minutes, or as large a share of the time that the search took where that
    need not use them."""
    share = comparison_share(request)
    part = tuned.seconds_done * share / (1 - share)
    if request.minutes is None:
        return part
    left = 60 * request.minutes - tuned.seconds_done - layouts.spent_s
    return min(part, left) if request.least_gain else left


def _search_s(request: TuneRequest) -> float | None:
    """Seconds for searching; the rest is for layouts and for comparing the finalists."""
    if request.minutes is None:
        return None
    return 60 * request.minutes * (1 - comparison_share(request) - layout_share(request))


def _search_trials(request: TuneRequest) -> int | None:
    """Measurements for searching; the rest is for layouts."""
    if request.trials is None:
        return None
    return request.trials - round(request.trials * layout_share(request))

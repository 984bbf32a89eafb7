"""Stage tune: rounds of measurements, each with a manifest; records go to the store at once."""

import logging
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from retune import __version__
from retune.bundle.build import check_types
from retune.core.keys import content_key
from retune.core.target import DeviceSpec
from retune.device.opening import open_runner, spec_of
from retune.device.workload import MeasureOptions, measuring_conditions
from retune.records import ranking
from retune.records.store import RecordStore
from retune.search.conditions import network_conditions, usual_batch, usual_options
from retune.search.session import RunSettings, Session, Stop, never
from retune.stages.manifest import (
    FinalistsManifest,
    ImportManifest,
    Progress,
    RoundManifest,
    TaskManifest,
    TaskProgress,
    TaskResult,
    TuneEvent,
    TuneRequest,
)
from retune.stages.network import open_network
from retune.stages.racing import race_finalists
from retune.stages.stage import load, run_once, stage_folder, stage_key

_LOG = logging.getLogger("retune.stages")

_RACE_SHARE = 0.15
_RACE_SECONDS = 10.0
"""Time for the race of the finalists, as a share of the budget, and at least so many seconds."""
_ROUND_TRIALS = 256
_ROUND_SECONDS = 60.0
"""A round ends after so many trials or seconds: what a killed run may have to look up again.
Between two rounds lie about two seconds of bookkeeping."""


def run_id(request: TuneRequest, network: ImportManifest, spec: DeviceSpec) -> str:
    """The name of a run: the same request under the same conditions continues the same run."""
    budget = (request.trials, request.minutes, request.patience)
    search = (request.tuner, request.allocator, request.seed)
    where = (request.records, request.max_error)
    conditions = measuring_conditions(spec, MeasureOptions())  # less what follows from the network
    return content_key(network.model_key, conditions.key, search, budget, where, request.campaign)


def stage_tune_round(
    request: TuneRequest,
    network: ImportManifest,
    tasks: TaskManifest,
    index: int,
    previous: RoundManifest | None,
    progress: Progress,
    stop: Stop = never,
) -> RoundManifest:
    """One round of measurements after `previous`; every batch is in the store when it ends.

    When `stop` says so it ends after the batch in flight: finished for now, but not stored, so the
    same request goes on with the rest of the round.
    """
    spec = spec_of(request.device)
    run = run_id(request, network, spec)
    key = stage_key("tune", run, index, previous.key if previous else "")

    def body(_: Path) -> RoundManifest:
        if request.trials == 0:
            return _nothing_to_measure(request, tasks, spec, run)
        watch = _Watch(tasks, progress, request.trials or 0)
        return _measure_round(request, run, index, previous, watch, stop)

    work = Path(request.work)
    finished = load(RoundManifest, stage_folder(work, "tune", key))
    if finished is not None and _recorded(request, run) < finished.trials_done:
        _LOG.warning(
            "%s: the records of round %d are gone; measuring again", request.records, index
        )
        _OPEN.close()
        shutil.rmtree(finished.folder)
    done = run_once(RoundManifest, stage="tune", key=key, work=work, body=body)
    if done.finished:
        _OPEN.close()
    return done


def _measure_round(
    request: TuneRequest,
    run: str,
    index: int,
    previous: RoundManifest | None,
    watch: "_Watch",
    stop: Stop,
) -> RoundManifest:
    session = _OPEN.of(request, run)
    earlier = previous.trials_done if previous else 0
    spent = previous.seconds_done if previous else 0.0
    left = _ROUND_TRIALS if request.trials is None else request.trials - earlier
    seconds = _ROUND_SECONDS
    if request.minutes is not None:
        seconds = min(seconds, _search_s(request.minutes) - spent)
    found = _statuses(request, run, session.trials - earlier)
    wanted = min(_ROUND_TRIALS, left) - found.total()
    share = spent / _search_s(request.minutes) if request.minutes else 0.0

    def report(text: str, _: int) -> None:
        watch.show(session, share, text)

    report(f"round {index + 1} begins", session.trials)
    started = perf_counter()
    statuses, reason = session.round(max(0, wanted), seconds, report, share, stop)
    spent += perf_counter() - started
    if not reason and request.trials is not None and session.trials >= request.trials:
        reason = f"{request.trials} trials are done"
    if not reason and request.minutes is not None and spent >= _search_s(request.minutes):
        reason = f"{request.minutes:g} minutes are over"
    stopped = not reason and stop()
    if stopped:
        reason = "stopped by hand, the same command goes on"
    return RoundManifest(
        index=index,
        run_id=run,
        target=session.runner.spec.fingerprint,
        progress=_progress_of(session),
        statuses=tuple((found + statuses).most_common()),
        trials_done=session.trials,
        seconds_done=spent,
        finished=bool(reason),
        reason=reason,
        stopped=stopped,
    )


def _progress_of(session: Session) -> tuple[TaskProgress, ...]:
    return tuple(
        TaskProgress(
            task_key=run.task.key,
            trials=run.trials,
            failed=run.failures,
            best_us=run.best_us,
            default_us=run.default_us,
        )
        for run in session.runs
    )


class _Watch:
    """Tells those who watch how the tasks stand."""

    def __init__(self, tasks: TaskManifest, progress: Progress, total: int) -> None:
        self._entries = {entry.key: entry for entry in tasks.tasks}
        self._progress = progress
        self._total = total

    def show(self, session: Session, spent: float, text: str) -> None:
        standing = tuple(
            TaskResult.of(self._entries[progress.task_key], progress)
            for progress in _progress_of(session)
        )
        event = TuneEvent(
            stage="tune",
            text=text,
            done=session.trials,
            total=self._total,
            tasks=standing,
            next_key=session.next_key(spent),
        )
        self._progress(event)


def _recorded(request: TuneRequest, run: str) -> int:
    """Measurements of a run that the store holds."""
    return len(RecordStore(request.records).scan({"run_id": run, "phase": "search"}, ["status"]))


def _statuses(request: TuneRequest, run: str, count: int) -> Counter[str]:
    """Statuses of the last `count` measurements of a run: a round that was cut short had them."""
    if count <= 0:
        return Counter()
    rows = RecordStore(request.records).scan(
        {"run_id": run, "phase": "search"}, ["trial", "status"]
    )
    return Counter(str(s) for s in rows.sort_values(by="trial")["status"].tail(count))


def _nothing_to_measure(
    request: TuneRequest, tasks: TaskManifest, spec: DeviceSpec, run: str
) -> RoundManifest:
    store = RecordStore(request.records)
    where = network_conditions(spec, open_network(request).network.tasks.values()).comparable
    bests = {t.key: ranking.best(store, t.key, where) for t in tasks.tasks if t.tunable}
    return RoundManifest(
        index=0,
        run_id=run,
        target=spec.fingerprint,
        progress=tuple(
            TaskProgress(
                task_key=key,
                trials=0,
                failed=0,
                best_us=best.measurement.median_us if best else None,
            )
            for key, best in bests.items()
        ),
        statuses=(),
        trials_done=0,
        seconds_done=0.0,
        finished=True,
        reason="no trials were asked for",
    )


def stage_finalists(
    request: TuneRequest,
    network: ImportManifest,
    last: RoundManifest,
    progress: Progress,
    stop: Stop = never,
) -> FinalistsManifest:
    """The winner of each task, after the last round; every measurement is in the store.

    When `stop` says so no race begins, or it ends early, and the manifest is not stored.
    """
    key = stage_key("finalists", last.run_id, last.trials_done)

    def body(_: Path) -> FinalistsManifest:
        if request.trials == 0:
            return FinalistsManifest()
        if stop():
            return FinalistsManifest(stopped=True)
        session = _OPEN.of(request, last.run_id)
        budget = max(_RACE_SECONDS, _race_share_s(request, last))
        started = perf_counter()

        def time_left() -> bool:
            return perf_counter() - started < budget and not stop()

        progress(TuneEvent(stage="finalists", text="finalists are built into the network"))
        found = race_finalists(request, network, session, budget, time_left)
        return replace(found, stopped=stop())

    try:
        work = Path(request.work)
        done = run_once(FinalistsManifest, stage="finalists", key=key, work=work, body=body)
    finally:
        _OPEN.close()
    decided = f"{len(done.winners)} tasks have a winner, by {done.passes} passes of the network"
    text = "measuring has stopped" if done.stopped else decided
    progress(TuneEvent(stage="decided", text=text))
    return done


def _race_share_s(request: TuneRequest, last: RoundManifest) -> float:
    """What is left of the minutes, or as large a share of the time that the trials took."""
    if request.minutes is not None:
        return 60 * request.minutes - last.seconds_done
    return last.seconds_done * _RACE_SHARE / (1 - _RACE_SHARE)


def _search_s(minutes: float) -> float:
    """Seconds for rounds; the rest is for the race."""
    return 60 * minutes * (1 - _RACE_SHARE)


class _OpenSession:
    """The session of the run in progress: its tuners go on where the last round left them."""

    def __init__(self) -> None:
        self._run = ""
        self._session: Session | None = None

    def of(self, request: TuneRequest, run: str) -> Session:
        """The session of that run, opened if another or none is open."""
        if self._session is None or self._run != run:
            self.close()
            self._session = _open_session(request, run)
            self._run = run
        return self._session

    def close(self) -> None:
        """Ends the measuring processes."""
        if self._session is not None:
            self._session.runner.close()
            self._session = None


_OPEN = _OpenSession()
"""One device, one session: a process measures for one run at a time."""


def _open_session(request: TuneRequest, run: str) -> Session:
    spec = spec_of(request.device)
    settings = RunSettings(
        run_id=run,
        model=request.model,
        layout=request.layout,
        tuner=request.tuner,
        allocator=request.allocator,
        seed=request.seed,
        trials=request.trials,
        patience=request.patience,
        retune=__version__,
        batch=usual_batch(spec),
        options=usual_options(spec),
    )
    network = open_network(request).network
    check_types(network.graph, spec)
    tasks = tuple(network.tasks.values())
    runner = open_runner(request.device)
    return Session(tasks, runner, RecordStore(request.records), settings)

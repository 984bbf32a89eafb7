"""Stage tune: rounds of measurements, each with a manifest; records go to the store at once."""

import logging
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from retune import __version__
from retune.bundle.build import check_types
from retune.core.keys import content_key
from retune.core.target import DeviceSpec
from retune.device.catalogue import device_spec
from retune.device.measure import LocalRunner
from retune.records.store import RecordStore
from retune.search.history import best_candidate, candidate_of
from retune.search.playoff import play_off
from retune.search.session import RunSettings, Session, Stop, never
from retune.stages.manifest import (
    BestRecord,
    FinalistsManifest,
    ImportManifest,
    Progress,
    RoundManifest,
    Selection,
    TaskManifest,
    TaskProgress,
    TaskResult,
    TuneEvent,
    TuneRequest,
)
from retune.stages.network import open_network
from retune.stages.stage import load, run_once, stage_folder, stage_key

_LOG = logging.getLogger("retune.stages")

_FINAL_SHARE = 0.1
_FINAL_SECONDS = 5.0
"""Time for finalists, as a share of the time spent measuring, and at least so many seconds."""
_ROUND_TRIALS = 256
_ROUND_SECONDS = 60.0
"""A round ends after so many trials or seconds: what a killed run may have to look up again.
Between two rounds lie about two seconds of bookkeeping."""


def run_id(request: TuneRequest, network: ImportManifest, spec: DeviceSpec) -> str:
    """The name of a run: the same request on the same device continues the same run."""
    budget = (request.trials, request.minutes, request.patience)
    search = (request.tuner, request.allocator, request.seed)
    where = (request.records, request.max_error)
    return content_key(network.model_key, spec.fingerprint, search, budget, where)


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
    spec = device_spec(request.device)
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
        seconds = min(seconds, 60 * request.minutes - spent)
    found = _statuses(request, run, session.trials - earlier)
    wanted = min(_ROUND_TRIALS, left) - found.total()
    share = spent / (60 * request.minutes) if request.minutes else 0.0

    def report(text: str, _: int) -> None:
        watch.show(session, share, text)

    report(f"round {index + 1} begins", session.trials)
    started = perf_counter()
    statuses, reason = session.round(max(0, wanted), seconds, report, share, stop)
    spent += perf_counter() - started
    if not reason and request.trials is not None and session.trials >= request.trials:
        reason = f"{request.trials} trials are done"
    if not reason and request.minutes is not None and spent >= 60 * request.minutes:
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
    bests = {t.key: store.best(t.key, spec.fingerprint) for t in tasks.tasks if t.tunable}
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
    tasks: TaskManifest,
    last: RoundManifest,
    progress: Progress,
    stop: Stop = never,
) -> FinalistsManifest:
    """The winner of each task, after the last round; every measurement is in the store.

    When `stop` says so no further race begins or goes on, and the manifest is not stored.
    """
    key = stage_key("finalists", last.run_id, last.trials_done)

    def body(_: Path) -> FinalistsManifest:
        if request.trials == 0:
            return FinalistsManifest()
        if stop():
            return FinalistsManifest(stopped=True)
        weights = {entry.key: entry.weight for entry in tasks.tasks}
        costly = sorted(
            last.progress, key=lambda p: -(p.best_us or 0.0) * weights.get(p.task_key, 1)
        )
        budget = max(_FINAL_SECONDS, _FINAL_SHARE * last.seconds_done)
        session = _OPEN.of(request, last.run_id)
        return _decide(session, [p.task_key for p in costly], budget, progress, stop)

    try:
        work = Path(request.work)
        done = run_once(FinalistsManifest, stage="finalists", key=key, work=work, body=body)
    finally:
        _OPEN.close()
    decided = f"{len(done.winners)} tasks have a winner among their finalists"
    text = "measuring has stopped" if done.stopped else decided
    progress(TuneEvent(stage="decided", text=text))
    return done


def _decide(
    session: Session, task_keys: Sequence[str], budget_s: float, progress: Progress, stop: Stop
) -> FinalistsManifest:
    """The races of these tasks, in their order, as far as the time goes."""
    started, winners, before = perf_counter(), list[BestRecord](), session.finals

    def time_left() -> bool:
        return perf_counter() - started < budget_s and not stop()

    for number, key in enumerate(task_keys):
        winner = play_off(session, key, time_left)
        if winner is not None:
            time_us = winner.measurement.median_us or 0.0
            winners.append(BestRecord(task_key=key, record_id=winner.record_id, median_us=time_us))
        text = f"finalists: {number + 1} of {len(task_keys)} tasks are decided"
        progress(TuneEvent(stage="finalists", text=text))
    measured = session.finals - before
    return FinalistsManifest(winners=tuple(winners), measured=measured, stopped=stop())


def stage_select(
    request: TuneRequest, tasks: TaskManifest, finalists: FinalistsManifest
) -> Selection:
    """The winner of each task; without one, the best record that today's spaces still know."""
    winners = {winner.task_key: winner for winner in finalists.winners}
    spec = device_spec(request.device)
    store = RecordStore(request.records)
    records = store.named([winner.record_id for winner in finalists.winners])
    network = open_network(request).network
    best: list[BestRecord] = []
    for entry in tasks.tasks:
        if not entry.tunable:
            continue
        space = network.tasks[entry.key].space(spec)
        winner = winners.get(entry.key)
        record = records.get(winner.record_id) if winner else None
        if winner and record and candidate_of(record, space):
            best.append(winner)
            continue
        found = best_candidate(store, entry.key, spec.fingerprint, space)
        if found is not None:
            record = found[1]
            time_us = record.measurement.median_us or 0.0
            best.append(
                BestRecord(task_key=entry.key, record_id=record.record_id, median_us=time_us)
            )
    return Selection(target=spec.fingerprint, best=tuple(best))


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
    )
    network = open_network(request).network
    check_types(network.graph, device_spec(request.device))
    tasks = tuple(network.tasks.values())
    runner = LocalRunner(request.device)
    return Session(tasks, runner, RecordStore(request.records), settings)

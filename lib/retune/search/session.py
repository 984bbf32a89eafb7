"""Tuning rounds: batches of candidates measured, recorded, and fed back.

A run is named by its run id. What it has done is what the store holds under that id, so a run that
was killed goes on where it stopped: measured candidates count, and are not measured again.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from retune.codegen.lower import lower
from retune.core.errors import ScheduleError
from retune.device.workload import MeasureOptions, Runner
from retune.records.schema import Environment, Measurement, TuningRecord, failed
from retune.records.store import RecordStore
from retune.schedule.estimate import default_candidate
from retune.schedule.space import Candidate, Space
from retune.search.allocate import TaskState, next_task
from retune.search.history import best_candidate
from retune.search.task import Task
from retune.search.tuners import Result, Tuner, make_tuner

_log = logging.getLogger("retune.search")

_FIRST_BATCH = 2
"""Candidates of a task's first batch, the default schedule among them: enough to rank the tasks."""
_HOPELESS = 64
"""Trials without a valid result after which a task is given up for this run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What stays the same over all rounds of a run."""

    run_id: str
    model: str
    layout: str
    tuner: str
    seed: int
    batch: int = 8
    """Candidates measured between two records files."""
    options: MeasureOptions = MeasureOptions()
    retune: str = ""
    """Version that the records name."""


@dataclass(slots=True)
class _TaskRun:
    """One task's tuner and state during a run."""

    task: Task
    space: Space
    tuner: Tuner
    state: TaskState
    failures: int


Report = Callable[[str, int], None]
"""Called after each batch with one line of text and the trials done so far."""


class Session:
    """A run over some tasks on one device. Construct it, then call `round` until it is finished."""

    def __init__(
        self,
        tasks: Sequence[Task],
        runner: Runner,
        store: RecordStore,
        settings: RunSettings,
    ) -> None:
        self.runner = runner
        self.store = store
        self.settings = settings
        self._runs = {t.key: self._task_run(t) for t in tasks if t.tunable}
        self._prepared: str | None = None

    @property
    def trials(self) -> int:
        """Measurements of this run so far, earlier processes' included."""
        return sum(run.state.trials for run in self._runs.values())

    def states(self) -> list[tuple[TaskState, int]]:
        """Every tuned task's state and number of failed trials."""
        return [(run.state, run.failures) for run in self._runs.values()]

    def round(self, trials: int, seconds: float, report: Report) -> tuple[Counter[str], str]:
        """Measures until about `trials` are done or `seconds` are over; whole batches only.

        Gives the statuses of the round, and why the run is finished ('' if it is not).
        """
        statuses: Counter[str] = Counter()
        started = perf_counter()
        while statuses.total() < trials and perf_counter() - started < seconds:
            state = next_task([run.state for run in self._runs.values()])
            if state is None:
                return statuses, "every space is exhausted"
            run = self._runs[state.key]
            batch = self.settings.batch if state.trials else _FIRST_BATCH
            count = min(batch, trials - statuses.total())
            candidates = run.tuner.propose(count)
            if not candidates:
                run.state = replace(run.state, exhausted=True)
                continue
            statuses.update(m.status for m in self._batch(run, candidates))
            report(_line(run, self.trials), self.trials)
        return statuses, ""

    def measure(self, task_key: str, candidates: Sequence[Candidate]) -> list[Measurement]:
        """These candidates of a task, measured now, whatever its tuner would have proposed."""
        return self._batch(self._runs[task_key], candidates)

    # -- one batch -----------------------------------------------------------------------------

    def _batch(self, run: _TaskRun, candidates: Sequence[Candidate]) -> list[Measurement]:
        """Every candidate is a record, and the tuner knows it, when the call returns."""
        measurements = self._measure(run, candidates)
        self._record(run, candidates, measurements)
        return measurements

    def _measure(self, run: _TaskRun, candidates: Sequence[Candidate]) -> list[Measurement]:
        workload_key = run.task.workload_key(self.settings.seed)
        if self._prepared != workload_key:
            self.runner.prepare(run.task.workload(self.settings.seed))
            self._prepared = workload_key
        sources: dict[int, Measurement | None] = {}
        programs = []
        for index, candidate in enumerate(candidates):
            try:
                programs.append(lower(run.space.instantiate(candidate)))
                sources[index] = None
            except ScheduleError as error:
                sources[index] = failed("skipped", str(error))
        measured = iter(self.runner.measure(workload_key, programs, self.settings.options))
        return [m if m is not None else next(measured) for m in sources.values()]

    def _record(
        self,
        run: _TaskRun,
        candidates: Sequence[Candidate],
        measurements: Sequence[Measurement],
    ) -> None:
        records = [self._row(run, c, m) for c, m in zip(candidates, measurements, strict=True)]
        self.store.append(records)
        times = [m.median_us for m in measurements if m.ok and m.median_us is not None]
        known = [run.state.best_us] if run.state.best_us is not None else []
        run.failures += sum(not m.ok for m in measurements)
        trials = run.state.trials + len(candidates)
        best = min([*known, *times], default=None)
        hopeless = best is None and trials >= _HOPELESS
        run.state = replace(run.state, trials=trials, best_us=best, exhausted=hopeless)
        run.tuner.observe(
            [Result(c, m.median_us) for c, m in zip(candidates, measurements, strict=True)]
        )

    def _row(self, run: _TaskRun, candidate: Candidate, measured: Measurement) -> TuningRecord:
        spec, settings = self.runner.spec, self.settings
        return TuningRecord(
            run_id=settings.run_id,
            model=settings.model,
            target=spec.model,
            task_key=run.task.key,
            task_name=run.task.name,
            sketch=candidate.sketch,
            decisions=tuple(v for _, values in candidate.decisions for v in values),
            trace=run.space.trace(candidate).to_json(),
            config_hash=candidate.key,
            strategy=run.task.op,
            layout=settings.layout,
            device=spec.fingerprint,
            env=Environment.of(spec, settings.retune),
            measurement=measured,
        )

    # -- resuming ------------------------------------------------------------------------------

    def _task_run(self, task: Task) -> _TaskRun:
        spec = self.runner.spec
        space = task.space(spec)
        known = self.store.known(task.key, spec.fingerprint)
        mine = self.store.scan(
            {"task_key": task.key, "device": spec.fingerprint, "run_id": self.settings.run_id},
            ["status"],
        )
        found = best_candidate(self.store, task.key, spec.fingerprint, space)
        best = found[1] if found else None
        first = [default_candidate(space, spec), *space.untuned(), *([found[0]] if found else [])]
        tuner = make_tuner(self.settings.tuner, space, self.settings.seed, task.key, first, known)
        state = TaskState(
            key=task.key,
            weight=task.weight,
            flops=task.flops,
            trials=len(mine),
            best_us=best.measurement.median_us if best else None,
            exhausted=False,
        )
        return _TaskRun(task, space, tuner, state, sum(s != "ok" for s in mine["status"]))


def _line(run: _TaskRun, trials: int) -> str:
    best = run.state.best_us
    speed = f"{best:.1f} us, {run.task.flops / best / 1e3:.0f} GFLOPS" if best else "none valid"
    share = 100 * run.failures / max(1, run.state.trials)
    return (
        f"{run.task.name} x{run.task.weight} | {run.state.trials} trials | best {speed} | "
        f"failed {share:.0f} % | {trials} trials in all"
    )

"""Tuning rounds: batches of candidates measured, recorded, and fed back.

A run is named by its run id. What it has done is what the store holds under that id: a run that was
killed goes on where it stopped, and proposes what it would have proposed.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from retune.codegen.lower import lower
from retune.core.errors import ScheduleError
from retune.device.workload import MeasureOptions, Runner, measuring_conditions
from retune.records.conditions import group, within
from retune.records.cost import measured_costs
from retune.records.schema import Environment, Measurement, TuningRecord, failed
from retune.records.store import RecordStore
from retune.schedule.estimate import default_candidate
from retune.schedule.space import Candidate, Candidates
from retune.schedule.spaces import strategy
from retune.search.allocate import ROUND, check_allocator, next_task
from retune.search.conditions import network_options
from retune.search.defaults import DEFAULT_ALLOCATOR, DEFAULT_TUNER
from retune.search.features import VERSION
from retune.search.history import HISTORY_COLUMNS, History, history_of, split_run
from retune.search.learning import Learner, Lesson, ModelScorer
from retune.search.offline import offline_model
from retune.search.task import Task
from retune.search.task_run import TaskRun
from retune.search.transfer import experience
from retune.search.tuners import Setting, make_tuner

if TYPE_CHECKING:
    from retune.records import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What stays the same over all rounds of a run."""

    run_id: str
    model: str
    layout: str
    tuner: str = DEFAULT_TUNER
    allocator: str = DEFAULT_ALLOCATOR
    seed: int = 0
    trials: int | None = None
    """Budget of the whole run in trials; None if it is time."""
    patience: int = 0
    """Trials without a gain after which a task gets no further ones; 0: no limit."""
    batch: int = ROUND
    """Candidates measured between two records files."""
    options: MeasureOptions = MeasureOptions()
    retune: str = ""
    """Version that the records name."""


Report = Callable[[str, int], None]
"""Called after each batch with one line of text and the trials done so far."""
Stop = Callable[[], bool]
"""Asked before each batch: True if nothing more is to be measured."""


def never() -> bool:
    """The `Stop` of those who measure all that was asked for."""
    return False


class Session:
    """A run over some tasks on one device. Construct it, then call `round` until it is finished."""

    def __init__(
        self,
        tasks: Sequence[Task],
        runner: Runner,
        store: RecordStore,
        settings: RunSettings,
    ) -> None:
        """Reads what the store knows. Candidates are timed with constants as far away as they are
        in a network of these tasks. Raises: LookupFailed for an unknown tuner or allocator.
        """
        check_allocator(settings.allocator)
        options = network_options(tasks, settings.options)
        self.runner = runner
        self.store = store
        self.settings = replace(settings, options=options)
        self.conditions = measuring_conditions(runner.spec, options)
        """Those of every trial of this session; only records of the same count."""
        self._prepared: set[str] = set()
        tuned = [task for task in tasks if task.tunable]
        mine = {**self.conditions.comparable, "task_key": [task.key for task in tuned]}
        rows = store.scan(mine, HISTORY_COLUMNS)
        earlier, own = split_run(rows, settings.run_id)
        self._experience = experience(store, self.conditions, settings.run_id)
        began = min(own["timestamp"].tolist(), default=None)
        offline = offline_model(store.root, runner.spec, began)
        self._learner = Learner(runner.spec, settings.seed, self._experience.lesson, offline)
        self._scorers: dict[str, ModelScorer] = {}
        self._runs = {task.key: self._task_run(task, earlier) for task in tuned}
        self._recall(own)

    @property
    def trials(self) -> int:
        """Measurements of this run so far, earlier processes' included."""
        return sum(run.trials for run in self._runs.values())

    @property
    def runs(self) -> tuple[TaskRun, ...]:
        """Every tuned task, with what is known of it."""
        return tuple(self._runs.values())

    def next_key(self, spent: float = 0.0) -> str | None:
        """Key of the task whose turn it is; None if none has anything left to try."""
        run = self._next(spent)
        return run.task.key if run else None

    def round(
        self,
        trials: int,
        seconds: float,
        report: Report,
        spent: float = 0.0,
        stop: Stop = never,
    ) -> tuple[Counter[str], str]:
        """Measures until about `trials` are done, `seconds` are over, or `stop`; whole batches.

        `spent` is the share of a budget of time that is gone. Gives the statuses of the round, and
        why the run is finished ('' if it is not).
        """
        statuses: Counter[str] = Counter()
        started = perf_counter()
        while statuses.total() < trials and perf_counter() - started < seconds and not stop():
            run = self._next(spent)
            if run is None:
                return statuses, "no task has anything left to try"
            candidates = run.propose(min(self.settings.batch, trials - statuses.total()))
            if not len(candidates):
                continue
            statuses.update(m.status for m in self._batch(run, candidates))
            report(_line(run, self.trials), self.trials)
        return statuses, ""

    def _next(self, spent: float) -> TaskRun | None:
        if self.settings.trials:
            spent = self.trials / self.settings.trials
        states = [run.state for run in self._runs.values()]
        state = next_task(self.settings.allocator, states, spent)
        return self._runs[state.key] if state else None

    def measure(self, task_key: str, candidates: Sequence[Candidate]) -> list[Measurement]:
        """These candidates of a task, measured now, whatever its tuner would have proposed.

        Raises: ScheduleError for a candidate that is not of the task's space.
        """
        run = self._runs[task_key]
        return self._batch(run, run.space.locate(candidates))

    def record_in_place(
        self, model_key: str, rows: Sequence[tuple[str, Candidate, Measurement]]
    ) -> list[TuningRecord]:
        """The records of tasks' finalists that were timed inside their network; they are no trials.

        They are in the store when the call returns.
        """
        there = replace(self.conditions, place=within(model_key))
        made = [
            replace(
                self._row(self._runs[key], candidate, measured), phase="final", conditions=there
            )
            for key, candidate, measured in rows
        ]
        if made:
            self.store.append(made)
        return made

    # -- one batch -----------------------------------------------------------------------------

    def _batch(self, run: TaskRun, candidates: Candidates) -> list[Measurement]:
        """Every candidate is a record, and the tuner knows it, when the call returns."""
        measurements = self._measure(run, candidates)
        self._record(run, candidates, measurements)
        return measurements

    def _measure(self, run: TaskRun, candidates: Candidates) -> list[Measurement]:
        workload_key = run.task.workload_key(self.settings.seed)
        if workload_key not in self._prepared:
            self.runner.prepare(run.task.workload(self.settings.seed))
            self._prepared.add(workload_key)
        sources: dict[int, Measurement | None] = {}
        programs = []
        for index in range(len(candidates)):
            candidate = run.space.candidate(candidates, index)
            try:
                programs.append(lower(run.space.instantiate(candidate)))
                sources[index] = None
            except ScheduleError as error:
                sources[index] = failed("skipped", str(error))
        measured = iter(self.runner.measure(workload_key, programs, self.settings.options))
        return [m if m is not None else next(measured) for m in sources.values()]

    def _record(
        self, run: TaskRun, candidates: Candidates, measurements: Sequence[Measurement]
    ) -> None:
        done = self.trials
        features = self._scorers[run.task.key].features(candidates)
        rows = [
            replace(
                self._row(run, run.space.candidate(candidates, index), measured),
                trial=done + index,
                features=tuple(features[index].tolist()),
                feature_set=VERSION,
            )
            for index, measured in enumerate(measurements)
        ]
        self.store.append(rows)
        times, costs = measured_costs(measurements)
        self._learn(run, History(candidates=candidates, times_us=times, costs=costs), features)

    def _learn(self, run: TaskRun, measured: History, features: np.ndarray) -> None:
        """Tuner and model know of the measurements when the call returns."""
        run.observe(measured)
        name = group(run.task.key, self.conditions.key)
        tasks = np.full(len(measured.costs), name, object)
        self._learner.observe(Lesson(features=features, costs=measured.costs, tasks=tasks))

    def _row(self, run: TaskRun, candidate: Candidate, measured: Measurement) -> TuningRecord:
        spec, settings, task = self.runner.spec, self.settings, run.task
        return TuningRecord(
            run_id=settings.run_id,
            model=settings.model,
            target=spec.model,
            task_key=task.key,
            task_name=task.name,
            op=task.op,
            flops=task.flops,
            bytes=task.least_bytes,
            input_shapes=task.input_shapes,
            output_shape=task.output_shape,
            dtypes=task.dtypes,
            tuner=settings.tuner,
            seed=settings.seed,
            sketch=candidate.sketch,
            decisions=tuple(v for _, values in candidate.decisions for v in values),
            knobs=candidate.decisions,
            trace=run.space.trace(candidate).to_json(),
            config_hash=candidate.key,
            strategy=strategy(candidate.sketch),
            layout=settings.layout,
            device=spec.fingerprint,
            conditions=self.conditions,
            env=Environment.of(spec, settings.retune),
            measurement=measured,
        )

    # -- resuming ------------------------------------------------------------------------------

    def _recall(self, own: "Table") -> None:
        """Takes in what the run measured before it was interrupted, in order."""
        first = 0
        for key, turn in groupby(own["task_key"].tolist()):
            after = first + len(list(turn))
            run = self._runs[key]
            measured = history_of(own.iloc[first:after], run.space)
            features = self._scorers[key].features(measured.candidates)
            self._learn(run, measured, features)
            first = after

    def _task_run(self, task: Task, earlier: "Table") -> TaskRun:
        """The task with what was known of it before the run."""
        spec, settings = self.runner.spec, self.settings
        space = task.space(spec)
        scorer = self._scorers[task.key] = self._learner.scorer(space)
        setting = Setting(
            space=space,
            seed=settings.seed,
            scorer=scorer,
            seeds=self._experience.seeds(space),
        )
        tuner = make_tuner(settings.tuner, setting, task.key)
        first = [default_candidate(space, spec), *space.untuned()]
        run = TaskRun(task, space, tuner, first, settings.patience)
        run.recall(history_of(earlier.loc[earlier["task_key"] == task.key], space))
        return run


def _line(run: TaskRun, trials: int) -> str:
    best = run.best_us
    speed = f"{best:.1f} us, {run.task.flops / best / 1e3:.0f} GFLOPS" if best else "none valid"
    share = 100 * run.failures / max(1, run.trials)
    return (
        f"{run.task.name} x{run.task.weight} | {run.trials} trials | best {speed} | "
        f"failed {share:.0f} % | {trials} trials in all"
    )

"""Session: a run's tasks on one device, searched by a worker each, recorded, and learned from.

A run is named by its run id. What it has done is what the store holds under that id: a run that was
killed goes on where it stopped, and proposes what it would have proposed. `scheduling` says which
task is measured next, and what each proposal knows. Open first: `Session.search`.
"""

import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass, replace
from itertools import groupby
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from retune.codegen.source import ProgramSource
from retune.core.quantities import counted
from retune.core.stopwatch import Stopwatch
from retune.device.measure.workload import MeasureOptions, Runner, measuring_conditions
from retune.ir.stored import to_text
from retune.records.conditions import Conditions, group
from retune.records.cost import measured_costs, standard_errors
from retune.records.distilled import TravellingRecords
from retune.records.origins import keep, keep_spec, spec_key
from retune.records.schema import Environment, Measurement, TuningRecord
from retune.records.shared import Level, shared_records
from retune.records.store import RecordStore
from retune.schedule.space import Candidate, Candidates, Space
from retune.search.batch import Batch, make_batch, measure_programs
from retune.search.conditions import network_options
from retune.search.defaults import DEFAULT_TASK_SCHEDULER, DEFAULT_TUNER
from retune.search.expectation import TYPICAL_GAIN, expected_share, prior_gain
from retune.search.history import (
    HISTORY_COLUMNS,
    History,
    began,
    fastest_elsewhere,
    history_of,
    split_run,
)
from retune.search.matching import Here, Sources, match_records
from retune.search.model.cost_model import learned_score
from retune.search.model.features import VERSION, featurise
from retune.search.model.learning import Learner, ModelScorer, TrainingSet
from retune.search.model.offline import offline_model
from retune.search.model.transfer import warm_start
from retune.search.scheduling import GRACE_S, Budget, End, Stop, TaskScheduler
from retune.search.task import Task
from retune.search.task_run import TaskRun
from retune.search.task_schedulers import ROUND, check_task_scheduler, next_task
from retune.search.tuners import Setting, make_tuner
from retune.targets.cost.estimate import default_candidate
from retune.targets.devices import target_of
from retune.targets.spaces import strategy

if TYPE_CHECKING:
    from retune.records import Table


_TURN_S = 0.5e-3
"""Seconds that a thread computes while others wait to. Those that measure have little to do between
two messages to a device: at Python's usual 5 ms they wait up to 15 ms beside two that compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Settings that all of a run's processes share, except for `spent_s`."""

    run_id: str
    model: str
    layout: str
    night: str = ""
    """The night or campaign that the records name."""
    tuner: str = DEFAULT_TUNER
    task_scheduler: str = DEFAULT_TASK_SCHEDULER
    seed: int = 0
    trials: int | None = None
    """Budget of the whole run in trials; None: no limit."""
    seconds: float | None = None
    """Budget of the whole run in seconds of searching; None: no limit."""
    spent_s: float = 0.0
    """What earlier processes have spent of it."""
    patience: int = 0
    """Trials without a gain after which a task gets no further ones; 0: no limit."""
    task_trials: int | None = None
    """Trials of a task at most; None: no limit."""
    least_gain: float = 0.0
    """Part of the network's time: the search ends where it is expected to save less."""
    batch: int = ROUND
    """Candidates measured between two records files."""
    options: MeasureOptions = MeasureOptions()
    retune: str = ""
    """Version that the records name."""


_JUDGED = 64
"""Random candidates of a task whose predicted scores say what is expected of its search."""

Report = Callable[[str, int], None]
"""Called after each batch with one line of text and the trials done so far. By one thread at a
time, while nothing is measured that it could disturb."""


def never() -> bool:
    """The `Stop` of those who measure all that was asked for."""
    return False


def quiet(_text: str, _trials: int) -> None:
    """A `Report` that does nothing."""


class Session:
    """A run over some tasks on one device, or on several of one kind.

    Construct it, and call `search` for each of its tasks, each in a thread of its own, as
    `search_all` does. Once all of them have ended the search is over: another session goes on.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        runner: Runner,
        store: RecordStore,
        settings: RunSettings,
        *,
        ended: Collection[str] = (),
        grace_s: float = GRACE_S,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """Reads what the store knows. Candidates are timed with constants as far away as they are
        in a network of these tasks. Raises: LookupFailed for an unknown tuner or task scheduler.

        Nothing is measured before all tasks but those that have `ended` are searched by someone, or
        `grace_s` after the first one is. Time in which others have the device does not count.
        """
        check_task_scheduler(settings.task_scheduler)
        options = network_options(tasks, settings.options)
        self.runner = runner
        self.store = store
        self.settings = replace(settings, options=options)
        self.spec = runner.spec
        self._spec_key = spec_key(self.spec)
        self._origins: set[str] = set()
        """Tasks whose expressions the store has."""
        self.conditions = measuring_conditions(self.spec, options)
        """Those of every trial of this session; only records of the same count."""
        tuned = [task for task in tasks if task.tunable]
        self._changed = threading.Condition()
        """Held whenever what is known of the tasks is read, or changed."""
        self._reporting = threading.Lock()
        self.stopwatch = Stopwatch(clock)
        """The run's time, from any moment on."""
        awaited = {task.key for task in tuned} - set(ended)
        self._scheduler = self._new_scheduler(awaited, grace_s)
        self._prepared: set[str] = set()
        mine = {**self.conditions.comparable, "task_key": [task.key for task in tuned]}
        rows = store.scan(mine, HISTORY_COLUMNS)
        earlier, own = split_run(rows, settings.run_id)
        self._experience = warm_start(store, self.conditions, settings.run_id)
        offline = self._offline = offline_model(store.root, self.spec, began(own))
        self._learner = Learner(self.spec, settings.seed, self._experience.training_set, offline)
        self._scorers: dict[str, ModelScorer] = {}
        unknown = {task.key for task in tuned} - set(earlier["task_key"].tolist())
        self._elsewhere = fastest_elsewhere(store, sorted(unknown), settings.run_id, began(own))
        """Of tasks without a time under these conditions: the user's under others."""
        self._runs = {task.key: self._task_run(task, earlier) for task in tuned}
        self._statuses: dict[str, Counter[str]] = {task.key: Counter() for task in tuned}
        self._recall(own)

    @property
    def trials(self) -> int:
        """Measurements of this run so far, earlier processes' included."""
        with self._changed:
            return self._scheduler.done

    @property
    def seconds(self) -> float:
        """Time spent on searching so far, earlier processes' included."""
        with self._changed:
            return self._scheduler.seconds

    @property
    def spent(self) -> float:
        """Share of the budget that is gone, from 0 to 1."""
        with self._changed:
            return self._scheduler.spent

    @property
    def runs(self) -> tuple[TaskRun, ...]:
        """Every tuned task, with what is known of it: all that was recorded but batches in flight.

        In a session in which nobody has searched, the last batch in the store is in flight.
        """
        return tuple(self._runs.values())

    def statuses(self, task_key: str) -> Counter[str]:
        """Measurements of the task in this run that are known, by status."""
        with self._changed:
            return Counter(self._statuses[task_key])

    def next_key(self) -> str | None:
        """Key of the task that is measured next; None if none has anything left to try."""
        with self._changed:
            return self._scheduler.upcoming or self._choose(list(self._runs), self._scheduler.spent)

    def finish(self) -> None:
        """All that the store had of this run is known. For a session in which nobody searches:
        otherwise its last batch becomes known when the next one was proposed."""
        self._scheduler.finish()

    # -- searching -------------------------------------------------------------------------------

    def search(self, task_key: str, report: Report = quiet, stop: Stop = never) -> End:
        """Measure batches of the task until it is done. Returns the reason why there are no more.

        Blocks while other tasks have the devices, so every task needs a thread of its own. What one
        task's worker raises ends that worker alone: the others go on without the task, which may
        be searched again. When `stop` says so, nothing more is begun; what devices have taken in is
        measured and recorded.

        On one device, the run's proposals follow from its seed and from the outcomes alone; with
        several, also from which of them is done first. Threads of this process take shorter turns
        from now on.
        """
        sys.setswitchinterval(_TURN_S)
        run, scheduler = self._runs[task_key], self._scheduler
        with self.stopwatch.counting(), scheduler.worker(task_key):
            while (granted := scheduler.take(task_key, stop)) is not None:
                with self.runner.working():
                    batch = self._propose(run, granted.most)
                    scheduler.proposed(granted, len(batch))
                if not len(batch) or not scheduler.enter(granted, stop):
                    continue
                measured = self._measure(run, batch)
                scheduler.measured(granted)
                with self.runner.working():
                    learn = self._record(run, batch, measured, granted.first)
                scheduler.recorded(granted, learn)
                known = False
                while not known:
                    scheduler.wait_to_know(granted)
                    with self.runner.working():
                        known = scheduler.know(granted)
                with self.runner.working(), self._reporting:
                    report(self._line(run), self.known_trials)
            return scheduler.end()

    @property
    def known_trials(self) -> int:
        """Measurements of this run that tuners and model know."""
        with self._changed:
            return sum(run.trials for run in self._runs.values())

    def measure(self, task_key: str, candidates: Sequence[Candidate]) -> Sequence[Measurement]:
        """These candidates of a task, measured now, whatever its tuner would have proposed.

        Not beside a search. Raises: ScheduleError for a candidate that is not of the task's space.
        """
        self.finish()
        run = self._runs[task_key]
        batch = self._batch(run, run.space.locate(candidates))
        measured = self._measure(run, batch)
        self._record(run, batch, measured, self._scheduler.number(len(batch)))()
        return measured

    def timed(
        self, workload_key: str, programs: Sequence[ProgramSource | Measurement]
    ) -> Sequence[Measurement]:
        """A row for each program of a workload that the runner knows, or the one that there is.

        The session's stopwatch stands still while others have the device.
        """
        with self.stopwatch.counting():
            return measure_programs(self.runner, workload_key, programs, self.settings.options)

    def _choose(self, available: Collection[str], spent: float) -> str | None:
        """The next task; unavailable ones count as done, but tasks are still compared with them."""
        states = [run.state for run in self._runs.values()]
        states = [s if s.key in available else replace(s, done=True) for s in states]
        state = next_task(self.settings.task_scheduler, states, spent)
        return state.key if state else None

    def _is_enough(self) -> bool:
        """Whether the expected gain is below the least one for which the search goes on."""
        least = self.settings.least_gain
        return bool(least) and expected_share([r.outlook for r in self._runs.values()]) < least

    def record_in_place(
        self, place: str, rows: Sequence[tuple[str, Candidate, Measurement]]
    ) -> list[TuningRecord]:
        """The records of tasks' finalists that were timed inside their network, the `place`.

        They are in the store when the call returns. They do not count as trials.
        """
        there = replace(self.conditions, place=place)
        made = [
            replace(
                self._row(self._runs[key], candidate, measured), phase="final", conditions=there
            )
            for key, candidate, measured in rows
        ]
        if made:
            self.store.append(made)
        return made

    def record_of(
        self, task: Task, space: Space, candidate: Candidate, measured: Measurement
    ) -> TuningRecord:
        """The record of a measurement in this session, of a task of its network or beside it."""
        spec, settings = self.spec, self.settings
        return TuningRecord(
            run_id=settings.run_id,
            night=settings.night,
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
            trace=space.trace(candidate).to_json(),
            config_hash=candidate.key,
            strategy=strategy(candidate.sketch),
            layout=settings.layout,
            device=spec.fingerprint,
            conditions=self._conditions_of(measured),
            env=Environment.of(spec, settings.retune),
            spec=self._spec_key,
            measurement=measured,
        )

    # -- one batch -----------------------------------------------------------------------------

    def _propose(self, run: TaskRun, most: int) -> Batch:
        return self._batch(run, run.propose(most))

    def _batch(self, run: TaskRun, candidates: Candidates) -> Batch:
        """The candidates as programs; the runner has the arrays that they work on."""
        workload_key = run.task.workload_key(self.settings.seed)
        if workload_key not in self._prepared:
            self.runner.prepare(run.task.workload(self.settings.seed))
            self._prepared.add(workload_key)
        scorer = self._scorers[run.task.key]
        return make_batch(run.task, run.space, scorer, candidates, target_of(self.spec))

    def _measure(self, run: TaskRun, batch: Batch) -> Sequence[Measurement]:
        workload_key = run.task.workload_key(self.settings.seed)
        return self.timed(workload_key, batch.programs)

    def _record(
        self, run: TaskRun, batch: Batch, measurements: Sequence[Measurement], first: int
    ) -> Callable[[], None]:
        """Every candidate is a record when the call returns; what comes back makes them known."""
        rows = [
            replace(
                self._row(run, run.space.candidate(batch.candidates, index), measured),
                trial=first + index,
                features=tuple(batch.features[index].tolist()),
                feature_set=VERSION,
            )
            for index, measured in enumerate(measurements)
        ]
        self._keep_origin(run.task)
        self.store.append(rows)
        times, costs = measured_costs(measurements)
        history = History(
            candidates=batch.candidates,
            times_us=times,
            costs=costs,
            errors=standard_errors(each.run_times_us for each in measurements),
        )
        statuses: Counter[str] = Counter(item.status for item in measurements)
        return lambda: self._learn(run, history, batch.features, statuses)

    def _learn(
        self, run: TaskRun, measured: History, features: np.ndarray, statuses: Counter[str]
    ) -> None:
        """Tuner and model know of the measurements when the call returns."""
        with self._changed:
            run.observe(measured)
            name = group(run.task.key, self.conditions.key)
            tasks = np.full(len(measured.costs), name, object)
            self._learner.observe(TrainingSet(features=features, costs=measured.costs, tasks=tasks))
            self._statuses[run.task.key].update(statuses)

    def _keep_origin(self, task: Task) -> None:
        """The store has what the task's rows are made from."""
        if task.key not in self._origins:
            text = to_text(task.dag)
            if text is not None:
                keep(self.store.root, "expression", task.key, text)
            keep_spec(self.store.root, self.spec)
            self._origins.add(task.key)

    def _row(self, run: TaskRun, candidate: Candidate, measured: Measurement) -> TuningRecord:
        return self.record_of(run.task, run.space, candidate, measured)

    def _conditions_of(self, measured: Measurement) -> Conditions:
        """The session's, on the device that took the measurement."""
        return replace(self.conditions, instance=measured.instance or self.conditions.instance)

    # -- opening -------------------------------------------------------------------------------

    def _new_scheduler(self, awaited: Collection[str], grace_s: float) -> TaskScheduler:
        settings = self.settings
        return TaskScheduler(
            self._choose,
            lambda key: self._runs[key].state.done,
            Budget(
                trials=settings.trials,
                seconds=settings.seconds,
                batch=settings.batch,
                enough=self._is_enough,
            ),
            changed=self._changed,
            devices=lambda: self.runner.capacity,
            slots=lambda: self.runner.slots,
            awaited=awaited,
            grace_s=grace_s,
            clock=self.stopwatch,
        )

    def _recall(self, own: "Table") -> None:
        """Takes in what the run measured before it was interrupted, in order.

        Its last batch is in flight, as it was then: the next one is proposed without it.
        """
        lessons: list[tuple[str, Callable[[], None]]] = []
        first = 0
        for key, rows in groupby(own["task_key"].tolist()):
            after = first + len(list(rows))
            lessons.append((key, self._lesson(self._runs[key], own.iloc[first:after])))
            first = after
        numbers = [int(number) for number in own["trial"].tolist()]
        self._scheduler.recall(len(numbers), max(numbers, default=-1) + 1, self.settings.spent_s)
        for _, learn in lessons[:-1]:
            learn()
        if lessons:
            self._scheduler.leave_over(*lessons[-1])

    def _lesson(self, run: TaskRun, rows: "Table") -> Callable[[], None]:
        """Makes a recorded batch known."""
        measured = history_of(rows, run.space)
        features = self._scorers[run.task.key].features(measured.candidates)
        statuses = Counter(str(status) for status in rows["status"].tolist())
        return lambda: self._learn(run, measured, features, statuses)

    def _task_run(self, task: Task, earlier: "Table") -> TaskRun:
        """The task with what was known of it before the run."""
        spec, settings = self.spec, self.settings
        space = task.space(spec)
        scorer = self._scorers[task.key] = self._learner.scorer(space)
        setting = Setting(
            space=space,
            seed=settings.seed,
            scorer=scorer,
            seeds=self._experience.seeds(space),
        )
        tuner = make_tuner(settings.tuner, setting, task.key)
        known = history_of(earlier.loc[earlier["task_key"] == task.key], space)
        here = Here(spec=spec, conditions=self.conditions)
        measured = bool(len(known.costs))
        suggested = match_records(task, space, here, measured, self._sources(task))
        first = [default_candidate(space, spec), *space.untuned(), *suggested.candidates]
        limits = (settings.patience, settings.task_trials)
        run = TaskRun(task, space, tuner, first, *limits, self._prior(space, first[0]))
        run.match = suggested.match
        run.recall(known)
        return run

    def _prior(self, space: Space, default: Candidate) -> float:
        """The time that a task is expected to save, by the offline model as far as it is
        trusted."""
        if self._offline is None:
            return TYPICAL_GAIN
        others = space.sample(_JUDGED, np.random.default_rng(self.settings.seed))
        features = [featurise(space, each, self.spec) for each in (space.locate([default]), others)]
        scores = learned_score(self._offline, np.concatenate(features))
        return prior_gain(scores, self._offline.trust)

    def _sources(self, task: Task) -> Sources:
        """Records by level; the user's are those of the task under other conditions."""

        def records(level: Level) -> TravellingRecords:
            if level != "user":
                return shared_records(level)
            return TravellingRecords(records=tuple(self._elsewhere.get(task.key, ())))

        return records

    def _line(self, run: TaskRun) -> str:
        with self._changed:
            best = run.best_us
            speed = f"{best:.1f} us, {run.task.flops / best / 1e3:.0f} GFLOPS" if best else ""
            share = 100 * run.failures / max(1, run.trials)
            return (
                f"{run.task.name} x{run.task.weight} | {counted(run.trials, 'trial')} | "
                f"best {speed or 'none valid'} | failed {share:.0f} % | "
                f"{counted(self.known_trials, 'trial')} in all"
            )


def search_all(session: Session, report: Report = quiet, stop: Stop = never) -> End:
    """All tasks of the session were searched, each by a thread of its own; why it ended.

    The threads run in a copy of the caller's context. Raises: what the first task that failed
    raised, after all others have ended. An interrupt of the caller stops them.
    """
    interrupted = threading.Event()

    def search(key: str) -> End:
        return session.search(key, report, lambda: interrupted.is_set() or stop())

    keys = [run.task.key for run in session.runs]
    with ThreadPoolExecutor(max(1, len(keys)), thread_name_prefix="search") as pool:
        try:
            searches = [pool.submit(copy_context().run, search, key) for key in keys]
            wait(searches)
        except BaseException:
            interrupted.set()
            raise
    ends: set[End] = {each.result() for each in searches}
    for end in ends - {"nothing left"}:
        return end
    return "nothing left"

"""Finalists of all tasks, raced inside the network: who is fastest where it will run?

Read `race_finalists`. A task's default schedule is always a contender, so a winner is faster than
it, in place and in the same passes, or it is the default.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

import numpy as np

from retune.bundle.build import ContestPlan, build_contest
from retune.bundle.verify.racer import ContestChild, Passes
from retune.core.errors import DeviceError
from retune.core.layouts import ALL_NHWC, LayoutAssignment
from retune.core.target import DeviceSpec
from retune.device.measure.child import ChildLostError
from retune.device.opening import unraced
from retune.pipeline.manifest import FinalistsManifest, ImportManifest, TuneRequest, Winner
from retune.pipeline.network import open_network
from retune.records.schema import Measurement, TuningRecord, succeeded
from retune.schedule.space import Candidate
from retune.search.extract import Network
from retune.search.history import best_candidates
from retune.search.layout.assignment import with_layouts
from retune.search.layout.trials import best_in_layouts
from retune.search.race import Race
from retune.search.session import Session
from retune.search.task import Task
from retune.search.task_run import TaskRun
from retune.targets.cost.estimate import default_candidate

_LOG = logging.getLogger("retune.pipeline")

MOST = 8
"""Contenders of a task at most, beside its default schedule. No search time is so good that it
shuts out the next ones: it may be a lucky one."""
_BUILD_SHARE = 0.6
"""Of the time for the race, what building all contenders may take; the best one of each task and
its default are built whatever it takes."""
_LEAST_ROUNDS = 6
"""Rounds of passes, whatever they take: fewer tell nothing apart."""
_MEMORY_SHARE = 8
"""Constants of all contenders take one in so many bytes of the device at most: PoCL allocates no
more than a quarter at once, rounded down to a power of two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """A contender: the default schedule where it has no record."""

    candidate: Candidate
    record: TuningRecord | None

    @property
    def build_s(self) -> float:
        """Seconds that building it took when it was measured."""
        return self.record.measurement.build_s if self.record else 0.0

    def held_bytes(self, task: Task) -> int:
        """What its constants take at most: with what else it reads and writes, if that is known."""
        known = self.record.bytes if self.record and task.constant_bytes else None
        return task.constant_bytes if known is None else known


def race_finalists(
    request: TuneRequest,
    network: ImportManifest,
    session: Session,
    budget_s: float,
    time_left: Callable[[], bool],
    layouts: LayoutAssignment = ALL_NHWC,
    without: Collection[str] = (),
) -> FinalistsManifest:
    """The winner of each tuned task but those `without`, in these layouts; every contender's times
    in place are records afterwards.

    A few rounds of passes run; further ones while `time_left`. No winners on simulated devices and
    boards of a farm, or where the network with its finalists cannot run: the log says why.
    """
    if why := unraced(request.device):
        _LOG.info("%s: finalists are chosen by their records", why)
        return FinalistsManifest(unraced=why)
    network_now = open_network(request).network
    planned = best_in_layouts(network_now, layouts, session.store, session.conditions, session.spec)
    finalists = choose_finalists(session, budget_s, without, planned)
    chosen = {key: [f.candidate for f in found] for key, found in finalists.items()}
    if not chosen:
        return FinalistsManifest(unraced="nothing but default schedules is known")
    try:
        raced = race_in_place(
            with_layouts(network_now, layouts),
            chosen,
            session.spec,
            request.device,
            request.seed,
            time_left,
        )
    except DeviceError as error:
        _LOG.warning("finalists are not raced in their network: %s", error)
        return FinalistsManifest(unraced="the network cannot run with its finalists")
    records = _recorded(session, network.model_key, finalists, raced)
    return FinalistsManifest(
        winners=tuple(
            Winner(
                task_key=key,
                record_id=record.record_id if (record := records[key][lead]) else None,
                time_us=_time_us(records[key][lead], raced),
                default_us=_time_us(records[key][0], raced),
            )
            for key, lead in raced.leaders.items()
        ),
        passes=raced.passes,
    )


def choose_finalists(
    session: Session,
    budget_s: float,
    without: Collection[str] = (),
    planned: Mapping[str, tuple[Candidate, TuningRecord]] = MappingProxyType({}),
) -> dict[str, list[Finalist]]:
    """The default schedule, the fastest candidate in the planned layouts, and the fastest known
    candidates of each task, heaviest task first.

    Breadth first: the best of each task, then the second best of each, as long as building them
    takes no more than its share of `budget_s`, and their constants fit into one allocation.
    """
    runs = [run for run in session.runs if run.task.key not in without]
    known = {run.task.key: _known(session, run, planned.get(run.task.key)) for run in runs}
    known = {key: found for key, found in known.items() if len(found) > 1}
    weights = {run.task.key: run.task.weight * (run.best_us or 0.0) for run in session.runs}
    order = sorted(known, key=lambda key: (-weights[key], key))
    tasks = {run.task.key: run.task for run in session.runs}
    left_s = _BUILD_SHARE * budget_s
    left_bytes = session.spec.global_memory_bytes // _MEMORY_SHARE
    left_bytes -= sum(task.weight * task.constant_bytes for task in tasks.values())
    chosen = {key: known[key][:1] for key in order}
    for place in range(1, 1 + MOST):
        for key in order:
            if place >= len(known[key]):
                continue
            entry = known[key][place]
            held = tasks[key].weight * entry.held_bytes(tasks[key])
            if held <= left_bytes and (place == 1 or entry.build_s < left_s):
                chosen[key].append(entry)
                left_s -= entry.build_s
                left_bytes -= held
    return {key: found for key, found in chosen.items() if len(found) > 1}


def _known(
    session: Session, run: TaskRun, planned: tuple[Candidate, TuningRecord] | None
) -> list[Finalist]:
    """The default schedule, the fastest candidate in the planned layouts, then others."""
    spec = session.spec
    where, key = session.conditions.comparable, run.task.key
    default = default_candidate(run.space, spec)
    best = best_candidates(session.store, key, where, run.space, 1 + MOST)
    records = dict(best)
    others = [Finalist(candidate=c, record=r) for c, r in best if c != default]
    if planned is not None and planned[0] not in (default, *records):
        others.insert(0, Finalist(candidate=planned[0], record=planned[1]))
    return [Finalist(candidate=default, record=records.get(default)), *others[:MOST]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Raced:
    """What a race in a network came to, by task."""

    resolved: bool
    """True: samples are seconds of the task, all its calls together; False: of the network."""
    leaders: Mapping[str, int]
    samples: Mapping[str, Sequence[Sequence[float]]]
    """Of each contender, in order."""
    passes: int
    reference_us: float
    """Of the reference kernel around the passes, in the middle."""


def race_in_place(
    network: Network,
    contenders: Mapping[str, Sequence[Candidate]],
    spec: DeviceSpec,
    device: str,
    seed: int,
    time_left: Callable[[], bool],
) -> Raced:
    """The race of these contenders, the default schedule first; a few rounds of passes at least.

    Raises: DeviceError where the network with all of them cannot be run, or is simulated.
    """
    if why := unraced(device):
        raise DeviceError(f"{why}: finalists are chosen by their records")
    plan = build_contest(network, contenders, spec, model_key="", notes={})
    race = Race([len(found) for found in contenders.values()], np.random.default_rng(seed))
    with _Passes(device, plan, list(contenders)) as passes:
        rounds = 0
        while not race.decided and (rounds < _LEAST_ROUNDS or time_left()):
            for choices in race.turns(resolved=passes.resolved):
                passes.observe(race, choices)
            rounds += 1
        return Raced(
            resolved=passes.resolved,
            leaders=dict(zip(contenders, race.leaders.tolist(), strict=True)),
            samples=dict(zip(contenders, race.samples, strict=True)),
            passes=passes.count,
            reference_us=float(np.median(passes.references)) if passes.references else 0.0,
        )


class _Passes:
    """Passes of a network by a child that is replaced when it is lost."""

    def __init__(self, device: str, plan: ContestPlan, tasks: Sequence[str]) -> None:
        self.references: list[float] = []
        self.count = 0
        self._device = device
        self._plan = plan
        self._tasks = len(tasks)
        self._child: ContestChild | None = None
        numbers = {key: number for number, key in enumerate(tasks)}
        self._task_of = np.array(
            [numbers.get(slot.task_key, self._tasks) for slot in plan.slots], np.int64
        )
        """Of each slot; one more than there are for those of other tasks."""

    @property
    def resolved(self) -> bool:
        """Whether a pass tells the time of each task."""
        return self._opened().resolved

    def observe(self, race: Race, choices: np.ndarray) -> None:
        """One part of a round. Where the child is lost, each contender is tried again alone."""
        try:
            found = self._run(choices)
        except ChildLostError as lost:
            _LOG.warning("a pass of the finalists was lost (%s); each is tried alone", lost)
            self._convict(race, choices)
            return
        self.references.append(found.reference_us)
        race.observe(choices, self._by_task(found.seconds), resolved=self.resolved)

    def _convict(self, race: Race, choices: np.ndarray) -> None:
        """Contenders that lose the child among defaults as well are out of the race.

        Raises: ChildLostError if the defaults alone do.
        """
        self._close()
        self._run(np.zeros((1, self._tasks), np.int64))
        for task in range(self._tasks):
            for contender in sorted({int(c) for c in choices[:, task]} - {0}):
                alone = np.zeros((1, self._tasks), np.int64)
                alone[0, task] = contender
                try:
                    self._run(alone)
                except ChildLostError:
                    self._close()
                    race.disqualify(task, contender)

    def _run(self, choices: np.ndarray) -> Passes:
        """int [passes, tasks]; slots of other tasks have one contender."""
        wide = np.concatenate([choices, np.zeros((len(choices), 1), np.int64)], axis=1)
        found = self._opened().run(wide[:, self._task_of])
        self.count += len(choices)
        return found

    def _by_task(self, seconds: np.ndarray) -> np.ndarray:
        """Seconds of all slots of each task; of the network where that is all that is known."""
        if not self.resolved:
            return seconds
        total = np.zeros((self._tasks + 1, len(seconds)))
        np.add.at(total, self._task_of, seconds.T)
        return total[:-1].T

    def _opened(self) -> ContestChild:
        if self._child is None:
            self._child = ContestChild(self._device, self._plan)
        return self._child

    def _close(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()


def _recorded(
    session: Session,
    model_key: str,
    finalists: Mapping[str, Sequence[Finalist]],
    raced: Raced,
) -> dict[str, list[TuningRecord | None]]:
    """A record of each contender: of its times in place, or where these are not known its own."""
    records = {key: [f.record for f in found] for key, found in finalists.items()}
    if not raced.resolved:
        return records
    weights = {run.task.key: run.task.weight for run in session.runs}
    measured = [
        (key, place, _measurement(samples, weights[key], raced.reference_us))
        for key, every in raced.samples.items()
        for place, samples in enumerate(every)
        if samples
    ]
    rows = [(key, finalists[key][place].candidate, m) for key, place, m in measured]
    for (key, place, _), record in zip(
        measured, session.record_in_place(model_key, rows), strict=True
    ):
        records[key][place] = record
    return records


def _time_us(record: TuningRecord | None, raced: Raced) -> float | None:
    """Of one call in place, if it was timed there."""
    return record.measurement.median_us if record and raced.resolved else None


def _measurement(samples: Sequence[float], weight: int, reference_us: float) -> Measurement:
    """Times of one call of a task that the network calls `weight` times in a pass."""
    return succeeded(
        [1e6 * seconds / weight for seconds in samples],
        max_abs_err=None,
        reference_us=reference_us,
        build_s=0.0,
        run_s=sum(samples),
    )

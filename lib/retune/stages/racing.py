"""Finalists of all tasks, raced inside the network: who is fastest where it will run?

Read `race_finalists`. A task's default schedule is always a contender, so a winner is faster than
it, in place and in the same passes, or it is the default.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from retune.bundle.build import ContestPlan, build_contest
from retune.bundle.racer import ContestChild, Passes
from retune.core.errors import DeviceError
from retune.device.child import ChildLostError
from retune.records.schema import Measurement, TuningRecord, succeeded
from retune.schedule.estimate import default_candidate
from retune.schedule.space import Candidate
from retune.search.extract import Network
from retune.search.history import best_candidates
from retune.search.race import Race
from retune.search.session import Session

_LOG = logging.getLogger("retune.stages")

MOST = 8
"""Contenders of a task at most, beside its default schedule. No search time is so good that it
shuts out the next ones: it may be a lucky one."""
_BUILD_SHARE = 0.6
"""Of the time for the race, what building all contenders may take; the best one of each task and
its default are built whatever it takes."""
_MEMORY_SHARE = 4
"""Constants of all contenders take one in so many bytes of the device at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """A contender: the default schedule where it has no record."""

    candidate: Candidate
    record: TuningRecord | None

    @property
    def build_s(self) -> float:
        """Seconds that building it took when it was measured."""
        return self.record.measurement.build_s if self.record else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """The contender of a task that was fastest in place."""

    task_key: str
    record: TuningRecord | None
    """None: the default schedule, of which no record is known."""
    is_default: bool
    time_us: float | None
    """Of one run of the task in its network; None where only whole passes are timed."""
    default_us: float | None
    """The same of the default schedule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a race came to."""

    winners: tuple[Winner, ...] = ()
    measured: int = 0
    """Passes of the network."""


def race_finalists(
    session: Session,
    network: Network,
    device: str,
    budget_s: float,
    time_left: Callable[[], bool],
) -> Outcome:
    """The winner of each tuned task; every contender's times in place are records afterwards.

    At least one round of passes runs; further ones while `time_left`. No winners where the
    network with its finalists cannot run: a line in the log says why.
    """
    finalists = choose_finalists(session, budget_s)
    if not finalists:
        return Outcome()
    chosen = {key: [f.candidate for f in found] for key, found in finalists.items()}
    settings, spec = session.settings, session.runner.spec
    plan = build_contest(network, chosen, spec, model_key=settings.run_id, notes={})
    race = _InPlace(device, plan, {key: len(found) for key, found in finalists.items()})
    try:
        race.run(settings.seed, time_left)
    except (ChildLostError, DeviceError) as error:
        _LOG.warning("finalists are not raced in their network: %s", error)
        return Outcome()
    finally:
        race.close()
    return _recorded(session, finalists, race)


def choose_finalists(session: Session, budget_s: float) -> dict[str, list[Finalist]]:
    """The default schedule and the fastest known candidates of each task, heaviest task first.

    Breadth first: the best of each task, then the second best of each, as long as building them
    takes no more than its share of `budget_s`.
    """
    known = {run.task.key: _known(session, run.task.key) for run in session.runs}
    known = {key: found for key, found in known.items() if len(found) > 1}
    weights = {run.task.key: run.task.weight * (run.best_us or 0.0) for run in session.runs}
    order = sorted(known, key=lambda key: (-weights[key], key))
    constants = {run.task.key: run.task.weight * run.task.constant_bytes for run in session.runs}
    left_s = _BUILD_SHARE * budget_s
    left_bytes = session.runner.spec.global_memory_bytes // _MEMORY_SHARE
    chosen = {key: known[key][:1] for key in order}
    for place in range(1, 1 + MOST):
        for key in order:
            if place >= len(known[key]):
                continue
            entry = known[key][place]
            left_s -= entry.build_s
            left_bytes -= constants[key]
            if place == 1 or (left_s > 0 and left_bytes > 0):
                chosen[key].append(entry)
    return chosen


def _known(session: Session, task_key: str) -> list[Finalist]:
    """The default schedule first, then the fastest known candidates."""
    spec = session.runner.spec
    (space,) = (run.space for run in session.runs if run.task.key == task_key)
    default = default_candidate(space, spec)
    best = best_candidates(session.store, task_key, spec.fingerprint, space, 1 + MOST)
    records = {candidate: record for candidate, record in best}
    others = [Finalist(candidate=c, record=r) for c, r in best if c != default]
    return [Finalist(candidate=default, record=records.get(default)), *others[:MOST]]


class _InPlace:
    """A race on a device: passes by a child that is replaced when it is lost."""

    def __init__(self, device: str, plan: ContestPlan, counts: Mapping[str, int]) -> None:
        self.tasks = list(counts)
        self.samples: Sequence[Sequence[Sequence[float]]] = ()
        self.leaders = np.zeros(0, np.int64)
        self.resolved = False
        self.passes = 0
        self.references: list[float] = []
        self._counts = list(counts.values())
        self._device = device
        self._plan = plan
        self._child: ContestChild | None = None
        self._places = np.array(
            [self.tasks.index(s.task_key) if s.task_key in counts else -1 for s in plan.slots],
            np.int64,
        )

    def run(self, seed: int, time_left: Callable[[], bool]) -> None:
        """Rounds of passes until it is decided or no time is left; at least one."""
        self.resolved = self._opened().resolved
        race = Race(self._counts, resolved=self.resolved, rng=np.random.default_rng(seed))
        going = True
        while going and not race.decided:
            for choices in race.turns():
                self._observe(race, choices)
                going = time_left()
                if not going:
                    break
        self.samples, self.leaders = race.samples, race.leaders

    def close(self) -> None:
        """Ends the child."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def _observe(self, race: Race, choices: np.ndarray) -> None:
        """One part of a round. Where the child is lost, each contender is tried again alone."""
        try:
            found = self._passes(choices)
        except ChildLostError as lost:
            _LOG.warning("a pass of the finalists was lost (%s); each is tried alone", lost)
            self._convict(race, choices)
            return
        self.references.append(found.reference_us)
        race.observe(choices, self._by_task(found.seconds))

    def _convict(self, race: Race, choices: np.ndarray) -> None:
        """Contenders that lose the child among defaults as well are out of the race.

        Raises: ChildLostError if the defaults alone do.
        """
        self.close()
        self._passes(np.zeros((1, len(self.tasks)), np.int64))
        for task in range(len(self.tasks)):
            for contender in sorted({int(c) for c in choices[:, task]} - {0}):
                alone = np.zeros((1, len(self.tasks)), np.int64)
                alone[0, task] = contender
                try:
                    self._passes(alone)
                except ChildLostError:
                    self.close()
                    race.disqualify(task, contender)

    def _passes(self, choices: np.ndarray) -> Passes:
        """int [passes, tasks]; slots of other tasks have one contender."""
        widened = np.concatenate([choices, np.zeros((len(choices), 1), np.int64)], axis=1)
        found = self._opened().run(widened[:, self._places])
        self.passes += len(choices)
        return found

    def _opened(self) -> ContestChild:
        if self._child is None:
            self._child = ContestChild(self._device, self._plan)
        return self._child

    def _by_task(self, seconds: np.ndarray) -> np.ndarray:
        """Seconds of all slots of each task; of the network where that is all that is known."""
        if not self.resolved:
            return seconds
        total = np.zeros((len(seconds), len(self.tasks) + 1))
        np.add.at(total.T, self._places, seconds.T)
        return total[:, :-1]


def _recorded(
    session: Session, finalists: Mapping[str, Sequence[Finalist]], race: _InPlace
) -> Outcome:
    """The winners; a task's samples, divided by its weight, become a record of each contender."""
    weights = {run.task.key: run.task.weight for run in session.runs}
    winners: list[Winner] = []
    rows: list[TuningRecord] = []
    for key, samples, leader in zip(race.tasks, race.samples, race.leaders, strict=True):
        made: list[TuningRecord | None] = [f.record for f in finalists[key]]
        if race.resolved:
            measured = [_measurement(s, weights[key], race.references) for s in samples]
            made = [
                session.record_in_place(key, f.candidate, m) if m else f.record
                for f, m in zip(finalists[key], measured, strict=True)
            ]
            rows += [record for record, m in zip(made, measured, strict=True) if record and m]
        winners.append(
            Winner(
                task_key=key,
                record=made[leader],
                is_default=leader == 0,
                time_us=_median_us(made[leader]) if race.resolved else None,
                default_us=_median_us(made[0]) if race.resolved else None,
            )
        )
    if rows:
        session.store.append(rows)
    return Outcome(winners=tuple(winners), measured=race.passes)


def _median_us(record: TuningRecord | None) -> float | None:
    return record.measurement.median_us if record else None


def _measurement(
    samples: Sequence[float], weight: int, references: Sequence[float]
) -> Measurement | None:
    """The times of one call; None of a contender that never ran."""
    if not samples:
        return None
    return succeeded(
        [1e6 * s / weight for s in samples],
        max_abs_err=None,
        reference_us=float(np.median(references)),
        build_s=0.0,
        run_s=2.0 * sum(samples),
    )

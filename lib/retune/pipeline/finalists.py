"""Finalists of all tasks, compared inside the network: which is the fastest where it will run?

Read `compare_finalists`. A task's default schedule is always a finalist, so a winner is faster than
it, in the network and in the same iterations, or it is the default. Where all winners together
save too little for certain, no bundle of them is made.
"""

import logging
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Self

import numpy as np

from retune.bundle.build import FinalistsPlan, build_finalists
from retune.bundle.verify.in_network_child import FinalistsChild, Iterations
from retune.bundle.weights import save_weights
from retune.core.errors import DeviceError
from retune.core.layouts import ALL_NHWC, LayoutAssignment
from retune.core.stopwatch import Stopwatch
from retune.core.target import DeviceSpec
from retune.device.measure.child import ChildLostError
from retune.device.opening import unraced
from retune.pipeline.manifest import BestRecord, Constraints, ImportManifest
from retune.pipeline.network import open_network
from retune.pipeline.request import TuneRequest
from retune.pipeline.selection import best_record, network_context
from retune.pipeline.watch import stopping
from retune.records.schema import Measurement, TuningRecord, succeeded
from retune.schedule.space import Candidate
from retune.search.comparison import QUANTILE, FinalistComparison
from retune.search.expectation import SURE
from retune.search.extract import Network
from retune.search.history import best_candidates
from retune.search.layout.assignment import with_layouts
from retune.search.layout.trials import best_in_layouts
from retune.search.session import Session
from retune.search.task import Task
from retune.search.task_run import TaskRun
from retune.targets.cost.estimate import default_candidate

_LOG = logging.getLogger("retune.pipeline")

MOST = 8
"""Finalists of a task at most, beside its default schedule. No search time is so good that it
shuts out the next ones: it may be a lucky one."""
_BUILD_SHARE = 0.6
"""Of the time for the comparison, what building all finalists may take; the best one of each task
and its default are built whatever it takes, and iterations have the rest of the time in any case:
compilers differ by ten times in what they take."""
_LEAST_ROUNDS = 6
"""Rounds of iterations, whatever they take: fewer tell nothing apart."""
_KNOWN_ROUNDS = 12
"""Rounds after which the interval of what the leaders save is believed: from fewer, each half of
the samples has a lower quartile of two or three."""
_MOST_WAITED = 0.4
"""Part of the time that threads may wait for cores. A finalist's lower quartile stands for it, and
is wrong where three of four of its samples were disturbed."""
_MEMORY_SHARE = 8
"""Constants of all finalists take one in so many bytes of the device at most: PoCL allocates no
more than a quarter at once, rounded down to a power of two."""

Finalist = tuple[Candidate, TuningRecord | None]
"""A candidate and its record; None for a default schedule that was never measured."""


def compare_finalists(
    request: TuneRequest,
    network: ImportManifest,
    session: Session,
    budget_s: float,
    layouts: LayoutAssignment = ALL_NHWC,
    without: Collection[str] = (),
) -> Constraints:
    """The winner of each tuned task but those `without`, in these layouts;
    every finalist's times in the network are records afterwards.

    It takes about `budget_s`, see `compare_in_network`. Where the winners save less than the
    request's least gain, beyond noise, all tasks keep their default schedules. Nothing is compared
    on simulated devices and boards of a farm, or where the network with its finalists cannot run:
    the log says why. On boards the records that the layouts were planned by are the winners.
    """
    planned = _planned(request, session, layouts)
    if why := unraced(request.device):
        _LOG.info("%s: finalists are chosen by their records", why)
        winners = tuple(best_record(r) for key, (_, r) in planned.items() if key not in without)
        return Constraints(uncompared=why, winners=winners)
    network_now = open_network(request).network
    place = network_context(network.model_key, layouts)
    finalists = choose_finalists(session, budget_s, without, planned, place)
    if not finalists:
        return Constraints(uncompared="nothing but default schedules is known")
    candidates = {key: [candidate for candidate, _ in found] for key, found in finalists.items()}
    assigned = with_layouts(network_now, layouts)
    least = request.least_gain if not planned else 0.0  # of layouts, bundles show what they gain
    given = session.spec, request.device, request.seed, budget_s, least
    try:
        compared = compare_in_network(assigned, candidates, *given)
    except ProcessorBusy as error:
        _LOG.warning("finalists are not compared in their network: %s", error)
        return Constraints(uncompared="other programs use the processor")
    except DeviceError as error:
        _LOG.warning("finalists are not compared in their network: %s", error)
        return Constraints(uncompared="the network cannot run with its finalists")
    if compared.saved[1] >= least:
        return _winners(session, place, finalists, compared)
    no_leaders = replace(compared, leaders=dict.fromkeys(compared.leaders, 0))
    found = _winners(session, place, finalists, no_leaders)  # they know their times in the network
    every = tuple(run.task.key for run in session.runs)
    return replace(found, defaults=every)


def _planned(
    request: TuneRequest, session: Session, layouts: LayoutAssignment
) -> dict[str, tuple[Candidate, TuningRecord]]:
    """By task, what the layouts were planned by; none where all activations are in NHWC."""
    if layouts == ALL_NHWC:
        return {}
    network = open_network(request).network
    return best_in_layouts(network, layouts, session.store, session.conditions, session.spec)


def choose_finalists(
    session: Session,
    budget_s: float,
    without: Collection[str] = (),
    planned: Mapping[str, tuple[Candidate, TuningRecord]] = MappingProxyType({}),
    place: str = "",
) -> dict[str, list[Finalist]]:
    """The default schedule, what is the fastest in the planned layouts, what was the fastest
    at that `place` before, and the fastest candidates of each task, heaviest task first.

    Breadth first: the best of each task, then the second best of each, as long as building them
    takes no more than its share of `budget_s`, and their constants fit into one allocation.
    """
    runs = {run.task.key: run for run in session.runs}
    known = {
        key: _known(session, run, planned.get(key), place)
        for key, run in runs.items()
        if key not in without
    }
    known = {key: found for key, found in known.items() if len(found) > 1}
    weights = {key: run.task.weight * (run.best_us or 0.0) for key, run in runs.items()}
    order = sorted(known, key=lambda key: (-weights[key], key))
    left_s = _BUILD_SHARE * budget_s
    left_bytes = session.spec.global_memory_bytes // _MEMORY_SHARE
    left_bytes -= sum(run.task.weight * run.task.constant_bytes for run in runs.values())
    chosen = {key: known[key][:1] for key in order}
    for rank in range(1, 1 + MOST):
        for key in order:
            if rank >= len(known[key]):
                continue
            entry, task = known[key][rank], runs[key].task
            build_s = entry[1].measurement.build_s if entry[1] else 0.0
            held = task.weight * _held_bytes(task, entry[1])
            if held <= left_bytes and (rank == 1 or build_s < left_s):
                chosen[key].append(entry)
                left_s -= build_s
                left_bytes -= held
    return {key: found for key, found in chosen.items() if len(found) > 1}


def _held_bytes(task: Task, record: TuningRecord | None) -> int:
    """What a finalist's constants take at most: with its other buffers, if that is recorded."""
    known = record.bytes if record and task.constant_bytes else None
    return task.constant_bytes if known is None else known


def _known(
    session: Session, run: TaskRun, planned: tuple[Candidate, TuningRecord] | None, place: str
) -> list[Finalist]:
    """The default schedule, the fastest candidates in the planned layouts and in the network, then
    others."""
    alone, key = session.conditions, run.task.key
    default = default_candidate(run.space, session.spec)
    found = best_candidates(session.store, key, alone.comparable, run.space, 1 + MOST)
    there = replace(alone, place=place or alone.place).comparable
    before = best_candidates(
        session.store, key, there, run.space.whole if planned else run.space, 1
    )
    new = planned and planned[0] not in (default, *dict(found))
    first = ([planned] if planned and new else []) + before
    records = dict([*first, *found])  # a record alone says what building took
    others = [(c, r) for c, r in records.items() if c != default]
    return [(default, records.get(default)), *others[:MOST]]


class ProcessorBusy(DeviceError):
    """Times in a network cannot be had while other programs use the processor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InNetwork:
    """What a comparison in a network came to, by task."""

    resolved: bool
    """True: samples are seconds of the task, all its calls together; False: of the network."""
    leaders: Mapping[str, int]
    samples: Mapping[str, Sequence[Sequence[float]]]
    """Of each finalist, in order."""
    iterations: int
    reference_us: float
    """Of the calibration kernel around the iterations, in the middle."""
    saved: tuple[float, float] = (0.0, 1.0)
    """Part of the network's time that the leaders save: the ends of the 95 % interval. From 0 to 1
    where it is not known."""


def compare_in_network(
    network: Network,
    finalists: Mapping[str, Sequence[Candidate]],
    spec: DeviceSpec,
    device: str,
    seed: int,
    budget_s: float,
    least_gain: float = 0.0,
) -> InNetwork:
    """The comparison of these finalists, the default schedule first.

    It takes `budget_s`, or less if it is decided before, or more by what building the network takes
    beyond its share; a few rounds at least. It ends early when those who watch wish it so, and
    where the 95 % interval of what the leaders save excludes the `least_gain` of the network.
    Raises: DeviceError where the network with all of them cannot be run, or is simulated;
    ProcessorBusy where other programs have the cores for too long for times to mean anything.
    """
    if why := unraced(device):
        raise DeviceError(f"{why}: finalists are chosen by their records")
    comparison = FinalistComparison(
        [len(found) for found in finalists.values()], np.random.default_rng(seed)
    )
    stopwatch = Stopwatch()
    began = stopwatch()
    with (
        stopwatch.counting(),
        _stored(build_finalists(network, finalists, spec, model_key="", notes={})) as stored,
        _Network(device, *stored, list(finalists)) as iterations,
    ):
        resolved = iterations.resolved  # it is built now
        end = max(began + budget_s, stopwatch() + (1.0 - _BUILD_SHARE) * budget_s)

        def goes_on() -> bool:
            may = stopwatch() < end and not stopping() and iterations.waited <= _MOST_WAITED
            return may and iterations.saved(comparison)[1] >= least_gain

        while not comparison.decided and (iterations.rounds < _LEAST_ROUNDS or goes_on()):
            iterations.round(comparison)
        if (waited := iterations.waited) > _MOST_WAITED:
            raise ProcessorBusy(
                f"other programs use the processor: threads waited for {waited:.0%} of the time"
            )
        return InNetwork(
            resolved=resolved,
            leaders=dict(zip(finalists, comparison.leaders.tolist(), strict=True)),
            samples=dict(zip(finalists, comparison.samples, strict=True)),
            iterations=iterations.count,
            reference_us=float(np.median(iterations.references)) if iterations.references else 0.0,
            saved=iterations.saved(comparison),
        )


@contextmanager
def _stored(plan: FinalistsPlan) -> Generator[tuple[FinalistsPlan, Path]]:
    """The plan without its weights, and the file that holds them for the time of the context."""
    with TemporaryDirectory(prefix="retune-") as folder:
        file = Path(folder) / "weights"
        save_weights(plan.plan.weights, file)
        plan = replace(plan, plan=replace(plan.plan, weights={}))
        yield plan, file


class _Network:
    """Iterations of a network by a child that is replaced when it is lost."""

    def __init__(
        self, device: str, plan: FinalistsPlan, weights: Path, tasks: Sequence[str]
    ) -> None:
        self.references: list[float] = []
        self._seconds: list[np.ndarray] = []
        """Of each slot, or of the network where that is all that is known, by iteration."""
        self._waited: list[float] = []
        self.rounds = 0
        self.count = 0
        self._device = device
        self._plan = plan
        self._weights = weights
        self._tasks = len(tasks)
        self._child: FinalistsChild | None = None
        numbers = {key: number for number, key in enumerate(tasks)}
        self._task_of = np.array(
            [numbers.get(slot.task_key, self._tasks) for slot in plan.slots], np.int64
        )
        """Of each slot; one more than there are for those of other tasks."""

    @property
    def resolved(self) -> bool:
        """Whether an iteration gives the time of each task."""
        return self._opened().resolved

    @property
    def waited(self) -> float:
        """Part of the time that a thread waited for cores, of the parts of rounds in the middle."""
        return median(self._waited or [0.0])

    def saved(self, comparison: FinalistComparison) -> tuple[float, float]:
        """As `InNetwork.saved`."""
        if self.rounds < _KNOWN_ROUNDS or not self._seconds:
            return 0.0, 1.0
        saved, error = comparison.saved
        usual = np.quantile(np.stack(self._seconds), QUANTILE, axis=0)  # as it stands for finalists
        least, most = (max(0.0, saved + sign * SURE * error) for sign in (-1, 1))
        return least / float(usual.sum()), most / float(usual.sum())

    def round(self, comparison: FinalistComparison) -> None:
        """One round of the comparison."""
        for choices in comparison.round(resolved=self.resolved):
            self.observe(comparison, choices)
        self.rounds += 1

    def observe(self, comparison: FinalistComparison, choices: np.ndarray) -> None:
        """One part of a round. Where the child is lost, each finalist is tried again alone."""
        try:
            found = self._run(choices)
        except ChildLostError as lost:
            _LOG.warning("an iteration of the finalists was lost (%s); each is tried alone", lost)
            self._eliminate(comparison, choices)
            return
        self.references.append(found.reference_us)
        self._waited.append(found.waited)
        self._seconds += [*found.seconds]
        comparison.observe(choices, self._by_task(found.seconds), resolved=self.resolved)

    def _eliminate(self, comparison: FinalistComparison, choices: np.ndarray) -> None:
        """Finalists that lose the child among defaults as well cannot win.

        Raises: ChildLostError if the defaults alone do.
        """
        self._close()
        self._run(np.zeros((1, self._tasks), np.int64))
        for task in range(self._tasks):
            for finalist in sorted({int(c) for c in choices[:, task]} - {0}):
                alone = np.zeros((1, self._tasks), np.int64)
                alone[0, task] = finalist
                try:
                    self._run(alone)
                except ChildLostError:
                    self._close()
                    comparison.eliminate(task, finalist)

    def _run(self, choices: np.ndarray) -> Iterations:
        """int [iterations, tasks]; slots of other tasks have one finalist."""
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

    def _opened(self) -> FinalistsChild:
        if self._child is None:
            self._child = FinalistsChild(self._device, self._plan, self._weights)
        return self._child

    def _close(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()


def _winners(
    session: Session,
    place: str,
    finalists: Mapping[str, Sequence[Finalist]],
    compared: InNetwork,
) -> Constraints:
    """The leaders by their records: of times in the network, or where these are not known alone.

    A leader without a record is a default schedule.
    """
    records = {
        (key, rank): record
        for key, found in finalists.items()
        for rank, (_, record) in enumerate(found)
    }
    if compared.resolved:
        records |= _recorded(session, place, finalists, compared)
    winners: list[BestRecord] = []
    for key, leader in compared.leaders.items():
        record, default = records[key, leader], records[key, 0]
        if record is not None:
            timed = default if compared.resolved else None
            default_us = timed.measurement.median_us if timed else None
            winners.append(replace(best_record(record), default_us=default_us))
    named = {winner.task_key for winner in winners}
    return Constraints(
        winners=tuple(winners),
        defaults=tuple(key for key in compared.leaders if key not in named),
        iterations=compared.iterations,
        saved=compared.saved,
    )


def _recorded(
    session: Session,
    place: str,
    finalists: Mapping[str, Sequence[Finalist]],
    compared: InNetwork,
) -> dict[tuple[str, int], TuningRecord]:
    """A record of the times of each finalist in the network that was timed."""
    weights = {run.task.key: run.task.weight for run in session.runs}
    measured = {
        (key, rank): _measurement(samples, weights[key], compared.reference_us)
        for key, every in compared.samples.items()
        for rank, samples in enumerate(every)
        if samples
    }
    rows = [(key, finalists[key][rank][0], m) for (key, rank), m in measured.items()]
    return dict(zip(measured, session.record_in_place(place, rows), strict=True))


def _measurement(samples: Sequence[float], weight: int, reference_us: float) -> Measurement:
    """Times of one call of a task that the network calls `weight` times in an iteration."""
    return succeeded(
        [1e6 * seconds / weight for seconds in samples],
        max_abs_err=None,
        reference_us=reference_us,
        build_s=0.0,
        run_s=sum(samples),
    )

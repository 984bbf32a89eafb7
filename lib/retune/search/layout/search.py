"""The layouts of a network, found by measuring: which kernels are worth trying in which layouts.

Kernels that the search found in NHWC are measured with all their activations in another layout, the
heaviest ones first. Mixed layouts and copies are measured only where the plan would use them if
they took as little as one may hope for: no other ones can be part of a better plan, unless that
hope is too small. What the cheapest plan would use is measured more closely, and so is the same in
NHWC: no plan should stand on one disturbed measurement. That ends when the plan stays as it is or
the budget is spent. Read `LayoutSearch.run`.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from math import inf

import numpy as np

from retune.core.layouts import NHWC, ActivationLayout, IOLayouts, LayoutAssignment
from retune.core.target import DeviceSpec
from retune.records.conditions import Conditions
from retune.records.cost import COST_COLUMNS, NOMINAL_US, recorded_costs
from retune.records.store import RecordStore
from retune.schedule.space import Candidate
from retune.search.extract import Network
from retune.search.history import best_candidates
from retune.search.layout.choices import LayoutChoices, Measured, choices_of
from retune.search.layout.problem import LayoutProblem
from retune.search.layout.solver import Solution
from retune.search.layout.trials import LayoutTrials, blocked_candidates, conditions_in
from retune.search.session import Session
from retune.targets.cost.estimate import default_candidate

MOST = 4
"""Measurements of a kernel in layouts that the plan would use, and of it in NHWC."""
MORE = 2
"""As many more where there are schedules for these layouts alone: half of all are of such then."""

DOUBT = 0.02
"""Of times in other layouts than NHWC: each is the best of several, some too good by chance, and a
plan has to be faster than NHWC beyond that. By `benchmarks.layouts`, plans that gained less were as
often slower."""

HOPE = 0.9
"""Part of a kernel's least time in any layouts that it is hoped to take in those not yet tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLayouts:
    """What the search for layouts came to."""

    problem: LayoutProblem
    layouts: LayoutAssignment
    solution: Solution
    trials: int = 0
    """Candidates measured for it."""
    unused: int = 0
    """Of these, in other layouts than NHWC that the plan does not use."""
    untried: int = 0
    """Kernels and copies that a better plan may use, and that the budget left no time for."""


@dataclass(frozen=True, slots=True)
class KnownTime:
    """What a store knows of a task in some layouts."""

    us: float
    """The least that a right candidate took, drift removed."""
    count: int
    """Measurements of right candidates."""


Known = Mapping[Measured, KnownTime]


def recorded_times(
    store: RecordStore,
    conditions: Conditions,
    tasks: Collection[str],
    layouts: Iterable[IOLayouts],
) -> dict[Measured, KnownTime]:
    """What a store knows of these tasks in these layouts."""
    keys = {conditions_in(conditions, io).key: io for io in layouts}
    wanted = {"device": conditions.device, "conditions": [*keys, None], "status": "ok"}
    columns = [*COST_COLUMNS, "task_key", "conditions"]
    rows = store.scan({**wanted, "task_key": sorted(tasks)}, columns)
    costs = recorded_costs(rows)[1] * _drift(rows["calm_us"].to_numpy(float, na_value=np.nan))
    found: defaultdict[Measured, list[float]] = defaultdict(list)
    named = rows["conditions"].to_numpy(object, na_value=None)  # pyrefly: ignore[no-matching-overload]
    for task, name, cost in zip(rows["task_key"], named, costs.tolist(), strict=True):
        found[str(task), keys[name] if name else IOLayouts()].append(cost)
    return {key: KnownTime(min(some), len(some)) for key, some in found.items()}


def known_times(
    choices: LayoutChoices, store: RecordStore, conditions: Conditions
) -> dict[Measured, KnownTime]:
    """What a store knows of all that there is to choose."""
    layouts = dict.fromkeys([IOLayouts(), *(io for _, io in (*choices.computing, *choices.copies))])
    return recorded_times(store, conditions, choices.tasks.keys(), layouts)


def problem_of(choices: LayoutChoices, known: Known) -> LayoutProblem:
    """The choices that these times leave; kernels that are not in NHWC count with some doubt."""
    least = {key: found.us for key, found in known.items()}
    return LayoutProblem.of(choices, least.get, DOUBT)


def hoped(
    choices: LayoutChoices, known: Known, tried: Collection[Measured]
) -> dict[Measured, KnownTime]:
    """The times, and for what is open the least that it may be hoped to take.

    A kernel takes `HOPE` of its least time, a copy as long as the fastest known one of as many
    bytes. Nothing is hoped of what was `tried` in vain, or of a kernel never measured.
    """
    least: defaultdict[str, float] = defaultdict(lambda: inf)
    for (task, _), found in known.items():
        least[task] = min(found.us, least[task])
    sizes = {key: choices.tasks[key[0]].least_bytes for key in choices.copies}
    per_byte = min(
        (known[key].us / size for key, size in sizes.items() if key in known), default=0.0
    )
    hopes = {key: HOPE * least[key[0]] for key in choices.computing if key not in choices.nhwc}
    hopes |= {key: size * per_byte for key, size in sizes.items()}
    open_ = {key: KnownTime(us, 0) for key, us in hopes.items() if us < inf and key not in tried}
    return {**open_, **known}


def recorded_layouts(
    network: Network, spec: DeviceSpec, store: RecordStore, conditions: Conditions
) -> FoundLayouts | None:
    """The layouts that take the least time by what a store knows; nothing is measured.

    None where no kernel was measured in another layout than NHWC.
    """
    choices = choices_of(network, spec)
    problem = problem_of(choices, known_times(choices, store, conditions))
    if not problem.measured:
        return None
    layouts, solution = problem.solved()
    return FoundLayouts(problem=problem, layouts=layouts, solution=solution)


class LayoutSearch:
    """Finds the layouts of a network on the device of a session whose searches have ended."""

    def __init__(self, session: Session, network: Network) -> None:
        self._session = session
        self._choices = choices_of(network, session.spec)
        self._trials = LayoutTrials(session)
        self._candidates: dict[str, list[Candidate]] = {}
        self._blocked: dict[Measured, list[Candidate]] = {}
        self._tried: Counter[Measured] = Counter()
        self._before: dict[Measured, int] = {}
        """Measurements that were known before this search."""

    def run(self, may_go_on: Callable[[int], bool]) -> FoundLayouts:
        """The cheapest plan by what was measured; nothing is begun once `may_go_on` says no, which
        is told how many candidates were measured. Every measurement is in the store.
        """
        self._measure_all(self._first(self._start()), may_go_on)
        while True:
            known = self._known_now()
            problem = problem_of(self._choices, known)
            layouts, solution = problem.solved()
            used = self._used(problem, layouts)
            wanted = self._open(known) or self._wanted(used.difference(self._choices.copies))
            if not wanted or not may_go_on(self._trials.count):
                break
            self._measure_all(sorted(wanted), may_go_on)
        vain = [key for key in self._tried if key not in used and not key[1].is_nhwc]
        return FoundLayouts(
            problem=problem,
            layouts=layouts,
            solution=solution,
            trials=self._trials.count,
            unused=sum(self._tried[key] for key in vain),
            untried=len(self._open(known)),
        )

    def measure(self, layouts: LayoutAssignment, may_go_on: Callable[[int], bool]) -> int:
        """Kernels in layouts that stand, each as often as those of a plan.

        Every measurement is in the store; gives their number.
        """
        self._start()
        chosen = self._kernels_in(layouts)
        while wanted := sorted(key for key in chosen if self._done(key) < self._most(key)):
            if not may_go_on(self._trials.count):
                break
            self._measure_all(wanted, may_go_on)
        return self._trials.count

    def _start(self) -> dict[Measured, KnownTime]:
        """What is known at first; and the candidates of all tasks: the best known ones in NHWC, or
        else the default schedule. A store is slow to ask once it has many files."""
        session, where = self._session, self._session.conditions.comparable
        recorded = {str(key) for key in session.store.scan(dict(where), ["task_key"])["task_key"]}
        for key, task in self._choices.tasks.items():
            space = task.space(session.spec)
            best = (
                best_candidates(session.store, key, where, space, MOST) if key in recorded else []
            )
            found = [candidate for candidate, _ in best]
            self._candidates[key] = found or [default_candidate(space, session.spec)]
        known = self._known_now()
        self._before = {key: found.count for key, found in known.items()}
        return known

    def _known_now(self) -> dict[Measured, KnownTime]:
        return known_times(self._choices, self._session.store, self._session.conditions)

    def _first(self, known: Known) -> list[Measured]:
        """What nothing is known of: each task in NHWC, then with all its activations that may have
        another layout in that; the heaviest first."""
        nhwc, unknown = self._choices.nhwc, list[Measured]()
        for task, some in self._choices.of_tasks.items():
            others = {layout for io in some for layout in _blocked_layouts(io)}
            first = {(task, io) for io in some if (task, io) in nhwc or io.is_nhwc}
            for one in others:
                alike = [io for io in some if _blocked_layouts(io) == {one}]
                if alike:
                    first.add((task, max(alike, key=lambda io: str(io).count(one))))
            unknown += [key for key in first if key not in known]

        def order(key: Measured) -> tuple[bool, float, Measured]:
            task, found = self._choices.tasks[key[0]], known.get((key[0], IOLayouts()))
            return key not in nhwc, -task.weight * found.us if found else 0.0, key

        return sorted(unknown, key=order)

    def _open(self, known: Known) -> set[Measured]:
        """What was never tried, and a plan would use if it took as little as is hoped."""
        hopeful = hoped(self._choices, known, self._tried.keys())
        if len(hopeful) == len(known):
            return set()
        problem = problem_of(self._choices, hopeful)
        used = self._used(problem, problem.solved()[0])
        return {key for key in used if key in hopeful and key not in known}

    def _used(self, problem: LayoutProblem, layouts: LayoutAssignment) -> set[Measured]:
        """The kernels that are not in NHWC, and the copies."""
        copies = (problem.copies(value, kept) for value, kept in layouts.activations.items())
        return self._kernels_in(layouts).union(*copies)

    def _kernels_in(self, layouts: LayoutAssignment) -> set[Measured]:
        kernels = (k for k in self._choices.kernels if k.label in layouts.kernels)
        return {kernel.measured(layouts.kernels[kernel.label]) for kernel in kernels}

    def _wanted(self, kernels: set[Measured]) -> set[Measured]:
        """Those of a plan's kernels, and of the same in NHWC, that were measured too seldom."""
        most = {key: self._most(key) for key in kernels}
        of_task: Counter[str] = Counter()
        for (task, _), times in most.items():
            of_task[task] = max(times, of_task[task])
        most |= {key: of_task[key[0]] for key in self._choices.nhwc}
        return {key for key, times in most.items() if self._done(key) < times}

    def _most(self, key: Measured) -> int:
        return MOST + MORE if self._blocked_for(key) else MOST

    def _done(self, key: Measured) -> int:
        return self._before.get(key, 0) + self._tried[key]

    def _measure_all(self, keys: Sequence[Measured], may_go_on: Callable[[int], bool]) -> None:
        for key in keys:
            if may_go_on(self._trials.count):
                both = self._blocked_for(key) and may_go_on(self._trials.count + 1)
                self._measure(key, 2 if both else 1)

    def _measure(self, key: Measured, count: int) -> None:
        """So many more candidates in these layouts, or some of them again; built side by side."""
        candidates, blocked = self._candidates[key[0]], self._blocked_for(key)
        if blocked:  # in turns
            rounds = range(max(len(candidates), len(blocked)))
            pairs = zip(cycle(candidates), cycle(blocked), rounds)
            candidates = [one for a, b, _ in pairs for one in (a, b)]
        begin = self._done(key)
        batch = [candidates[n % len(candidates)] for n in range(begin, begin + count)]
        self._tried[key] += count
        self._trials.measure(self._choices.tasks[key[0]], key[1], batch)

    def _blocked_for(self, key: Measured) -> list[Candidate]:
        """Schedules for these layouts, and for no others."""
        if key not in self._blocked:
            task, spec = self._choices.tasks[key[0]], self._session.spec
            found = blocked_candidates(task, key[1], spec, MOST) if task.tunable else []
            self._blocked[key] = found
        return self._blocked[key]


def _blocked_layouts(io: IOLayouts) -> set[ActivationLayout]:
    """The layouts other than NHWC."""
    return {layout for layout in (io.input, io.output) if layout.partition("+")[0] != NHWC}


def _drift(calm_us: np.ndarray) -> float:
    """Time over cost on the quiet machine; 1 where that is not known."""
    known = calm_us[calm_us > 0]
    return float(np.median(known)) / NOMINAL_US if len(known) else 1.0

"""The layouts of a network, found by measuring: which kernels are worth trying with which layouts.

Kernels that the search found in rows are measured with all their images in another layout, the
heaviest ones first. Mixed ends and copies are measured only where the plan would use them if they
took as little as one may hope for: no other ones can be part of a better plan, unless that hope is
too small. What the cheapest plan would use is measured more closely, and so is the same in rows: no
plan should stand on one disturbed measurement. That ends when the plan stays as it is or the budget
is spent. Read `LayoutSearch.run`.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from math import inf

import numpy as np

from retune.core.dtypes import TensorType
from retune.core.layouts import ROWS
from retune.core.target import DeviceSpec
from retune.records.conditions import Conditions
from retune.records.cost import COST_COLUMNS, NOMINAL_US, recorded_costs
from retune.records.store import RecordStore
from retune.schedule.space import Candidate
from retune.search.extract import Network
from retune.search.history import best_candidates
from retune.search.layout.in_blocks import written_candidates
from retune.search.layout.laid import LaidTrials, laid_conditions
from retune.search.layout.laying import LayoutChoice
from retune.search.layout.layouts import IN_ROWS, Ends, transform_task
from retune.search.layout.options import Choices, choices_of
from retune.search.layout.problem import LayoutCosts, LayoutProblem, layout_problem
from retune.search.layout.solver import Solution, solve
from retune.search.session import Session
from retune.search.task import Task
from retune.targets.cost.estimate import default_candidate

MOST = 4
"""Measurements of a kernel with layouts that the plan would use, and of it in rows."""
MORE = 2
"""As many more where there are schedules for these layouts alone: half of all are of such then."""

DOUBT = 0.02
"""Of times in other layouts than rows: each is the best of several, some too good by chance, and a
plan has to be faster than rows beyond that. By `benchmarks.layouts`, plans that gained less were
as often slower."""

HOPE = 0.9
"""Part of a kernel's least time in any layouts that it is hoped to take in those not yet tried."""

Key = tuple[str, Ends]
"""A task, and how its images lie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLayouts:
    """What the search for layouts came to."""

    problem: LayoutProblem
    solution: Solution
    trials: int
    """Candidates measured for it."""
    unused: int
    """Of these, with other layouts than rows that the plan does not use."""
    untried: int = 0
    """Kernels and copies that a better plan may use, and that the budget left no time for."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a store knows of a task with its images lying so."""

    us: float
    """The least that a right candidate took, at calm pace."""
    count: int
    """Measurements of right candidates."""


def recorded_layouts(
    store: RecordStore, conditions: Conditions, tasks: Mapping[str, Task], ends: Sequence[Ends]
) -> dict[Key, Answer]:
    """What a store knows of these tasks with these ends."""
    keys = {laid_conditions(conditions, e).key: e for e in ends}
    wanted = {"device": conditions.device, "conditions": [*keys, None], "status": "ok"}
    columns = [*COST_COLUMNS, "task_key", "conditions"]
    rows = store.scan({**wanted, "task_key": sorted(tasks)}, columns)
    costs = recorded_costs(rows)[1] * _pace(rows["calm_us"].to_numpy(float, na_value=np.nan))
    found: defaultdict[Key, list[float]] = defaultdict(list)
    named = rows["conditions"].to_numpy(object, na_value=None)
    for task, name, cost in zip(rows["task_key"], named, costs.tolist(), strict=True):
        found[str(task), keys[name] if name else IN_ROWS].append(cost)
    return {key: Answer(min(some), len(some)) for key, some in found.items()}


def costs_of(answers: Mapping[Key, Answer]) -> LayoutCosts:
    """The least times, those of kernels that are not in rows with some doubt."""

    def best(task_key: str, ends: Ends) -> float | None:
        found = answers.get((task_key, ends))
        return None if found is None else found.us

    copies: dict[TensorType, str] = {}

    def copy(kind: TensorType, ends: Ends) -> float | None:
        if kind not in copies:
            copies[kind] = transform_task(kind).key
        return best(copies[kind], ends)

    return LayoutCosts(kernel=best, copy=copy, doubt=DOUBT)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Questions:
    """What one has to know of a network to plan its layouts on a device."""

    choices: Choices
    tasks: Mapping[str, Task]
    """Those of its kernels and of all copies, by their keys."""
    kernels: tuple[Key, ...]
    """Each task with the ends that a plan may give it, rows first."""
    copies: tuple[Key, ...]
    rows: frozenset[Key]
    """Those of `kernels` whose images are in rows, of the pitch that these have in the network."""

    @property
    def copied(self) -> frozenset[Key]:
        """The `copies`."""
        return frozenset(self.copies)

    def known(self, store: RecordStore, conditions: Conditions) -> dict[Key, Answer]:
        """The answers that a store has."""
        asked = (ends for _, ends in (*self.kernels, *self.copies))
        ends = list(dict.fromkeys((IN_ROWS, *asked)))
        return recorded_layouts(store, conditions, self.tasks, ends)

    def problem(self, answers: Mapping[Key, Answer]) -> LayoutProblem:
        """The choices that these answers leave, each with what it takes."""
        return layout_problem(self.choices, costs_of(answers))


def hoped(
    asked: Questions, answers: Mapping[Key, Answer], tried: Collection[Key]
) -> dict[Key, Answer]:
    """The answers, and for what is open the least that it may be hoped to take.

    A kernel takes `HOPE` of its least time, a copy as long as the fastest known one of as many
    bytes. Nothing is hoped of what was `tried` without an answer, or of a kernel never measured.
    """
    least: dict[str, float] = {}
    for (task, _), found in answers.items():
        least[task] = min(found.us, least.get(task, inf))
    done = (key for key in asked.copies if key in answers)
    speeds = (answers[key].us / asked.tasks[key[0]].least_bytes for key in done)
    per_byte = min(speeds, default=0.0)
    result = dict(answers)
    for key in (*asked.kernels, *asked.copies):
        if key in answers or key in tried or key in asked.rows:
            continue
        copies = key in asked.copied
        hope = (
            asked.tasks[key[0]].least_bytes * per_byte if copies else HOPE * least.get(key[0], inf)
        )
        if hope < inf:
            result[key] = Answer(hope, 0)
    return result


def questions(network: Network, spec: DeviceSpec) -> Questions:
    """The kernels that may find images in several layouts, and the copies that may be asked for."""
    choices = choices_of(network, spec)
    possible = choices.ends
    copies = [(transform_task(kind), ends) for kind, ends in choices.copies]
    tasks = {key: network.tasks[key] for key in possible}
    return Questions(
        choices=choices,
        tasks=tasks | {task.key: task for task, _ in copies},
        kernels=tuple((key, ends) for key, some in possible.items() for ends in some),
        copies=tuple((task.key, ends) for task, ends in copies),
        rows=frozenset((place.task_key, place.rows) for place in choices.kernels),
    )


def recorded_problem(
    network: Network, spec: DeviceSpec, store: RecordStore, conditions: Conditions
) -> LayoutProblem:
    """The choices of layouts that a network has by what a store knows; nothing is measured."""
    asked = questions(network, spec)
    return asked.problem(asked.known(store, conditions))


class LayoutSearch:
    """Finds the layouts of a network on the device of a session whose searches have ended."""

    def __init__(self, session: Session, network: Network) -> None:
        self._session = session
        self._asked = questions(network, session.spec)
        self._trials = LaidTrials(session)
        self._known: dict[str, list[Candidate]] = {}
        self._unrecorded: set[str] = set()
        self._written: dict[Key, list[Candidate]] = {}
        self._tried: Counter[Key] = Counter()
        self._before: dict[Key, int] = {}
        """Measurements that were known before this search."""

    def run(self, may_go_on: Callable[[int], bool]) -> FoundLayouts:
        """The cheapest plan by what was measured; nothing is begun once `may_go_on` says no, which
        is told how many candidates were measured. Every measurement is in the store.
        """
        known = self._known_now()
        self._before = {key: found.count for key, found in known.items()}
        self._prefetch()
        self._measure_all(self._first(known), may_go_on)
        while True:
            known = self._known_now()
            problem = self._asked.problem(known)
            solution = solve(problem.table)
            used = self._used(problem, solution)
            wanted = self._open(known) or self._wanted(used.difference(self._asked.copies))
            if not wanted or not may_go_on(self._trials.count):
                break
            self._measure_all(sorted(wanted), may_go_on)
        vain = [key for key in self._tried if key not in used and not key[1].by_rows]
        unused = sum(self._tried[key] for key in vain)
        return FoundLayouts(
            problem=problem,
            solution=solution,
            trials=self._trials.count,
            unused=unused,
            untried=len(self._open(known)),
        )

    def _known_now(self) -> dict[Key, Answer]:
        return self._asked.known(self._session.store, self._session.conditions)

    def _first(self, answers: Mapping[Key, Answer]) -> list[Key]:
        """What nothing is known of: each task in rows, then with all its images that may lie in
        another layout in that; the heaviest first."""
        rows, unknown = self._asked.rows, list[Key]()
        ends_of: dict[str, list[Ends]] = {}
        for task, ends in self._asked.kernels:
            ends_of.setdefault(task, []).append(ends)
        for task, some in ends_of.items():
            others = {layout for ends in some if not ends.by_rows for layout in _laid_as(ends)}
            alike = {
                max((e for e in some if _laid_as(e) == {one}), key=lambda e: str(e).count(one))
                for one in sorted(others)
                if any(_laid_as(e) == {one} for e in some)
            }
            first = {(task, ends) for ends in some if (task, ends) in rows or ends.by_rows}
            unknown += [key for key in first | {(task, e) for e in alike} if key not in answers]

        def order(key: Key) -> tuple[bool, float, Key]:
            task, known = self._asked.tasks[key[0]], answers.get((key[0], IN_ROWS))
            weight = -task.weight * known.us if known is not None else 0.0
            return key not in rows, weight, key

        return sorted(unknown, key=order)

    def _open(self, known: Mapping[Key, Answer]) -> set[Key]:
        """What was never tried, and a plan would use if it took as little as is hoped."""
        hopeful = hoped(self._asked, known, self._tried.keys())
        if len(hopeful) == len(known):
            return set()
        problem = self._asked.problem(hopeful)
        used = self._used(problem, solve(problem.table))
        return {key for key in used if key in hopeful and key not in known}

    def _used(self, problem: LayoutProblem, solution: Solution) -> set[Key]:
        """The layouts of the plan that are not rows everywhere, of kernels and copies."""
        choice = problem.choice(solution.choice)
        used = {
            (place.task_key, place.lying(choice.ends[place.label]))
            for place in problem.kernels
            if place.label in choice.ends
        }
        for value, kept in choice.kept.items():
            copied = transform_task(problem.types[value]).key
            used |= {(copied, Ends(kept.made, layout)) for layout in kept.copies}
        return used

    def measure(self, choice: LayoutChoice, may_go_on: Callable[[int], bool]) -> int:
        """Kernels with the layouts of a choice that stands, each as often as those of a plan.

        Every measurement is in the store; gives their number.
        """
        self._before = {key: found.count for key, found in self._known_now().items()}
        chosen = {
            (place.task_key, place.lying(choice.ends[place.label]))
            for place in self._asked.choices.kernels
            if place.label in choice.ends
        }
        self._prefetch()
        while wanted := sorted(key for key in chosen if self._done(key) < self._most(key)):
            if not may_go_on(self._trials.count):
                break
            self._measure_all(wanted, may_go_on)
        return self._trials.count

    def _wanted(self, kernels: set[Key]) -> set[Key]:
        """Those of a plan's kernels, and of the same in rows, that were measured too seldom."""
        most = {key: self._most(key) for key in kernels}
        of_task: dict[str, int] = {}
        for (task, _), times in most.items():
            of_task[task] = max(times, of_task.get(task, 0))
        most |= {key: of_task[key[0]] for key in self._asked.rows if key[0] in of_task}
        return {key for key, times in most.items() if self._done(key) < times}

    def _most(self, key: Key) -> int:
        return MOST + MORE if self._written_for(key) else MOST

    def _done(self, key: Key) -> int:
        return self._before.get(key, 0) + self._tried[key]

    def _measure_all(self, keys: Sequence[Key], may_go_on: Callable[[int], bool]) -> None:
        for key in keys:
            if may_go_on(self._trials.count):
                both = self._written_for(key) and may_go_on(self._trials.count + 1)
                self._measure(key, 2 if both else 1)

    def _measure(self, key: Key, count: int) -> None:
        """So many more candidates with these layouts, or some of them again; built side by side."""
        known, written = self._candidates(self._asked.tasks[key[0]]), self._written_for(key)
        candidates = known
        if written:  # in turns
            pairs = zip(cycle(known), cycle(written), range(max(len(known), len(written))))
            candidates = [one for a, b, _ in pairs for one in (a, b)]
        begin = self._done(key)
        batch = [candidates[n % len(candidates)] for n in range(begin, begin + count)]
        self._tried[key] += count
        self._trials.measure(self._asked.tasks[key[0]], key[1], batch)

    def _written_for(self, key: Key) -> list[Candidate]:
        """Schedules for images that lie so, and for no others."""
        if key not in self._written:
            task, spec = self._asked.tasks[key[0]], self._session.spec
            written = written_candidates(task, key[1], spec, MOST) if task.tunable else []
            self._written[key] = written
        return self._written[key]

    def _prefetch(self) -> None:
        """The candidates of all tasks are known: a store is slow to ask once it has many files."""
        session = self._session
        rows = session.store.scan(dict(session.conditions.comparable), ["task_key"])
        recorded = {str(key) for key in rows["task_key"]}
        for key, task in self._asked.tasks.items():
            if key in recorded:
                self._candidates(task)
            else:
                self._unrecorded.add(key)

    def _candidates(self, task: Task) -> list[Candidate]:
        """The best known ones in rows, or else the default schedule."""
        session = self._session
        if task.key not in self._known:
            space, where = task.space(session.spec), session.conditions.comparable
            known = task.key not in self._unrecorded
            best = best_candidates(session.store, task.key, where, space, MOST) if known else []
            found = [candidate for candidate, _ in best]
            self._known[task.key] = found or [default_candidate(space, session.spec)]
        return self._known[task.key]


def _laid_as(ends: Ends) -> set[str]:
    """The layouts other than rows."""
    return {layout for layout in (ends.read, ends.made) if layout.partition("+")[0] != ROWS}


def _pace(calm_us: np.ndarray) -> float:
    """Time over cost on the calm machine; 1 where that is not known."""
    known = calm_us[calm_us > 0]
    return float(np.median(known)) / NOMINAL_US if len(known) else 1.0

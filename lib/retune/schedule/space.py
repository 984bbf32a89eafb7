"""Search spaces: sketches lowered once with symbols, candidates as arrays.

A `Sketch` is what one run of a schedule function made: a program whose tile sizes are symbols, the
decisions behind them, and the conditions that a valid candidate meets. A `Space` is a few
sketches. Candidates are a sketch number and a row of option numbers each; sampling and validity
work on whole arrays of them. Only what is measured becomes a program.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np

from retune.core.dims import dim_of, example
from retune.core.errors import ScheduleError
from retune.core.keys import content_key
from retune.ir.expr import Expr, Var, const
from retune.ir.stmt import Program, sizes_in
from retune.schedule.decisions import Decision, holds
from retune.schedule.loops import substitute_symbols
from retune.schedule.schedule import Schedule
from retune.schedule.trace import Trace

Rule = Callable[[Schedule], None]
"""A schedule function: applies primitives and sampling to a fresh Schedule."""

Cost = Callable[[Mapping[str, np.ndarray]], np.ndarray]
"""Cycles of candidates, float64 [n], by the values of their decisions, int64 [n, values] each."""

_ENUMERATION_LIMIT = 200_000
_DRAWS = 64
"""Rounds of rejection sampling before valid rows are listed, if there are few enough in all."""

_TRIED = 64
"""Candidates asked for to see whether there is any."""


@dataclass(frozen=True, eq=False)
class Sketch:
    """One structure of schedules, with symbols for its tile sizes."""

    name: str
    program: Program
    trace: Trace
    decisions: tuple[Decision, ...]
    constraints: tuple[Expr, ...]
    preferences: tuple[Expr, ...] = ()
    """Conditions on what is chosen unseen: see `Schedule.prefer`."""
    untuned: np.ndarray | None = None
    """int64 [decisions]: the row to start with where nothing was measured; None: none is stated."""
    error: float = 0.0
    """The largest error of this strategy that was measured against float64, as a part of the
    output's range; 0: it only sums in another order than the direct form."""
    roundings: float = 1.0
    """That error as a multiple of what roundings do to the direct form, at any size of it."""
    blocks: tuple[str, str] | None = None
    """The decisions that are the channels of the blocks that it reads, and makes; None: it does not
    go by the layouts of activations."""
    cost: Cost | None = None
    """What candidates take, as the maker of the sketch says; None: the device's class says it."""

    def renamed(self, name: str) -> "Sketch":
        """The same sketch under another name."""
        return replace(self, name=name)

    def starting_at(self, decided: Mapping[str, Sequence[int]]) -> "Sketch":
        """The sketch with these decisions as its untuned row.

        Raises: ScheduleError if they are not options, or break a constraint.
        """
        row = self.row(decided)
        if not self.valid(row[None])[0]:
            raise ScheduleError(f"{self.name}: its untuned decisions {dict(decided)} are not valid")
        return replace(self, untuned=row)

    @property
    def options(self) -> tuple[int, ...]:
        """Number of options of each decision."""
        return tuple(len(d.table) for d in self.decisions)

    @property
    def size(self) -> int:
        """Number of index combinations, valid or not."""
        return prod(self.options)

    def symbols(self, rows: np.ndarray) -> dict[Var, np.ndarray]:
        """The symbols' values for option rows int64 [n, decisions]."""
        values: dict[Var, np.ndarray] = {}
        for column, decision in enumerate(self.decisions):
            chosen = decision.table[rows[:, column]]
            for position, symbol in enumerate(decision.symbols):
                values[symbol] = chosen[:, position]
        return values

    def at_hand(self, rows: np.ndarray) -> dict[Var, np.ndarray]:
        """The symbols' values, and those of sizes at hand: estimates go by them."""
        sizes = {v: np.array([example(dim_of(v.size))]) for v in sizes_in(self.program)}
        return self.symbols(rows) | sizes

    def values(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The decisions' values in each row, by name. int64 [n, values]"""
        return {d.name: d.table[rows[:, i]] for i, d in enumerate(self.decisions)}

    def valid(self, rows: np.ndarray) -> np.ndarray:
        """Whether each row meets every constraint. bool [n]"""
        return holds(self.constraints, self.symbols(rows), len(rows))

    def preferred(self, rows: np.ndarray) -> np.ndarray:
        """The rows that meet every preference, or all rows if none do."""
        met = rows[holds(self.preferences, self.symbols(rows), len(rows))]
        return met if len(met) else rows

    def sample(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Up to `count` valid rows, uniform over the valid ones, repeats possible.

        Where valid ones are rare: distinct ones, so that there is none only if none is valid, or
        there are too many to list. int64 [at most count, decisions]
        """
        kept: list[np.ndarray] = []
        found = 0
        for _ in range(_DRAWS):
            draw = rng.integers(0, self.options, (max(64, 4 * count), len(self.decisions)))
            good = draw[self.valid(draw)]
            kept.append(good)
            found += len(good)
            if found >= count:
                return np.concatenate(kept)[:count]
        if self.size <= _ENUMERATION_LIMIT:
            return rng.permutation(self.all_rows())[:count]
        return np.concatenate(kept)

    @property
    def empty(self) -> bool:
        """Whether there is no valid row, as no device of this kind has the room, say; or sampling
        finds none among too many to list."""
        return not len(self.sample(_TRIED, np.random.default_rng(0)))

    def all_rows(self) -> np.ndarray:
        """Every valid row in index order. int64 [valid, decisions]

        Raises: ScheduleError where there are more than 200,000 rows, valid or not.
        """
        if self.size > _ENUMERATION_LIMIT:
            raise ScheduleError(f"{self.name}: {self.size} candidates are too many to list")
        rows = self.rows_of(np.arange(self.size))
        return rows[self.valid(rows)]

    def rows_of(self, numbers: np.ndarray) -> np.ndarray:
        """Option rows by mixed-radix number [n]; the last decision is the fastest digit.

        int64 [n, decisions]
        """
        if not self.decisions:
            return np.zeros((len(numbers), 0), np.int64)
        return np.stack(np.unravel_index(numbers, self.options), axis=1).astype(np.int64)

    def numbers_of(self, rows: np.ndarray) -> np.ndarray:
        """The inverse of `rows_of`. int64 [n]"""
        if not self.decisions:
            return np.zeros(len(rows), np.int64)
        return np.asarray(np.ravel_multi_index(tuple(rows.T), self.options), np.int64)

    def decided(self, row: np.ndarray) -> dict[str, tuple[int, ...]]:
        """The values that a row gives to each decision, by name."""
        return {
            d.name: tuple(int(v) for v in d.table[i])
            for d, i in zip(self.decisions, row, strict=True)
        }

    def row(self, decided: Mapping[str, Sequence[int]]) -> np.ndarray:
        """The row that gives these values. int64 [decisions]

        Raises: ScheduleError for a decision without a value, or a value that is not an option.
        """
        row = np.zeros(len(self.decisions), np.int64)
        for column, decision in enumerate(self.decisions):
            if decision.name not in decided and len(decision.table) == 1:
                continue  # a loop of one iteration is none where extents are fixed
            if decision.name not in decided:
                raise ScheduleError(f"{self.name}: no value for decision {decision.name!r}")
            wanted = np.asarray(decided[decision.name], np.int64)
            if wanted.shape != decision.table.shape[1:]:
                raise ScheduleError(f"{self.name}: {decision.name} takes {decision.table.shape[1]}")
            match = np.flatnonzero((decision.table == wanted).all(axis=1))
            if not len(match):
                raise ScheduleError(
                    f"{self.name}: {tuple(wanted.tolist())} is not an option of {decision.name!r}"
                )
            row[column] = match[0]
        return row

    def instantiate(self, row: np.ndarray) -> Program:
        """The concrete program of a row."""
        values: dict[Var, Expr] = {
            symbol: const(int(value[0]))
            for symbol, value in self.symbols(row.reshape(1, -1)).items()
        }
        return substitute_symbols(self.program, values)


@dataclass(frozen=True, eq=False)
class Family:
    """Sketches that are made together, when someone first asks for them."""

    make: Callable[[], Sequence[Sketch]]
    error: float = 0.0
    """Of each of them, see `Sketch.error`."""
    roundings: float = 1.0
    """Of each of them, see `Sketch.roundings`."""

    @cached_property
    def sketches(self) -> tuple[Sketch, ...]:
        """Its sketches, which may be none."""
        made = self.make()
        return tuple(replace(s, error=self.error, roundings=self.roundings) for s in made)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One point of a space: the sketch by name, and the values decided."""

    sketch: str
    decisions: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def key(self) -> str:
        """Content key, stable across runs and versions of the tables."""
        return content_key(self.sketch, dict(self.decisions))


@dataclass(frozen=True, eq=False)
class Candidates:
    """A population: sketch numbers int64 [n], and option rows padded to one width."""

    sketch: np.ndarray
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.sketch)

    def take(self, which: np.ndarray) -> "Candidates":
        """The chosen candidates, by index or mask."""
        return Candidates(self.sketch[which], self.rows[which])


@dataclass(frozen=True, eq=False)
class Space:
    """The union of the candidates of some sketches."""

    entries: Sequence[Sketch | Family]
    """The sketches; those of a family are made when someone asks for them."""
    more: Callable[[], tuple[Sketch, ...]] = tuple
    """Makes the sketches of `blocked`."""

    @cached_property
    def sketches(self) -> tuple[Sketch, ...]:
        """All of them, in order."""
        return tuple(self._made())

    def _made(self) -> Iterator[Sketch]:
        for entry in self.entries:
            yield from entry.sketches if isinstance(entry, Family) else (entry,)

    def within(self, roundings: float) -> "Space":
        """The space of those sketches that are not less exact than that."""
        return Space([entry for entry in self.entries if entry.roundings <= roundings])

    @cached_property
    def blocked(self) -> tuple[Sketch, ...]:
        """Sketches for blocked activations (NCHW16c), found by name, and never sampled or
        listed."""
        return self.more()

    @property
    def whole(self) -> "Space":
        """The space of all sketches, those for activations in blocks too."""
        return Space((*self.sketches, *self.blocked))

    @cached_property
    def width(self) -> int:
        """Decisions of the sketch that has most."""
        return max((len(s.decisions) for s in self.sketches), default=0)

    @property
    def size(self) -> int:
        """Index combinations of all sketches, valid or not."""
        return sum(s.size for s in self.sketches)

    def sketch(self, name: str) -> Sketch:
        """The sketch of that name. Raises: ScheduleError naming those that there are."""
        for sketches in (self._made, lambda: self.blocked):
            for sketch in sketches():
                if sketch.name == name:
                    return sketch
        raise ScheduleError(f"no sketch {name!r}; there are {[s.name for s in self.sketches]}")

    def sample(self, count: int, rng: np.random.Generator) -> Candidates:
        """About `count` valid candidates, spread evenly over the sketches, in random order."""
        share = -(-count // len(self.sketches))
        parts = [self.population(i, s.sample(share, rng)) for i, s in enumerate(self.sketches)]
        everyone = join(parts)
        return everyone.take(rng.permutation(len(everyone))[:count])

    def population(self, sketch: int, rows: np.ndarray) -> Candidates:
        """Rows of one sketch as candidates of this space."""
        padded = np.zeros((len(rows), self.width), np.int64)
        padded[:, : rows.shape[1]] = rows
        return Candidates(np.full(len(rows), sketch, np.int64), padded)

    @property
    def listable(self) -> bool:
        """True if `everyone` lists the whole space."""
        return all(sketch.size <= _ENUMERATION_LIMIT for sketch in self.sketches)

    @cached_property
    def _starts(self) -> np.ndarray:
        """The number of each sketch's first index combination, and the size of the space."""
        return np.cumsum([0, *(sketch.size for sketch in self.sketches)])

    def numbers(self, candidates: Candidates) -> np.ndarray:
        """One number for each candidate, in the space's index order: its identity. int64 [n]"""
        result = np.zeros(len(candidates), np.int64)
        for number, sketch in enumerate(self.sketches):
            mine = candidates.sketch == number
            rows = candidates.rows[mine][:, : len(sketch.decisions)]
            result[mine] = self._starts[number] + sketch.numbers_of(rows)
        return result

    def locate(self, chosen: Sequence[Candidate]) -> Candidates:
        """The inverse of `candidate`. Raises: ScheduleError if one is not of this space."""
        names = [sketch.name for sketch in self.sketches]
        parts = [self.population(0, np.zeros((0, 0), np.int64))]
        for candidate in chosen:
            row = self.sketch(candidate.sketch).row(dict(candidate.decisions))
            parts.append(self.population(names.index(candidate.sketch), row[None]))
        return join(parts)

    def everyone(self) -> Candidates:
        """Every valid candidate, sketch by sketch. Raises: ScheduleError if too many to list."""
        return join([self.population(i, s.all_rows()) for i, s in enumerate(self.sketches)])

    def untuned(self) -> list[Candidate]:
        """The candidates that sketches state as their start, in the order of the sketches."""
        rows = [(i, s.untuned) for i, s in enumerate(self.sketches)]
        return [
            self.candidate(self.population(i, row[None]), 0) for i, row in rows if row is not None
        ]

    def valid(self, candidates: Candidates) -> np.ndarray:
        """Whether each candidate meets its sketch's constraints. bool [n]"""
        result = np.zeros(len(candidates), bool)
        for number, sketch in enumerate(self.sketches):
            mine = candidates.sketch == number
            rows = candidates.rows[mine][:, : len(sketch.decisions)]
            result[mine] = sketch.valid(rows)
        return result

    def candidate(self, candidates: Candidates, index: int) -> Candidate:
        """One member of a population by its values."""
        sketch = self.sketches[int(candidates.sketch[index])]
        row = candidates.rows[index, : len(sketch.decisions)]
        return Candidate(sketch.name, tuple(sketch.decided(row).items()))

    def instantiate(self, candidate: Candidate) -> Program:
        """The concrete program. Raises: ScheduleError if it is not of this space."""
        sketch = self.sketch(candidate.sketch)
        return sketch.instantiate(sketch.row(dict(candidate.decisions)))

    def trace(self, candidate: Candidate) -> Trace:
        """The trace that makes the candidate from the unscheduled program."""
        sketch = self.sketch(candidate.sketch)
        return sketch.trace.with_decisions(dict(candidate.decisions))


def join(parts: Sequence[Candidates]) -> Candidates:
    """Populations one after the other."""
    return Candidates(
        np.concatenate([p.sketch for p in parts]), np.concatenate([p.rows for p in parts])
    )


def sketch_of(program: Program, rule: Rule, name: str = "user") -> Sketch:
    """The sketch that a schedule function makes of a program."""
    schedule = Schedule(program)
    rule(schedule)
    return _sketch(schedule, name)


def sketches_of(program: Program, rule: Rule, name: str = "user") -> list[Sketch]:
    """A sketch for each legal choice of what the function samples about structure; at least one.

    Their names state the choices. Raises: ScheduleError where no choice is legal.
    """
    found: list[Sketch] = []
    refused: ScheduleError | None = None
    todo: list[dict[str, tuple[int, ...]]] = [{}]
    while todo:
        given = todo.pop(0)
        schedule = Schedule(program, given)
        try:
            rule(schedule)
        except ScheduleError as error:
            refused = error
            continue
        undecided = [d for d in schedule.structure if d.name not in given]
        if undecided:
            first = undecided[0]
            todo = [{**given, first.name: (int(row[0]),)} for row in first.table] + todo
            continue
        chosen = "".join(f".{n}={v[0]}" for n, v in given.items())
        found.append(_sketch(schedule, f"{name}{chosen}"))
    if not found:
        raise refused or ScheduleError(f"{name}: no legal choice")
    return found


def _sketch(schedule: Schedule, name: str) -> Sketch:
    return Sketch(
        name=name,
        program=schedule.program,
        trace=schedule.trace,
        decisions=tuple(schedule.decisions),
        constraints=tuple(schedule.constraints),
        preferences=tuple(schedule.preferences),
    )

"""Spaces of which every candidate was measured: search is compared on them without a device.

`thin` cuts a space down to a grid that can be measured whole: each decision keeps a few of its
options. `recorded_grid` is the space of what was measured, with the outcomes; tuners sample, mutate
and cross its members as in any other space. It is built from the sketches' traces, not from today's
rules, and its features are today's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from retune.core.errors import RecordError, ScheduleError
from retune.core.target import DeviceSpec
from retune.ir.stmt import Program
from retune.records.replay import Recorded
from retune.schedule.decisions import Decision
from retune.schedule.replay import replay
from retune.schedule.space import Candidates, Sketch, Space
from retune.targets.cost.estimate import estimate

_SAMPLES = 1024
"""Candidates of a sketch among which the estimate's best is looked for."""


@dataclass(frozen=True, eq=False)
class RecordedSketch(Sketch):
    """A sketch of which only the rows with a recorded outcome are valid."""

    numbers: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """Sorted mixed-radix numbers (`numbers_of`) of the recorded rows."""

    def valid(self, rows: np.ndarray) -> np.ndarray:
        """Whether each row was recorded. bool [n]"""
        return np.isin(self.numbers_of(rows), self.numbers)


@dataclass(frozen=True, eq=False)
class RecordedGrid:
    """The recorded part of a layer's space, and the outcome of each of its candidates."""

    space: Space
    candidates: Candidates
    """Everyone, in the order of their numbers in the space."""
    time_us: np.ndarray
    """float64 [n]; NaN for a failure."""

    def times(self, chosen: Candidates) -> np.ndarray:
        """The recorded times of members. float64 [n]"""
        numbers = self.space.numbers(self.candidates)
        return self.time_us[np.searchsorted(numbers, self.space.numbers(chosen))]


def recorded_grid(program: Program, parts: Sequence[Recorded]) -> RecordedGrid:
    """What was recorded of a layer, as a space of its program.

    A decision has the options that some record uses, so a mutation has a fair chance to be a
    member. Raises: RecordError where a trace does not replay, since a primitive has changed.
    """
    built = [recorded_sketch(program, part) for part in parts]
    space = Space(tuple(sketch for sketch, _ in built))
    order = [np.argsort(sketch.numbers_of(rows)) for sketch, rows in built]
    times = [part.time_us[which] for part, which in zip(parts, order, strict=True)]
    return RecordedGrid(space, space.everyone(), np.concatenate(times))


def recorded_sketch(program: Program, part: Recorded) -> tuple[RecordedSketch, np.ndarray]:
    """The sketch with the recorded options, and the row of each record.

    Raises: RecordError as `recorded_grid`.
    """
    try:
        schedule = replay(program, part.trace)
    except ScheduleError as error:
        raise RecordError(
            f"recorded sketch {part.sketch!r} of layer {part.layer} does not replay on "
            f"{program.name} ({error}); record it again"
        ) from error
    wanted = sum(width for _, width in part.trace.sampled)
    if part.decisions.shape[1] != wanted:
        raise RecordError(
            f"recorded sketch {part.sketch!r} of layer {part.layer}: expected {wanted} decisions, "
            f"got {part.decisions.shape[1]}; record it again"
        )
    ends = np.cumsum([0, *(width for _, width in part.trace.sampled)])
    columns = [part.decisions[:, a:b] for a, b in pairwise(ends)]
    options = [np.unique(column, axis=0, return_inverse=True) for column in columns]
    names = [name for name, _ in part.trace.sampled]
    sketch = RecordedSketch(
        name=part.sketch,
        program=schedule.program,
        trace=schedule.trace,
        decisions=tuple(Decision(n, table) for n, (table, _) in zip(names, options, strict=True)),
        constraints=tuple(schedule.constraints),
    )
    rows = np.zeros((len(part.decisions), len(options)), np.int64)
    for column, (_, places) in enumerate(options):
        rows[:, column] = places.ravel()
    return replace(sketch, numbers=np.unique(sketch.numbers_of(rows))), rows


def thin(space: Space, count: int, spec: DeviceSpec, rng: np.random.Generator) -> Space:
    """A grid inside `space` of at least `count` valid candidates, if it has that many.

    Each sketch gives an equal share, the large ones also what small ones lack. Its decisions keep
    random options, and those of the candidate that the static estimate likes best.
    """
    thinned: dict[str, Sketch] = {}
    for sketch in sorted(space.sketches, key=lambda s: s.size):
        share = -(-count // (len(space.sketches) - len(thinned)))
        thinned[sketch.name] = _thin(sketch, share, spec, rng)
        count -= len(thinned[sketch.name].all_rows())
    return Space(tuple(thinned[sketch.name] for sketch in space.sketches))


def _thin(sketch: Sketch, wanted: int, spec: DeviceSpec, rng: np.random.Generator) -> Sketch:
    sample = sketch.sample(_SAMPLES, rng)
    if not len(sample) or not sketch.decisions:
        return sketch
    best = sample[int(np.argmin(estimate(sketch, sample, spec)))]
    orders = [
        np.concatenate([[chosen], rng.permutation(np.delete(np.arange(count), chosen))])
        for count, chosen in zip(sketch.options, best, strict=True)
    ]
    widths = np.ones(len(orders), np.int64)
    while True:
        grid = _keep(sketch, [np.sort(o[:w]) for o, w in zip(orders, widths, strict=True)])
        growing = np.flatnonzero(widths < sketch.options)
        if not len(growing) or len(grid.all_rows()) >= wanted:
            return grid
        widths[growing[np.argmin(widths[growing])]] += 1


def _keep(sketch: Sketch, kept: Sequence[np.ndarray]) -> Sketch:
    """The sketch with only these option numbers, sorted, of each decision."""
    decisions = tuple(
        Decision(d.name, d.table[which]) for d, which in zip(sketch.decisions, kept, strict=True)
    )
    return replace(sketch, decisions=decisions, untuned=_places(kept, sketch.untuned))


def _places(kept: Sequence[np.ndarray], row: np.ndarray | None) -> np.ndarray | None:
    """The row's options by their places among those kept; None if one of them is not."""
    if row is None or not all(option in which for option, which in zip(row, kept, strict=True)):
        return None
    places = [np.searchsorted(which, option) for option, which in zip(row, kept, strict=True)]
    return np.array(places, np.int64)

"""Spaces of which every candidate was measured: search is compared on them without a device.

`thin` cuts a space down to a grid that can be measured whole: each decision keeps a few of its
options. `recorded_space` is the space of what was measured; tuners sample, mutate and cross its
members as in any other space.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from retune.core.errors import RecordError, ScheduleError
from retune.core.target import DeviceSpec
from retune.schedule.decisions import Decision
from retune.schedule.estimate import estimate
from retune.schedule.space import Sketch, Space

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


def recorded_space(
    space: Space, recorded: Mapping[str, Sequence[Mapping[str, tuple[int, ...]]]]
) -> Space:
    """The part of `space` that was recorded: sketch name -> decided values of each candidate.

    Options that no record uses are left out, so that a mutation has a fair chance to be a member.

    Raises: RecordError for a sketch or a decision that the space does not have.
    """
    sketches: list[Sketch] = []
    for name, decided in recorded.items():
        try:
            sketch = space.sketch(name)
            rows = np.stack([sketch.row(values) for values in decided])
        except ScheduleError as error:
            raise RecordError(
                f"recorded outcomes do not fit today's space ({error}); record them again"
            ) from error
        kept = [np.unique(column) for column in rows.T]
        part = _keep(sketch, kept)
        columns = [np.searchsorted(k, c) for k, c in zip(kept, rows.T, strict=True)]
        numbers = np.unique(part.numbers_of(np.stack(columns, axis=1).astype(np.int64)))
        sketches.append(
            RecordedSketch(**{f.name: getattr(part, f.name) for f in fields(part)}, numbers=numbers)
        )
    return Space(tuple(sketches))


def thin(space: Space, count: int, spec: DeviceSpec, rng: np.random.Generator) -> Space:
    """A grid inside `space` of at least `count` valid candidates, if it has that many.

    Each sketch gives an equal share. Its decisions keep random options, and those of the
    candidate that the static estimate likes best.
    """
    share = -(-count // len(space.sketches))
    return Space(tuple(_thin(sketch, share, spec, rng) for sketch in space.sketches))


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

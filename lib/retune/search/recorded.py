"""Sketches as records have them: built from their traces, with the options that some record uses.

Not today's rules make them, but today's primitives; their features are today's.
"""

from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from retune.core.errors import RecordError, ScheduleError
from retune.ir.stmt import Program
from retune.schedule.decisions import Decision
from retune.schedule.replay import replay
from retune.schedule.space import Sketch
from retune.schedule.trace import Trace


@dataclass(frozen=True, eq=False)
class Recorded:
    """The outcomes of one sketch of one layer."""

    layer: str
    sketch: str
    trace: Trace
    """The sketch: what replays it on the layer's program."""
    decisions: np.ndarray
    """int64 [n, values]: the values of the decisions `trace.sampled`, one after the other."""
    time_us: np.ndarray
    """float64 [n]; NaN for a candidate that failed."""


@dataclass(frozen=True, eq=False)
class RecordedSketch(Sketch):
    """A sketch of which only the rows with a recorded outcome are valid."""

    numbers: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """Sorted mixed-radix numbers (`numbers_of`) of the recorded rows."""

    def valid(self, rows: np.ndarray) -> np.ndarray:
        """Whether each row was recorded. bool [n]"""
        return np.isin(self.numbers_of(rows), self.numbers)


def recorded_sketch(program: Program, part: Recorded) -> tuple[RecordedSketch, np.ndarray]:
    """The sketch with the recorded options, and the row of each record.

    Raises: RecordError where a trace does not replay, since a primitive has changed.
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
    for column, (_, positions) in enumerate(options):
        rows[:, column] = positions.ravel()
    return replace(sketch, numbers=np.unique(sketch.numbers_of(rows))), rows

"""Transfer: a run starts from records of other tasks and runs under the same conditions."""

from typing import TYPE_CHECKING

import numpy as np

from retune.records.conditions import Conditions, group
from retune.records.cost import COST_COLUMNS, recorded_costs
from retune.records.store import RecordStore
from retune.schedule.space import Candidates, Sketch, Space, join
from retune.search.history import began
from retune.search.model.features import FEATURES, VERSION
from retune.search.model.learning import TrainingSet, scores

if TYPE_CHECKING:
    from retune.records import Table

_ROWS = 4000
"""Measurements that the model starts from at most, the latest ones."""
_GOOD = 0.9
"""Share of a task's best speed from which on a candidate is a model for similar tasks."""
_COLUMNS = (
    *COST_COLUMNS, "task_key", "conditions", "sketch", "decisions", "timestamp", "features",
    "feature_set", "phase", "trial",
)  # fmt: skip


class WarmStart:
    """The latest measurements that have today's features, before a moment."""

    def __init__(self, rows: "Table") -> None:
        """`rows` in their order, with the columns that `warm_start` reads."""
        features = [np.asarray(values, np.float32) for values in rows["features"]]
        self.training_set = TrainingSet(
            features=np.asarray(features, np.float32).reshape(-1, len(FEATURES)),
            costs=recorded_costs(rows)[1],
            tasks=_groups(rows),
        )
        good = scores(self.training_set)[0] >= _GOOD
        self._good = list(zip(rows.loc[good, "sketch"], rows.loc[good, "decisions"], strict=True))

    def seeds(self, space: Space) -> Candidates:
        """What did well in any task with a sketch of the same name, as this space has it."""
        parts = [space.population(0, np.zeros((0, 0), np.int64))]
        for number, sketch in enumerate(space.sketches):
            flat = [tuple(values) for name, values in self._good if name == sketch.name]
            rows = nearest_rows(sketch, sorted(set(flat)))
            parts.append(space.population(number, rows[sketch.valid(rows)]))
        everyone = join(parts)
        _, indices = np.unique(space.numbers(everyone), return_index=True)
        return everyone.take(np.sort(indices))


def warm_start(store: RecordStore, conditions: Conditions, run_id: str) -> WarmStart:
    """The measurements under these conditions before the run began, of any network."""
    rows = store.scan({**conditions.comparable, "feature_set": VERSION}, _COLUMNS)
    mine = (rows["run_id"] == run_id).to_numpy(bool)
    usable = ~mine & (rows["status"] != "skipped").to_numpy(bool)
    if (moment := began(rows.loc[mine])) is not None:
        usable &= (rows["timestamp"] < moment).to_numpy(bool)
    return WarmStart(rows.loc[usable].sort_values(by="timestamp").tail(_ROWS))


def _groups(rows: "Table") -> np.ndarray:
    """Task and conditions of each row. object [n]"""
    keys = rows["conditions"].to_numpy(object, na_value=None)  # pyrefly: ignore[no-matching-overload]
    return np.array([group(*pair) for pair in zip(rows["task_key"], keys, strict=True)], object)


def nearest_rows(sketch: Sketch, decisions: list[tuple[int, ...]]) -> np.ndarray:
    """The option rows nearest to some flat lists of values; those of other lengths are left out.

    Values are compared by their logarithms, as tile sizes are. int64 [m, decisions]
    """
    widths = [decision.table.shape[1] for decision in sketch.decisions]
    fitting = [values for values in decisions if len(values) == sum(widths)]
    if not fitting or not widths:
        return np.zeros((0, len(widths)), np.int64)
    given = np.split(np.log1p(np.abs(np.asarray(fitting, float))), np.cumsum(widths)[:-1], axis=1)
    columns = [
        np.abs(values[:, None] - np.log1p(np.abs(decision.table))[None]).sum(axis=2).argmin(axis=1)
        for values, decision in zip(given, sketch.decisions, strict=True)
    ]
    return np.stack(columns, axis=1).astype(np.int64)

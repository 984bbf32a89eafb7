"""Features of old rows, computed again by today's rules: a model learns from all that was measured.

A row has its trace and its decisions, and names its expression and its device (`records.origins`).
The sketch is made once for all rows that share it; what no longer replays is left out.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from retune.core.errors import RecordError, ScheduleError
from retune.core.target import DeviceSpec
from retune.ir.stmt import Program, from_dag
from retune.ir.stored import from_text
from retune.records import origins
from retune.schedule.trace import STRUCTURAL, Trace
from retune.search.model.features import FEATURES
from retune.search.model.features.vectors import featurise_rows
from retune.search.recorded import Recorded, recorded_sketch

if TYPE_CHECKING:
    from retune.records import Table

COLUMNS = ("task_key", "spec", "sketch", "decisions", "trace")
"""What of a row its features depend on."""

_LOG = logging.getLogger(__name__)


def refeaturised(root: Path, frame: Table) -> np.ndarray:
    """Today's features of rows with these COLUMNS. float32 [n, len(FEATURES)]; NaN where they
    cannot be computed, for reasons that the log states."""
    features = np.full((len(frame), len(FEATURES)), np.nan, np.float32)
    frame = frame.reindex(columns=list(COLUMNS)).reset_index(drop=True)
    frame["spec"] = frame["spec"].fillna("")
    frame["count"] = [len(values) for values in frame["decisions"]]
    frame["shared"] = [_shared(text) for text in frame["trace"]]
    reasons: Counter[str] = Counter()
    for _, rows in frame.groupby(["task_key", "spec"], sort=False):
        found = _origin(root, str(rows["task_key"].iloc[0]), str(rows["spec"].iloc[0]))
        if isinstance(found, str):
            reasons[found] += len(rows)
            continue
        for _, alike in rows.groupby(["sketch", "shared", "count"], sort=False):
            positions = alike.index.to_numpy()
            try:
                features[positions] = _features(*found, alike)
            except (RecordError, ScheduleError, ValueError) as error:
                reasons[str(error)] += len(alike)
    for reason, count in reasons.items():
        _LOG.warning("%d rows are left out of the training: %s", count, reason)
    return features


def _origin(root: Path, task: str, spec: str) -> tuple[Program, DeviceSpec] | str:
    """The task's program and the device, or why they are not known."""
    try:
        text = origins.read(root, "expression", task)
        device = origins.read_spec(root, spec) if spec else None
        if text is None or device is None:
            return "they were recorded without their expression or device"
        return from_dag(from_text(text, task, f"expression of task {task}"), task[:8]), device
    except RecordError as error:
        return str(error)


def _features(program: Program, spec: DeviceSpec, alike: Table) -> np.ndarray:
    values: Sequence[Sequence[int]] = alike["decisions"].to_list()
    part = Recorded(
        layer=program.name,
        sketch=str(alike["sketch"].iloc[0]),
        trace=Trace.from_json(str(alike["trace"].iloc[0])).undecided(),
        decisions=np.array([list(row) for row in values], np.int64).reshape(len(alike), -1),
        time_us=np.zeros(len(alike)),
    )
    sketch, rows = recorded_sketch(program, part)
    return featurise_rows(sketch, rows, spec)


def _shared(trace: str) -> str:
    """A key of the sketch: the trace without decisions, but for those that change its structure."""
    if any(primitive in trace for primitive in STRUCTURAL):
        return Trace.from_json(trace).undecided().to_json()
    return trace.partition('"decisions"')[0]

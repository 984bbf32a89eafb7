"""A recorded grid as one small file: which candidates there were, and how long each one took.

Traces, environments and single repeats stay behind in the store; a few bytes a row remain.
"""

# pyarrow publishes no types: its values are unknown to the checker.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownMemberType=false

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from retune.core.errors import RecordError
from retune.core.target import DeviceSpec
from retune.records import files
from retune.records.store import RecordStore
from retune.schedule.trace import Trace

_KEY = b"retune.replay"
_KEPT = ("ok", "compile_error", "launch_error", "wrong_result")
"""Statuses that say something of the candidate; the others say something of that moment."""
_QUIET = 0.02
"""Share of reference times that are taken for those of a quiet machine."""
_CALM = 1.15
_SCHEMA = pa.schema(
    [
        pa.field("layer", pa.dictionary(pa.int8(), pa.string())),
        pa.field("sketch", pa.dictionary(pa.int8(), pa.string())),
        pa.field("decisions", pa.list_(pa.int16())),
        pa.field("time_us", pa.float32(), metadata={"unit": "us, null: failed"}),
    ]
)


@dataclass(frozen=True, eq=False)
class Recorded:
    """The outcomes of one sketch of one layer."""

    layer: str
    sketch: str
    names: tuple[tuple[str, int], ...]
    """Each decision and how many values it has."""
    decisions: np.ndarray
    """int64 [n, values]: the values of all decisions, one after the other."""
    time_us: np.ndarray
    """float64 [n]; NaN for a candidate that failed."""

    def decided(self) -> list[dict[str, tuple[int, ...]]]:
        """Each candidate's values, by decision."""
        parts = np.cumsum([width for _, width in self.names])[:-1]
        columns = np.split(self.decisions, parts, axis=1)
        values = [[tuple(row) for row in column.tolist()] for column in columns]
        names = [name for name, _ in self.names]
        return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


@dataclass(frozen=True, eq=False)
class Replay:
    """Everything a replay file holds."""

    spec: DeviceSpec
    notes: Mapping[str, str]
    """When, on what, and under which load the times were taken."""
    recorded: tuple[Recorded, ...]


def pack(
    store: RecordStore,
    layers: Mapping[str, str],
    spec: DeviceSpec,
    path: Path,
    notes: Mapping[str, str],
) -> int:
    """Writes the store's outcomes for the tasks `layers` (key -> name); gives their number.

    Only calm measurements count (see `calm_hashes`), and the fastest of a candidate's.
    """
    frame = _calm(store, list(layers), spec)
    frame["layer"] = [layers[key] for key in frame["task_key"]]
    order = ["layer", "sketch", "time_us"]
    frame = frame.sort_values(order).drop_duplicates(["layer", "config_hash"])
    firsts = frame.drop_duplicates(["layer", "sketch"])
    names = {
        f"{layer}/{sketch}": _decision_names(store, config)
        for layer, sketch, config in zip(
            firsts["layer"], firsts["sketch"], firsts["config_hash"], strict=True
        )
    }
    table = pa.table({name: pa.array(frame[name]) for name in _SCHEMA.names}).cast(_SCHEMA)
    header = {"spec": dataclasses.asdict(spec), "notes": dict(notes), "names": names}
    files.write_durably(table.replace_schema_metadata({_KEY: json.dumps(header).encode()}), path)
    return table.num_rows


def calm_hashes(store: RecordStore, task_key: str, spec: DeviceSpec) -> set[str]:
    """config_hash of the task's candidates that need not be measured again.

    Those that failed by their own fault, and those that ran while the reference kernel beside
    them was at most 15 % slower than it is on a quiet machine.
    """
    return set(_calm(store, [task_key], spec)["config_hash"])


def _calm(store: RecordStore, tasks: list[str], spec: DeviceSpec) -> pd.DataFrame:
    columns = ["task_key", "sketch", "decisions", "config_hash", "status", "reference_us"]
    frame = store.scan({"device": spec.fingerprint, "status": list(_KEPT)}, [*columns, "median_us"])
    reference = frame["reference_us"].to_numpy(np.float64, na_value=np.nan)
    known = reference[np.isfinite(reference)]
    quiet = np.quantile(known, _QUIET) if len(known) else np.inf
    frame["time_us"] = frame["median_us"].where(frame["status"] == "ok")
    disturbed = reference > _CALM * quiet  # False where no reference ran: it failed before that
    return frame.loc[frame["task_key"].isin(tasks).to_numpy(bool) & ~disturbed]


def _decision_names(store: RecordStore, config_hash: str) -> list[tuple[str, int]]:
    trace = store.scan({"config_hash": config_hash}, ["trace"])["trace"].iloc[0]
    return [(name, len(values)) for name, values in Trace.from_json(str(trace)).decisions]


def read_replay(path: Path) -> Replay:
    """What `pack` wrote. Raises: RecordError if the file is something else."""
    try:
        table = pq.read_table(path)
        header = json.loads((table.schema.metadata or {})[_KEY])
    except (OSError, pa.ArrowInvalid, KeyError) as error:
        raise RecordError(
            f"{path}: is not a replay file ({error}); make one with benchmarks/make_replay.py"
        ) from error
    frame: pd.DataFrame = table.to_pandas()
    parts = [_part(frame, place, names) for place, names in header["names"].items()]
    spec = header["spec"]
    spec["extensions"] = tuple(spec["extensions"])
    return Replay(DeviceSpec(**spec), header["notes"], tuple(parts))


def _part(frame: pd.DataFrame, place: str, names: list[tuple[str, int]]) -> Recorded:
    layer, _, sketch = place.partition("/")
    mine = frame.loc[((frame["layer"] == layer) & (frame["sketch"] == sketch)).to_numpy(bool)]
    return Recorded(
        layer=layer,
        sketch=sketch,
        names=tuple((name, width) for name, width in names),
        decisions=np.array(mine["decisions"].to_list(), np.int64).reshape(len(mine), -1),
        time_us=mine["time_us"].to_numpy(np.float64),
    )

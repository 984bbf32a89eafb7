"""Recorded outcomes of layers: a file of them, and spaces of which everything was measured.

`pack` writes a store's outcomes to a file, and `read_replay` reads it. Each sketch is kept by its
trace, so the file outlives the rules that made the sketch: as long as the primitives mean what they
did, its candidates can be built again. Environments and single repeats stay behind in the store; a
few bytes a row remain.

`thin` cuts a space down to a grid that can be measured whole: each decision keeps a few of its
options. `recorded_grid` is the space of what was measured, with the outcomes; tuners sample, mutate
and cross its members as in any other space.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from retune.core.errors import RecordError
from retune.core.target import DeviceSpec
from retune.ir.stmt import Program
from retune.records import files
from retune.records.cost import MOST_DRIFT, quiet_level
from retune.records.store import RecordStore
from retune.schedule.decisions import Decision
from retune.schedule.space import Candidates, Sketch, Space
from retune.schedule.trace import Trace
from retune.search.recorded import Recorded, recorded_sketch
from retune.targets.cost.estimate import estimate

if TYPE_CHECKING:
    import pandas as pd

_SAMPLES = 1024
"""Candidates of a sketch among which the estimate's best is looked for."""
_KEY = b"retune.replay"
_KEPT = ("ok", "compile_error", "launch_error", "wrong_result")
"""Statuses that say something of the candidate; the others say something of that moment."""
_SCHEMA = pa.schema(
    [
        pa.field("layer", pa.dictionary(pa.int8(), pa.string())),
        pa.field("sketch", pa.dictionary(pa.int16(), pa.string())),
        pa.field("trace", pa.dictionary(pa.int16(), pa.string())),
        pa.field("decisions", pa.list_(pa.int16())),
        pa.field("time_us", pa.float32(), metadata={"unit": "us, null: failed"}),
    ]
)


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

    Only quiet measurements count (see `quiet_hashes`), and the fastest of a candidate's. Raises:
    RecordError for sketches of one name with different traces.
    """
    frame = _calm(store, list(layers), spec, ["sketch", "decisions", "trace"])
    frame["layer"] = [layers[key] for key in frame["task_key"]]
    frame["trace"] = [_sketch_text(text) for text in frame["trace"]]
    frame = frame.sort_values(["layer", "sketch", "time_us"], kind="stable")
    _check_traces(frame)
    frame = frame.drop_duplicates(["layer", "config_hash"])
    table = pa.table({name: pa.array(frame[name]) for name in _SCHEMA.names}).cast(_SCHEMA)
    header = {"spec": dataclasses.asdict(spec), "notes": dict(notes)}
    files.write_table(table.replace_schema_metadata({_KEY: json.dumps(header).encode()}), path)
    return table.num_rows


def _sketch_text(trace: str) -> str:
    return Trace.from_json(trace).undecided().to_json()


def _check_traces(frame: pd.DataFrame) -> None:
    """Raises: RecordError where a sketch was changed and kept its name."""
    kinds = frame.drop_duplicates(["layer", "sketch", "trace"])
    again = kinds.loc[kinds.duplicated(["layer", "sketch"]).to_numpy(bool)]
    if len(again):
        layer, sketch = again["layer"].iloc[0], again["sketch"].iloc[0]
        raise RecordError(
            f"replay: the records of {layer} hold different sketches named {sketch!r}; expected "
            "one trace for each name. Record again into an empty store"
        )


def quiet_hashes(store: RecordStore, task_key: str, spec: DeviceSpec) -> set[str]:
    """config_hash of the task's candidates that need not be measured again.

    Those that failed by their own fault, and those that ran in quiet moments (see `cost`).
    """
    return set(_calm(store, [task_key], spec, [])["config_hash"])


def _calm(
    store: RecordStore, tasks: list[str], spec: DeviceSpec, columns: list[str]
) -> pd.DataFrame:
    """The quiet measurements of the tasks: their keys, `time_us`, and these columns."""
    read = ["task_key", "config_hash", "status", "reference_us", "median_us", *columns]
    wanted = {"device": spec.fingerprint, "status": list(_KEPT)}
    frame = store.scan({**wanted, "task_key": tasks}, read)
    reference = frame["reference_us"].to_numpy(np.float64, na_value=np.nan)
    usual = store.scan(wanted, ["reference_us"])["reference_us"]
    limit = MOST_DRIFT * quiet_level(usual.to_numpy(np.float64, na_value=np.nan))
    frame["time_us"] = frame["median_us"].where(frame["status"] == "ok")
    disturbed = reference > limit  # False where either is unknown: it failed before that
    return frame.loc[~disturbed]


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
    places = frame[["layer", "sketch", "trace"]].drop_duplicates().astype(str)
    parts = [
        _part(frame, layer, sketch, trace)
        for layer, sketch, trace in zip(
            places["layer"], places["sketch"], places["trace"], strict=True
        )
    ]
    spec = header["spec"]
    for name in ("extensions", "instructions"):
        spec[name] = tuple(spec.get(name, ()))
    return Replay(DeviceSpec(**spec), header["notes"], tuple(parts))


def _part(frame: pd.DataFrame, layer: str, sketch: str, trace: str) -> Recorded:
    mine = frame.loc[((frame["layer"] == layer) & (frame["sketch"] == sketch)).to_numpy(bool)]
    return Recorded(
        layer=layer,
        sketch=sketch,
        trace=Trace.from_json(trace),
        decisions=np.array(mine["decisions"].to_list(), np.int64).reshape(len(mine), -1),
        time_us=mine["time_us"].to_numpy(np.float64),
    )


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

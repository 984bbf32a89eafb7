"""A packed grid holds the quiet outcomes of a store, and gives them back as they were."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.recorded import pack, quiet_hashes, read_replay
from retune.core.errors import RecordError
from retune.core.target import GENERIC_CPU
from retune.records.schema import Measurement, Status, TuningRecord
from retune.records.store import RecordStore
from retune.schedule.trace import Trace, TraceStep

SKETCH = Trace(
    (
        TraceStep("sample_compute_location", (("block", "x"), ("name", "at.x"))),
        TraceStep("sample_tile", (("loop", "i"), ("name", "tile")), ("tile@0", "tile@1")),
        TraceStep("sample_categorical", (("name", "unroll"),), ("unroll@0",)),
    ),
    (("at.x", (3,)),),
)


def _record(config: str, time_us: float | None, reference_us: float | None, status: Status = "ok"):
    decided = {"tile": (int(config), 2), "unroll": (1,), "at.x": (3,)}
    return TuningRecord(
        run_id="run",
        model="layer",
        target="cpu",
        task_key="task",
        task_name="dense",
        sketch="s",
        decisions=(int(config), 2, 1),
        trace=SKETCH.with_decisions(decided).to_json(),
        config_hash=config,
        device=GENERIC_CPU.fingerprint,
        measurement=Measurement(status=status, median_us=time_us, reference_us=reference_us),
    )


def _store(folder: Path) -> RecordStore:
    store = RecordStore(folder / "records")
    store.append(
        [
            _record("1", 10.0, 100.0),
            _record("2", 70.0, 300.0),  # taken beside something else
            _record("2", 12.0, 101.0),
            _record("3", 90.0, 250.0),
            _record("4", None, None, "compile_error"),
            _record("5", None, None, "timeout"),
        ]
    )
    return store


def test_disturbed_measurements_and_timeouts_are_to_be_repeated(tmp_path: Path):
    assert quiet_hashes(_store(tmp_path), "task", GENERIC_CPU) == {"1", "2", "4"}


def test_a_lucky_reference_makes_no_disturbance_of_the_others(tmp_path: Path):
    store = RecordStore(tmp_path / "records")
    store.append([_record(str(n), 10.0, 100.0 if n else 80.0) for n in range(20)])
    assert len(quiet_hashes(store, "task", GENERIC_CPU)) == 20


def test_a_packed_grid_is_read_back(tmp_path: Path):
    path = tmp_path / "replay.parquet"
    notes = {"note": "quiet"}
    assert pack(_store(tmp_path), {"task": "dense"}, GENERIC_CPU, path, notes) == 3
    replay = read_replay(path)
    assert replay.spec == GENERIC_CPU and replay.notes == notes
    (part,) = replay.recorded
    assert (part.layer, part.sketch) == ("dense", "s")
    assert part.trace == SKETCH
    assert part.trace.sampled == (("tile", 2), ("unroll", 1))
    found = dict(zip(map(tuple, part.decisions.tolist()), part.time_us.tolist(), strict=True))
    assert np.isnan(found.pop((4, 2, 1)))  # it failed
    assert found == {(1, 2, 1): 10.0, (2, 2, 1): 12.0}


def test_a_sketch_that_changed_under_its_name_is_refused(tmp_path: Path):
    store = _store(tmp_path)
    other = replace(_record("6", 9.0, 100.0), trace=Trace(SKETCH.steps[1:]).to_json())
    store.append([other])
    with pytest.raises(RecordError, match="different sketches named 's'"):
        pack(store, {"task": "dense"}, GENERIC_CPU, tmp_path / "replay.parquet", {})


def test_another_file_is_refused(tmp_path: Path):
    (tmp_path / "x").write_text("no")
    with pytest.raises(RecordError, match="is not a replay file"):
        read_replay(tmp_path / "x")

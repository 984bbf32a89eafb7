"""A packed grid holds the calm outcomes of a store, and gives them back as they were."""

from pathlib import Path

import pytest

from retune.core.errors import RecordError
from retune.core.target import GENERIC_CPU
from retune.records.replay import calm_hashes, pack, read_replay
from retune.records.schema import Measurement, Status, TuningRecord
from retune.records.store import RecordStore
from retune.schedule.trace import Trace


def _record(config: str, time_us: float | None, reference_us: float | None, status: Status = "ok"):
    decided = {"tile": (int(config), 2), "unroll": (1,)}
    return TuningRecord(
        run_id="run",
        model="layer",
        target="cpu",
        task_key="task",
        task_name="dense",
        sketch="s",
        decisions=(int(config), 2, 1),
        trace=Trace().with_decisions(decided).to_json(),
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
    assert calm_hashes(_store(tmp_path), "task", GENERIC_CPU) == {"1", "2", "4"}


def test_a_packed_grid_is_read_back(tmp_path: Path):
    path = tmp_path / "replay.parquet"
    notes = {"note": "quiet"}
    assert pack(_store(tmp_path), {"task": "dense"}, GENERIC_CPU, path, notes) == 3
    replay = read_replay(path)
    assert replay.spec == GENERIC_CPU and replay.notes == notes
    (part,) = replay.recorded
    assert (part.layer, part.sketch) == ("dense", "s")
    found = dict(zip((d["tile"] for d in part.decided()), part.time_us.tolist(), strict=True))
    assert found.pop((4, 2)) != found.get((4, 2))  # NaN: it failed
    assert found == {(1, 2): 10.0, (2, 2): 12.0}


def test_another_file_is_refused(tmp_path: Path):
    (tmp_path / "x").write_text("no")
    with pytest.raises(RecordError, match="is not a replay file"):
        read_replay(tmp_path / "x")

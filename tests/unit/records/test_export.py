"""An exported file is read back by the usual tools, and says what the store says."""

import json
from pathlib import Path

import pandas as pd
import pytest

from retune.core.errors import InputError
from retune.records.export import FORMATS, export
from retune.records.store import RecordStore
from tests.support.store import record

FEATURES = tuple(0.1 * i for i in range(2000))


def read(path: Path) -> pd.DataFrame:
    match path.suffix:
        case ".csv":
            frame = pd.read_csv(path)
            nested = ("decisions", "features", "run_times_us", "env", "knobs")
            return frame.assign(**{name: frame[name].map(json.loads) for name in nested})
        case ".json":
            return pd.read_json(path, lines=True)
        case _:
            return pd.read_parquet(path)


@pytest.mark.parametrize("ending", FORMATS)
def test_what_is_read_back_is_what_the_store_holds(ending: str, tmp_path: Path):
    store = RecordStore(tmp_path / "records")
    store.append([record(i, features=FEATURES) for i in range(3)])
    path = tmp_path / "made" / f"table{ending}"
    assert export(store, path) == 3
    found, kept = read(path).sort_values("median_us"), store.scan().sort_values("median_us")
    assert list(found.columns) == list(kept.columns)
    assert found["record_id"].tolist() == kept["record_id"].tolist()
    assert found["median_us"].tolist() == kept["median_us"].tolist()
    assert [list(row) for row in found["decisions"]] == [list(row) for row in kept["decisions"]]
    if path.suffix != ".parquet":
        assert found["knobs"].tolist() == [{"tile": [i, 2], "unroll": [3]} for i in range(3)]
    for row in found["features"]:
        assert list(row) == pytest.approx(FEATURES, rel=1e-6)
    times = pd.to_datetime(found["timestamp"], format="ISO8601", utc=True)
    assert times.tolist() == kept["timestamp"].tolist()
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_only_what_matches_is_exported(tmp_path: Path):
    store = RecordStore(tmp_path / "records")
    store.append([record(0)])
    store.append([record(1, model="other")])
    path = tmp_path / "table.csv"
    assert export(store, path, {"model": "other"}) == 1
    assert set(pd.read_csv(path)["model"]) == {"other"}


def test_another_ending_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r"ends with .csv, .json, .parquet"):
        export(RecordStore(tmp_path), tmp_path / "table.xls")

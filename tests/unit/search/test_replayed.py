"""Rows of other feature versions: their features are computed again from expression and trace."""

import logging
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retune.core.target import GENERIC_CPU
from retune.ir.stmt import from_dag
from retune.ir.stored import to_text
from retune.records import origins
from retune.records.schema import TuningRecord
from retune.records.store import RecordStore
from retune.search.model.features import VERSION, featurise
from retune.search.model.offline import check_trainable, load_rows
from retune.search.model.replayed import COLUMNS, refeaturised
from retune.targets.cpu.space import cpu_space
from tests.support.dags import conv2d
from tests.support.store import record

DAG = conv2d(1, 9, 9, 24, 32)
SPACE = cpu_space(from_dag(DAG), GENERIC_CPU)
CHOSEN = SPACE.sample(40, np.random.default_rng(0))
EXPECTED = featurise(SPACE, CHOSEN, GENERIC_CPU)


def old_rows(root: Path, feature_set: str = "0") -> list[TuningRecord]:
    """What a search of an earlier feature version recorded."""
    text = to_text(DAG)
    assert text is not None
    origins.keep(root, "expression", DAG.key, text)
    spec = origins.keep_spec(root, GENERIC_CPU)
    found: list[TuningRecord] = []
    for number in range(len(CHOSEN)):
        candidate = SPACE.candidate(CHOSEN, number)
        values = tuple(v for _, chosen in candidate.decisions for v in chosen)
        row = record(
            number,
            task_key=DAG.key,
            spec=spec,
            trial=number,
            sketch=candidate.sketch,
            decisions=values,
            trace=SPACE.trace(candidate).to_json(),
            features=(1.0, 2.0),
            feature_set=feature_set,
        )
        found.append(row)
    return found


def test_features_are_those_of_today(tmp_path: Path):
    RecordStore(tmp_path).append(old_rows(tmp_path))
    frame = RecordStore(tmp_path).scan(None, ["trial", *COLUMNS])
    order = frame["trial"].to_numpy(np.int64)
    np.testing.assert_array_equal(refeaturised(tmp_path, frame), EXPECTED[order])


def test_a_model_learns_from_rows_of_all_versions(tmp_path: Path):
    store = RecordStore(tmp_path)
    store.append(old_rows(tmp_path))
    check_trainable(store)
    rows = load_rows(store)
    assert len(rows) == len(CHOSEN)
    today = [
        replace(row, record_id=f"today-{n}", feature_set=VERSION, features=tuple(map(float, each)))
        for n, (row, each) in enumerate(zip(old_rows(tmp_path), EXPECTED, strict=True))
    ]
    store.append(today)
    rows = load_rows(store)
    assert len(rows) == 2 * len(CHOSEN) and np.isfinite(rows.features).all()
    half = len(CHOSEN)
    recorded, computed = rows.features[:half], rows.features[half:]
    np.testing.assert_array_equal(np.sort(recorded, axis=0), np.sort(computed, axis=0))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"spec": ""}, "without their expression or device"),
        ({"task_key": "0" * 32}, "without their expression or device"),
        ({"trace": '{"version":1,"steps":[["split",{}]]}'}, "not a trace"),
        ({"trace": "nothing"}, "not a trace in JSON"),
        ({"decisions": (1,)}, "decisions, got 1"),
    ],
)
def test_rows_that_do_not_replay_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: dict[str, object], reason: str
):
    whole = old_rows(tmp_path)
    store = RecordStore(tmp_path)
    store.append([replace(row, **change) for row in whole[:10]] + whole[10:])
    with caplog.at_level(logging.WARNING):
        assert len(load_rows(store)) == len(whole) - 10
    counts = re.findall(r"(\d+) rows are left out of the training", caplog.text)
    assert sum(map(int, counts)) == 10 and reason in caplog.text


def test_an_origin_is_written_once_and_stays_in_its_folder(tmp_path: Path):
    for text in ("first", "second"):
        origins.keep(tmp_path, "expression", "../../key", text)
    (path,) = (tmp_path / origins.FOLDER).iterdir()
    assert path.read_text() == "first"
    assert origins.read(tmp_path, "expression", "other") is None
    assert origins.read_spec(tmp_path, origins.keep_spec(tmp_path, GENERIC_CPU)) == GENERIC_CPU

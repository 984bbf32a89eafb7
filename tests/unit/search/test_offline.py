"""Offline models: judged on networks they have not seen, registered, used if they are better."""

import dataclasses
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from retune.core.errors import InputError, LookupFailed, RecordError
from retune.core.target import GENERIC_CPU
from retune.records.store import RecordStore
from retune.search.model import offline
from retune.search.model.cost_model import CostModel
from retune.search.model.offline import (
    Rows,
    cross_validate,
    evaluate_model,
    judge,
    load_rows,
    offline_model,
    train,
)
from retune.search.model.registry import FOLDER, registered
from tests.support.offline import START, records_of_curve, store_of

ROOT = Path(__file__).resolve().parents[3]


def test_rows_are_the_records_with_todays_features(tmp_path: Path):
    store = store_of(tmp_path)
    store.append(records_of_curve(0, 1, feature_set="0"))
    rows = load_rows(store)
    assert len(rows) == 180 and len(np.unique(rows.task)) == len(np.unique(rows.network)) == 3
    failed = np.isnan(rows.cost)
    assert failed.sum() == 18 and not rows.score[failed].any()
    best = [rows.score[rows.task == task].max() for task in range(3)]
    assert best == [1.0, 1.0, 1.0] and (rows.score[~failed] > 0).all()


def test_a_held_out_network_is_predicted_without_its_rows(tmp_path: Path):
    """What a model says of a network does not change with that network's times."""
    rows = load_rows(store_of(tmp_path))
    changed = rows.cost.copy()
    held = rows.network == 0
    changed[held] = changed[held][::-1]
    other = Rows(rows.features, changed, rows.task, rows.network, rows.record_id, rows.time)
    before, after = cross_validate(rows, 0), cross_validate(other, 0)
    assert np.array_equal(before[held], after[held])
    assert not np.array_equal(before[~held], after[~held])


def test_metrics_worked_out_by_hand():
    def rows_of(times: list[float]) -> Rows:
        count = len(times)
        zeros = np.zeros(count, np.int64)
        ids, stamps = np.arange(count).astype(str), np.zeros(count, "datetime64[us]")
        return Rows(np.zeros((count, 1), np.float32), np.array(times), zeros, zeros, ids, stamps)

    rows = rows_of([8.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, np.nan])
    perfect = judge(rows, np.array([0, 9, 8, 7, 6, 5, 4, -1.0]))
    assert (perfect.peak1, perfect.peak5) == (1.0, 1.0) and perfect.rank_correlation > 0.97
    backwards = judge(rows, np.array([9, 0, 1, 2, 3, 4, 5, 8.0]))
    assert backwards.peak1 == 1 / 8 and backwards.peak5 == 1 / 4
    assert backwards.rank_correlation < -0.9
    with pytest.raises(InputError, match="8 recorded candidates"):
        judge(rows_of([1.0, 2.0]), np.zeros(2))


def test_a_model_is_registered_and_used_when_it_beats_the_estimate(tmp_path: Path):
    store = store_of(tmp_path)
    assert offline_model(tmp_path, GENERIC_CPU) is None
    card = train(store)
    assert card.in_use and card.beats == "the static estimate" and card.networks == 3
    assert card.held_out.rank_correlation > 0.3 > card.static.rank_correlation
    assert registered(tmp_path) == [card]
    model = offline_model(tmp_path, GENERIC_CPU)
    assert model is not None and model.name == "0001"
    rows = load_rows(store)
    assert judge(rows, CostModel(0, model).predict(rows.features).mean).peak1 > 0.9


def test_a_model_that_ranks_no_better_than_the_estimate_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Times that follow from nothing: peaks may be better by chance, and trust is what counts."""
    store = store_of(tmp_path)
    rng = np.random.default_rng(1)
    monkeypatch.setattr(offline, "cross_validate", lambda rows, _: rng.random(len(rows)))
    card = train(store)
    assert abs(card.trust) < 0.2 and not card.trusted
    assert not card.in_use and offline_model(tmp_path, GENERIC_CPU) is None


def test_a_model_whose_first_choices_are_slower_than_the_estimates_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It orders the candidates of each task rightly, but for the slowest, which it puts first."""
    store = store_of(tmp_path)

    def slowest_first(rows: Rows, _seed: int) -> np.ndarray:
        slowest = [
            np.nanargmax(np.where(rows.task == task, rows.cost, np.nan)) for task in range(3)
        ]
        predicted = rows.score.copy()
        predicted[slowest] = 2.0
        return predicted

    monkeypatch.setattr(offline, "cross_validate", slowest_first)
    card = train(store)
    assert card.held_out.rank_correlation > 0.8 > card.static.rank_correlation
    assert card.held_out.peak1 < card.static.peak1
    assert not card.trusted and not card.in_use and offline_model(tmp_path, GENERIC_CPU) is None
    assert card.verdict.startswith("not in use: it does not beat the static estimate in both")


def test_the_same_records_and_seed_give_the_same_model(tmp_path: Path):
    store = store_of(tmp_path)
    first, second = train(store), train(store)
    assert first.data == second.data and first.held_out == second.held_out
    texts = [(tmp_path / FOLDER / name / "member-0.json").read_bytes() for name in ("0001", "0002")]
    assert texts[0] == texts[1]


def test_a_challenger_needs_new_records_to_replace_the_model_in_use(tmp_path: Path):
    store = store_of(tmp_path)
    train(store)
    again = train(store)
    assert not again.in_use and again.number == 2
    assert "does not beat the model in use" in again.verdict
    in_use = offline_model(tmp_path, GENERIC_CPU)
    assert in_use is not None and in_use.name == "0001"


def test_a_run_goes_on_with_the_model_that_it_began_with(tmp_path: Path):
    train(store_of(tmp_path))
    later = datetime.now(UTC) + timedelta(minutes=1)
    assert offline_model(tmp_path, GENERIC_CPU, START) is None
    assert offline_model(tmp_path, GENERIC_CPU, later) is not None


def test_new_records_judge_the_model_in_use(tmp_path: Path):
    store = store_of(tmp_path)
    train(store)
    with pytest.raises(InputError, match="no record is newer"):
        evaluate_model(store)
    store_of(tmp_path, day=2)
    found = evaluate_model(store, "0001")
    assert found["model 0001"].rank_correlation > found["static estimate"].rank_correlation
    with pytest.raises(LookupFailed, match="0001"):
        evaluate_model(store, "0007")


def test_a_model_for_another_class_of_device_is_not_used(tmp_path: Path):
    train(store_of(tmp_path))
    gpu = dataclasses.replace(GENERIC_CPU, device_class="gpu")
    assert offline_model(tmp_path, gpu) is None


def test_stores_that_cannot_train_a_model_are_refused(tmp_path: Path):
    store = RecordStore(tmp_path)
    store.append(records_of_curve(0, 0, feature_set=""))
    with pytest.raises(InputError, match="no record has features"):
        train(store)
    store.append(records_of_curve(0, 1))
    with pytest.raises(InputError, match="second one"):
        train(store)
    with pytest.raises(LookupFailed, match="retune model train"):
        evaluate_model(store)
    assert registered(tmp_path) == []


def test_a_damaged_card_is_named(tmp_path: Path):
    train(store_of(tmp_path))
    (tmp_path / FOLDER / "0001" / "card.json").write_text("{}")
    with pytest.raises(RecordError, match=r"0001/card\.json"):
        offline_model(tmp_path, GENERIC_CPU)


@pytest.mark.process
def test_example_judges_a_model_on_a_network_held_out(tmp_path: Path):
    done = run_example(store_of(tmp_path).root)
    assert done.returncode == 0, done.stderr
    ranks = re.findall(r"^conv2d: (-?[\d.]+) over 54 candidates$", done.stdout, re.MULTILINE)
    assert len(ranks) == 1 and float(ranks[0]) > 0.5


@pytest.mark.process
def test_example_says_which_records_it_needs(tmp_path: Path):
    RecordStore(tmp_path).append(records_of_curve(0, 0, count=10))
    done = run_example(tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("expected records of two networks")


def run_example(store: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "examples/06_train_cost_model.py"), str(store)],
        env={"PYTHONPATH": str(ROOT / "lib"), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

"""Which cost model is in use: the last that was promoted and not taken back."""

import shutil
from pathlib import Path

import pytest

from retune.core.errors import InputError, RecordError
from retune.search.model.registry import (
    FOLDER,
    registered,
    rollback_model,
)
from tests.support.killing import killed_at_each_change
from tests.support.registry import in_use, register


def without_history(root: Path) -> None:
    """As a retune without a history left it."""
    (root / FOLDER / "history.json").unlink()


@pytest.mark.parametrize("old", [True, False])
def test_the_newest_that_was_better_is_in_use(tmp_path: Path, *, old: bool):
    register(tmp_path, 1)
    register(tmp_path, 2)
    register(tmp_path, 3, better=False)
    if old:
        without_history(tmp_path)
    assert in_use(tmp_path) == "0002"
    assert [in_use(tmp_path, day) for day in (0.5, 1, 1.5, 2, 9)] == [
        None, "0001", "0001", "0002", "0002",
    ]  # fmt: skip


@pytest.mark.parametrize("old", [True, False])
def test_going_back_twice_goes_two_back_and_then_there_is_none(tmp_path: Path, *, old: bool):
    for number in (1, 2, 3):
        register(tmp_path, number)
    if old:
        without_history(tmp_path)
    found = [rollback_model(tmp_path, "1") for _ in range(3)]
    assert [card and card.name for card in found] == ["0002", "0001", None]
    assert in_use(tmp_path) is None
    with pytest.raises(InputError, match="static estimate"):
        rollback_model(tmp_path, "1")
    assert len(registered(tmp_path)) == 3, "nothing is deleted"
    register(tmp_path, 4)
    assert in_use(tmp_path) == "0004"
    assert rollback_model(tmp_path, "1") is None, "what was taken back is not gone back to"


def test_a_run_goes_on_with_the_model_that_it_began_with(tmp_path: Path):
    register(tmp_path, 1)
    register(tmp_path, 2)
    rollback_model(tmp_path, "1")
    assert (in_use(tmp_path, 5), in_use(tmp_path)) == ("0002", "0001")


def test_models_of_other_features_are_passed_over(tmp_path: Path):
    register(tmp_path, 1, feature_set="1")
    register(tmp_path, 2, feature_set="2")
    assert (in_use(tmp_path), in_use(tmp_path, feature_set="2")) == ("0001", "0002")
    assert rollback_model(tmp_path, "2") is None
    assert in_use(tmp_path) == "0001"


@pytest.mark.parametrize("trust", [-0.02, 0.5])
def test_a_promoted_model_that_is_no_better_than_none_is_passed_over(tmp_path: Path, trust: float):
    """The static estimate's rank correlation is 0.5; earlier versions compared other figures."""
    register(tmp_path, 1)
    register(tmp_path, 2, trust=trust)
    assert in_use(tmp_path) == "0001"


def test_a_model_of_an_older_retune_is_in_use_beside_a_history(tmp_path: Path):
    register(tmp_path, 1)
    history = (tmp_path / FOLDER / "history.json").read_bytes()
    register(tmp_path, 2)
    (tmp_path / FOLDER / "history.json").write_bytes(history)
    assert in_use(tmp_path) == "0002"
    rollback_model(tmp_path, "1")
    assert in_use(tmp_path) == "0001"


def test_a_damaged_history_is_named(tmp_path: Path):
    register(tmp_path, 1)
    (tmp_path / FOLDER / "history.json").write_text("[]")
    with pytest.raises(RecordError, match=r"history\.json: expected a history"):
        in_use(tmp_path)


def test_a_kill_leaves_one_model_or_the_other_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def setup() -> None:
        shutil.rmtree(tmp_path / FOLDER, ignore_errors=True)
        register(tmp_path, 1)

    def action() -> None:
        register(tmp_path, 2)
        rollback_model(tmp_path, "1")

    seen: list[str | None] = []
    for _ in killed_at_each_change(monkeypatch, setup, action):
        seen.append(in_use(tmp_path))
        register(tmp_path, 3)
        assert in_use(tmp_path) == "0003"
        rollback_model(tmp_path, "1")
        assert in_use(tmp_path) == seen[-1]
    assert sorted(set(seen), key=str) == ["0001", "0002"] and in_use(tmp_path) == "0001"

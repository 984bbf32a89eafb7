"""`retune model` trains on the records, lists the models, and judges them on newer records."""

import json
from pathlib import Path

import pytest

import retune.prefect.launch
from retune.cli.commands import model
from retune.cli.main import run_command
from retune.pipeline.upkeep import stage_retrain
from tests.support.offline import store_of


@pytest.fixture
def without_prefect(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flow's one stage, called as a function."""
    monkeypatch.setattr(retune.prefect.launch, "run_flow", lambda call: call())
    monkeypatch.setattr(model, "_retrain", stage_retrain)


def _output(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run_command(arguments) == 0
    return capsys.readouterr().out


@pytest.mark.usefixtures("without_prefect")
def test_a_model_is_trained_listed_and_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    store_of(tmp_path)
    records = ["--records", str(tmp_path)]
    assert "in use: it beats the static estimate" in _output(["model", "train", *records], capsys)
    (listed,) = json.loads(_output(["model", "list", "--json", *records], capsys))
    assert listed["number"] == 1 and listed["held_out"]["tasks"] == 3
    assert "the static estimate" in _output(["model", "list", *records], capsys)
    store_of(tmp_path, day=3)
    found = json.loads(_output(["model", "evaluate", "0001", "--json", *records], capsys))
    assert found["model 0001"]["peak5"] >= found["static estimate"]["peak5"]

"""`retune versions`, `retune rollback` and `retune model rollback`."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from retune.bundle.format import read_bundle
from retune.bundle.versions import Gain, restate, versions
from retune.cli.main import run_command
from retune.search.model.features import VERSION
from tests.support.registry import in_use, register
from tests.support.versions import old_publication, publish


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder with two versions, of which the second was faster."""
    folder = tmp_path / "out"
    publish(folder, "one")
    publish(folder, "two")
    gain = Gain(over=1, ratio=0.91234, low=0.9, high=0.95)
    restate(folder, replace(versions(folder)[1], gain=gain, deviation=2e-6, verdict="faster"))
    return folder


def test_versions_are_listed(out: Path, capsys: pytest.CaptureFixture[str]):
    assert run_command(["versions", str(out)]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    shown = [line.split() for line in lines if line.strip()]
    assert shown[-1][0] == "2" and "yes" in shown[-1] and "faster" in shown[-1]
    assert "0.912x of version 1" in lines[-1] or "0.912x of version 1" in lines[-2]
    assert run_command(["versions", str(out), "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["current"], second["current"]) == (False, True)
    assert second["gain"]["ratio"] == 0.91234 and first["gain"] is None


def test_what_was_before_is_published_again(out: Path, capsys: pytest.CaptureFixture[str]):
    assert run_command(["rollback", str(out)]) == 0
    said = capsys.readouterr().out
    assert f"{out}: version 1 of " in said and "version 2 no longer is" in said
    assert read_bundle(out / "module").name == "one"
    assert run_command(["rollback", str(out)]) == 2
    assert "none to go back to" in capsys.readouterr().err


def test_rolling_back_prints_data(out: Path, capsys: pytest.CaptureFixture[str]):
    assert run_command(["rollback", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["number"] == 1


@pytest.mark.parametrize("command", ["versions", "rollback"])
@pytest.mark.parametrize("kind", ["nothing", "empty", "old"])
def test_a_folder_without_versions_is_refused_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, kind: str
):
    folder = tmp_path / "out"
    if kind != "nothing":
        folder.mkdir()
    if kind == "old":
        old_publication(folder, "one")
    before = sorted(folder.rglob("*"))
    assert run_command([command, str(folder)]) == 2
    assert "expected a folder with versions of a bundle, got none" in capsys.readouterr().err
    assert sorted(folder.rglob("*")) == before


def test_a_cost_model_is_taken_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    register(tmp_path, 1, feature_set=VERSION)
    register(tmp_path, 2, feature_set=VERSION)
    records = ["--records", str(tmp_path)]
    assert run_command(["model", "list", *records]) == 0
    assert "in use: model 0002" in capsys.readouterr().out
    assert run_command(["model", "rollback", *records]) == 0
    assert "in use: model 0001" in capsys.readouterr().out
    assert run_command(["model", "list", "--json", *records]) == 0
    assert [card["current"] for card in json.loads(capsys.readouterr().out)] == [True, False]
    assert run_command(["model", "rollback", *records]) == 0
    assert "in use: none, but the static estimate" in capsys.readouterr().out
    assert in_use(tmp_path, feature_set=VERSION) is None
    assert run_command(["model", "rollback", *records]) == 2
    assert "expected a cost model in use to take back" in capsys.readouterr().err

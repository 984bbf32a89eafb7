"""`retune resume`: which runs there are, and going on with one of them."""

import json
from pathlib import Path

import pytest

from retune.cli.main import run_command
from retune.core.errors import DeviceError
from retune.pipeline.request import TuneRequest
from retune.pipeline.running import recorded_run


class Runs:
    """Stands in for the run itself: what is asked for, where, and how it ends."""

    def __init__(self) -> None:
        self.requests: list[tuple[TuneRequest, bool, bool]] = []
        self.folders: list[Path] = []
        self.error: Exception | None = None

    def __call__(self, request: TuneRequest, *, no_prefect: bool, json: bool) -> None:
        self.requests.append((request, no_prefect, json))
        self.folders.append(Path.cwd())
        with recorded_run(request) as run:
            run.entered("verify")
            if self.error is not None:
                raise self.error


@pytest.fixture
def carried_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """The runs that commands begin; the commands are given in a folder of the test's own."""
    made = Runs()
    monkeypatch.setattr("retune.cli.commands.tune.carry_out", made)
    monkeypatch.setattr("retune.cli.commands.resume.carry_out", made)
    monkeypatch.setenv("RETUNE_LOCKS", str(tmp_path / "locks"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return made


def listed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    capsys.readouterr()
    assert run_command(["resume", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_without_runs_the_list_is_empty(carried_out: Runs, capsys: pytest.CaptureFixture[str]):
    assert run_command(["resume"]) == 0
    assert "runs, the latest at the end: none" in capsys.readouterr().out
    assert listed(capsys) == []


def test_runs_are_listed_with_what_became_of_them(
    carried_out: Runs, capsys: pytest.CaptureFixture[str]
):
    assert run_command(["tune", "zoo:mlp", "--out", "a", "--trials", "4"]) == 0
    carried_out.error = DeviceError("pocl: lost")
    assert run_command(["tune", "nets/kws.onnx", "--out", "b", "--device", "gpu"]) == 1
    assert run_command(["resume"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    _, header, _, *rows = lines
    assert header.split() == ["run", "model", "device", "state", "stage", "since", "why"]
    assert [row.split()[1:5] for row in rows] == [
        ["zoo:mlp", "pocl", "finished", "verify"],
        ["nets/kws.onnx", "gpu", "failed", "verify"],
    ]
    assert "pocl: lost" in rows[1]
    first, second = listed(capsys)
    assert str(first["name"]).startswith("mlp-") and str(second["name"]).startswith("kws-")
    assert (first["state"], second["state"], second["error"]) == (
        "finished",
        "failed",
        "pocl: lost",
    )


def test_a_run_goes_on_with_the_same_request_where_it_was_started(
    carried_out: Runs,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    carried_out.error = DeviceError("pocl: lost")
    command = ["tune", "zoo:mlp", "--out", "a", "--trials", "4", "--shape", "x=1,2", "--seed", "3"]
    assert run_command(command) == 1
    carried_out.error = None
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert run_command(["resume", "mlp", "--no-prefect", "--json"]) == 0
    assert f"goes on in {tmp_path / 'here'}" in capsys.readouterr().err
    (started, *_), (resumed, no_prefect, as_json) = carried_out.requests
    assert resumed == started
    assert (no_prefect, as_json) == (True, True)
    assert carried_out.folders == [tmp_path / "here"] * 2
    assert Path.cwd() == tmp_path
    (run,) = listed(capsys)
    assert (run["state"], run["error"]) == ("finished", "")


def test_the_last_run_is_the_latest_to_change(carried_out: Runs):
    for model in ("zoo:mlp", "zoo:kws", "zoo:mlp"):
        assert run_command(["tune", model, "--out", "a", "--trials", "4"]) == 0
    assert run_command(["resume", "last"]) == 0
    assert carried_out.requests[-1][0].model == "zoo:mlp"


def test_a_run_that_is_not_known_is_bad_input(
    carried_out: Runs, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    assert run_command(["resume", "mlp"]) == 2
    assert "run 'mlp': no run is recorded in" in capsys.readouterr().err
    assert run_command(["tune", "zoo:mlp", "--out", "a", "--trials", "4"]) == 0
    assert run_command(["resume", "vgg"]) == 2
    assert "run 'vgg' is not known; write one of: mlp-" in capsys.readouterr().err


def test_a_run_whose_folder_is_gone_is_started_anew(
    carried_out: Runs,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    assert run_command(["tune", "zoo:mlp", "--out", "a", "--trials", "4"]) == 0
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").rmdir()
    assert run_command(["resume", "last"]) == 2
    assert "is not a folder any more; start it anew with `retune tune`" in capsys.readouterr().err


def test_an_interrupted_run_says_how_to_go_on(
    carried_out: Runs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    assert run_command(["tune", "zoo:mlp", "--out", "a", "--trials", "4"]) == 0

    def interrupted(request: TuneRequest, **_: bool) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("retune.cli.commands.resume.carry_out", interrupted)
    assert run_command(["resume", "last"]) == 130
    assert "continue with: retune resume last" in capsys.readouterr().err

"""`retune nightly` too early, with half of the fleet missing, and before anything is run."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from retune.cli.commands import nightly
from retune.cli.main import run_command
from retune.nightly.members import processes_of_this_machine
from retune.nightly.night import run_night
from retune.records.nights import write_nights
from tests.support.nights import judged, quiet, slowed

BOARD = 'name = "board"\nbase = "pocl"\n'
FLEET = """
out = "fleet"
records = "records"
work = "work"
minutes = 10
{window}
[[model]]
model = "zoo:mlp"
[[model]]
model = "lost.onnx"
[[device]]
name = "board"
device = "sim:board.toml"
[[device]]
name = "unplugged"
device = "sim:gone.toml"
"""

Fleet = Callable[[timedelta], Path]
"""The file of a fleet whose window opens so long after now, for an hour."""


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "board.toml").write_text(BOARD)

    def write(ahead: timedelta) -> Path:
        start = datetime.now(UTC) + ahead
        end = start + timedelta(hours=1)
        window = f'window = {{ start = "{start:%H:%M}", end = "{end:%H:%M}" }}'
        path = tmp_path / "fleet.toml"
        path.write_text(FLEET.format(window=window))
        return path

    return write


def test_a_night_before_its_window_is_refused_and_leaves_nothing(
    fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = fleet(timedelta(hours=3))
    assert run_command(["nightly", "run", "--config", str(path)]) == 2
    said = capsys.readouterr().err
    assert "expected a time within its window, which opens at" in said and "--now" in said
    assert not (tmp_path / "work").exists() and not (tmp_path / ".retune").exists()


def test_a_night_just_before_its_window_is_handed_to_the_flow_which_waits(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
):
    class Handed(Exception):
        pass

    def run_flow(_: object) -> None:
        raise Handed

    monkeypatch.setattr("retune.prefect.launch.run_flow", run_flow)
    path = fleet(timedelta(minutes=5))
    with pytest.raises(Handed):
        nightly.run(path)


@pytest.mark.device
def test_the_plan_says_who_gets_what_and_runs_nothing(
    fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = fleet(timedelta(hours=3))
    assert run_command(["nightly", "plan", "--config", str(path), "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert [(turn["model"], turn["device"]) for turn in planned["turns"]] == [("mlp", "board")]
    assert planned["turns"][0]["minutes"] == pytest.approx(10)
    opens = datetime.fromisoformat(planned["opens"])
    assert timedelta(hours=2, minutes=58) < opens - datetime.now(UTC) <= timedelta(hours=3)
    broken = {(model, device): why for model, device, why in planned["broken"]}
    assert set(broken) == {("mlp", "unplugged"), ("lost", "board"), ("lost", "unplugged")}
    assert "got no file" in broken["lost", "board"] and "gone.toml" in broken["mlp", "unplugged"]
    assert not (tmp_path / "records").exists() and not (tmp_path / "fleet").exists()
    assert run_command(["nightly", "plan", "--config", str(path)]) == 0
    printed = capsys.readouterr().out
    assert f"night {planned['night']}, {opens:%Y-%m-%d %H:%M} to " in printed
    assert "lost/board: cannot be tuned: " in printed


def test_the_result_is_shown_also_where_models_and_devices_are_gone(
    fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = fleet(timedelta(hours=3))
    machine = processes_of_this_machine()
    with run_night(tmp_path / "work", "first", machine, lambda: datetime.now(UTC)) as night:
        night.plan({("mlp", "board"): 5.0, ("lost", "board"): 0.0})
        night.fail(("lost", "board"), "expected an ONNX file, got no file")
        night.end()
    assert run_command(["nightly", "status", "--config", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "lost/board: failed; expected an ONNX file" in printed
    assert "nothing was tuned in this night" in printed


def test_two_nights_are_compared_side_by_side(
    fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = fleet(timedelta(hours=3))
    rows = [replace(row, fleet="fleet") for row in quiet(30)]
    slower = [slowed(row, time=1.1) for row in rows[20:]]
    write_nights(tmp_path / "records", judged([*rows[:20], *slower]))
    ask = ["nightly", "compare", "2026-03-10", "2026-03-25", "--config", str(path)]
    assert run_command(ask) == 0
    said = capsys.readouterr().out
    assert "mlp/board: real: the same bundle took" in said
    assert "mlp/board: slower since night 2026-03-21: 1." in said
    assert run_command([*ask, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["second"]["verdict"] == "real"
    assert found["second"]["change"] == pytest.approx(1.1, rel=0.03)
    assert found["slower_since"]["night"] == "2026-03-21"
    ask[3] = "2026-05-01"
    assert run_command(ask) == 2
    assert "night 2026-05-01: no such night in the table" in capsys.readouterr().err


def test_no_night_is_named_as_the_page_over_all_of_them(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
):
    path = fleet(timedelta(hours=3))
    ask = ["nightly", "run", "--now", "--campaign", "index", "--config", str(path)]
    assert run_command(ask) == 2
    assert "campaign: expected another name than index" in capsys.readouterr().err

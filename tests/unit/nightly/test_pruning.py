"""Old nights go with all that they left; the latest, a running one and published versions stay."""

import json
import os
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from retune.cli.main import run_command
from retune.core.errors import InputError
from retune.core.locking import exclusive
from retune.nightly.config import NightlyConfig, load_config
from retune.nightly.members import page_of
from retune.nightly.night import run_night
from retune.nightly.pruning import Pruning, plan_pruning, prune
from retune.pipeline.manifest import TaskManifest
from retune.pipeline.stage import load, run_once
from tests.support.fakes import Clock, Machine

FLEET = """
out = "out"
records = "records"
work = "work"
[[model]]
model = "zoo:mlp"
[[device]]
name = "pocl"
"""
NIGHTS = ("2026-03-01", "2026-03-02", "2026-03-03")


class Fleet:
    """Three nights, a day apart; each has a page and an output of a stage."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "fleet.toml"
        self.file.write_text(FLEET)
        self.config: NightlyConfig = load_config(self.file)
        self.work, self.machine, self.clock = Path(self.config.work), Machine(), Clock()
        for name in NIGHTS:
            with run_night(self.work, name, self.machine.start("a"), self.clock) as night:
                night.end()
            page = page_of(self.config, name)
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text("page")
            self.output(name)
            self.clock.turn(24)
        self.published = folder / "out" / "mlp" / "pocl" / "versions" / "0001" / "module.json"
        self.published.parent.mkdir(parents=True)
        self.published.write_text("{}")

    def output(self, name: str, moment: datetime | None = None) -> Path:
        """The folder of an output of that name, used last at that moment, by default now."""

        def body(folder: Path) -> TaskManifest:
            (folder / "file").write_text("content")
            return TaskManifest(model_key=name, tasks=())

        made = run_once(TaskManifest, stage="extract", key=name, work=self.work, body=body)
        folder, used = Path(made.folder), (moment or self.clock.now).timestamp()
        os.utime(folder / "manifest.sha256", (used, used))
        return folder

    def plan(self, *, keep: int | None = None, days: int | None = None) -> Pruning:
        processes = self.machine.start("pruner")
        return plan_pruning(self.config, processes, self.clock.now, keep=keep, days=days)

    def left(self) -> list[str]:
        return sorted(path.name for path in (self.work / "nights").iterdir())


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def test_the_last_nights_are_kept_with_what_they_used(fleet: Fleet):
    found = fleet.plan(keep=2)
    assert (found.nights, found.kept) == (NIGHTS[:1], NIGHTS[1:])
    assert [output.folder.name for output in found.leftovers.outputs] == [NIGHTS[0]]
    assert found.bytes > 0
    prune(found)
    assert fleet.left() == list(NIGHTS[1:])
    assert [page_of(fleet.config, name).is_file() for name in NIGHTS] == [False, True, True]
    assert sorted(path.name for path in (fleet.work / "extract").iterdir()) == list(NIGHTS[1:])
    assert fleet.published.is_file()


def test_planning_removes_nothing(fleet: Fleet):
    fleet.plan(keep=1)
    assert fleet.left() == list(NIGHTS)


def test_the_latest_night_stays_however_old_it_is(fleet: Fleet):
    fleet.clock.turn(24 * 365)
    assert fleet.plan(days=30).kept == NIGHTS[-1:]


def test_a_night_that_is_run_stays(fleet: Fleet):
    with run_night(fleet.work, NIGHTS[0], fleet.machine.start("b"), fleet.clock):
        assert fleet.plan(keep=1).nights == NIGHTS[1:2]


def test_an_output_that_is_loaded_counts_as_used(fleet: Fleet):
    folder = fleet.output("shared", fleet.clock.now - timedelta(days=30))
    assert folder in [output.folder for output in fleet.plan(keep=3).leftovers.outputs]
    assert load(TaskManifest, folder) is not None
    assert folder not in [output.folder for output in fleet.plan(keep=3).leftovers.outputs]


def test_an_output_that_somebody_makes_stays(fleet: Fleet):
    found = fleet.plan(keep=2)
    (output,) = found.leftovers.outputs
    with exclusive(output.lock):
        prune(found)
    assert output.folder.is_dir()


@pytest.mark.parametrize("given", [{}, {"keep": 1, "days": 1}])
def test_either_nights_or_days_are_given(fleet: Fleet, given: dict[str, int]):
    with pytest.raises(InputError, match="--keep NIGHTS or --days DAYS"):
        fleet.plan(**given)


def test_the_command_says_what_it_removes(
    fleet: Fleet, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(fleet.file.parent)
    monkeypatch.setenv("PREFECT_HOME", str(fleet.file.parent / "prefect"))
    command = ["nightly", "prune", "--config", str(fleet.file), "--keep", "1", "--json"]
    assert run_command([*command, "--dry-run"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["removed"], said["nights"]) == (False, list(NIGHTS[:2]))
    assert fleet.left() == list(NIGHTS)
    assert run_command(command) == 0
    assert json.loads(capsys.readouterr().out)["removed"]
    assert fleet.left() == [NIGHTS[-1]]

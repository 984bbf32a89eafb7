"""A night from its plan to its notices; who tunes is a function of the test."""

import errno
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

from retune.core.errors import InputError, RunStopped, VerifyError
from retune.nightly.config import load_config
from retune.nightly.control import stage_champion
from retune.nightly.night import NightState, read_night, run_night
from retune.nightly.run import EARLY, NightRun, Services, beginning, wait_until
from retune.pipeline.calling import InProcess
from retune.pipeline.manifest import PublishedManifest
from retune.pipeline.request import TuneRequest
from retune.pipeline.results import TuneResult
from retune.search.model.registry import ModelCard
from tests.support.cli import result
from tests.support.fakes import Clock, Machine

FLEET = """
out = "fleet"
records = "records"
work = "work"
minutes = 10
window = { start = "22:00", end = "06:00" }
[[model]]
model = "lost.onnx"
[[device]]
name = "board"
device = "sim:board.toml"
[notify]
on = ["always"]
command = ["tee", "--append", "notices.txt"]
"""


@pytest.fixture
def clock() -> Clock:
    return Clock()


P = ParamSpec("P")
R = TypeVar("R")

PUBLISHED = PublishedManifest(module="m", report="r", promoted=True, why="it is the first one")

Night = Callable[..., NightState]


def refuse(request: TuneRequest) -> TuneResult:
    raise VerifyError(f"{request.model}: wrong")


def no_model(_: str) -> ModelCard:
    raise InputError("too few records")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "board.toml").write_text('name = "board"\nbase = "pocl"\n')
    (tmp_path / "fleet.toml").write_text(FLEET)
    return tmp_path


@pytest.fixture
def run(folder: Path, clock: Clock) -> Night:
    def go(**services: object) -> NightState:
        config = load_config(folder / "fleet.toml")
        given = {"stages": InProcess(), "tune": refuse, "retrain": no_model, **services}
        with run_night(folder / "work", "n", Machine().start("p"), clock) as night:
            return NightRun(
                config=config,
                night=night,
                hours=config.hours,
                clock=clock,
                services=Services(**given),  # type: ignore[arg-type]
            ).go()

    return go


def stored(folder: Path) -> NightState:
    state = read_night(folder / "work", "n")
    assert state is not None
    return state


@pytest.mark.device
def test_a_night_in_which_nothing_can_be_tuned_ends_and_is_told(run: Night, folder: Path):
    shown: list[str] = []
    state = run(show=lambda summary, _: shown.append(summary.name))
    (member,) = state.members
    assert (member.status, state.finished) == ("failed", True)
    assert "lost.onnx: expected an ONNX file" in member.reason
    notice = (folder / "notices.txt").read_text()
    assert "nothing was tuned in this night" in notice and "got no file" in notice
    assert "notify command" in {note.step for note in stored(folder).notes}
    page = (folder / "fleet/nights/n.html").read_text()
    assert "told of failure, idle" in page and shown == ["n"]
    assert 'href="n.html"' in (folder / "fleet/nights/index.html").read_text()


@pytest.mark.device
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RunStopped("the flow run was cancelled"), "the flow run was cancelled"),
        (KeyboardInterrupt(), "interrupted"),
        (ZeroDivisionError("a bug"), "ZeroDivisionError: a bug"),
    ],
)
def test_however_a_night_ends_people_are_told(
    run: Night, folder: Path, error: BaseException, said: str
):
    def check() -> None:
        raise error

    with pytest.raises(type(error)):
        run(check=check)
    last = stored(folder).attempts[-1]
    assert last.end == "stopped" and said in last.reason
    assert f"the night was stopped: {said}" in (folder / "notices.txt").read_text()
    assert said in (folder / "fleet/nights/n.html").read_text()


@pytest.mark.device
def test_a_notification_that_fails_is_on_record(run: Night, folder: Path):
    config = folder / "fleet.toml"
    config.write_text(FLEET.replace('"tee", "--append", "notices.txt"', '"false"'))
    notes = {note.step: note for note in run().notes}
    assert notes["notify command"].failed
    assert "command false: ended with 1" in notes["notify command"].text
    assert "command false: ended with 1" in (folder / "fleet/nights/n.html").read_text()
    assert json.loads((folder / "work/nights/n/night.json").read_text())["notes"]


class FullDisk(InProcess):
    """Champions cannot be timed, as their controls find no space."""

    def call(self, stage: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        if stage is stage_champion:
            raise OSError(errno.ENOSPC, "No space left on device")
        return stage(*args, **kwargs)


@pytest.mark.device
def test_a_member_does_not_fail_for_the_lack_of_an_absolute_time(
    run: Night, folder: Path, caplog: pytest.LogCaptureFixture
):
    (folder / "fleet.toml").write_text(FLEET.replace("lost.onnx", "zoo:mlp"))
    tuned = replace(result(folder), published=PUBLISHED)
    with caplog.at_level(logging.WARNING):
        (member,) = run(stages=FullDisk(), tune=lambda _: tuned).members
    assert member.status == "done"
    assert "mlp on board is not timed tonight: OSError" in caplog.text


def test_a_night_that_is_started_early_waits_and_much_earlier_is_refused(
    folder: Path, clock: Clock
):
    config = load_config(folder / "fleet.toml")
    opens = clock()
    assert beginning(config, opens, outside=False) == opens
    assert beginning(config, opens - EARLY, outside=False) == opens
    early = opens - EARLY - timedelta(seconds=1)
    assert beginning(config, early, outside=True) == early
    with pytest.raises(InputError, match="window, which opens at 2026-03-01 22:00 UTC, in 11 min"):
        beginning(config, early, outside=False)


def test_waiting_ends_when_the_moment_has_come_or_the_run_is_cancelled(clock: Clock):
    asked: list[float] = []

    def pause(seconds: float) -> None:
        asked.append(seconds)
        clock.now += timedelta(seconds=seconds)

    begin = clock()
    wait_until(begin + timedelta(seconds=12), clock, lambda: None, pause)
    assert (clock() - begin).total_seconds() == sum(asked) == 12

    def cancelled() -> None:
        raise RunStopped("cancelled")

    with pytest.raises(RunStopped):
        wait_until(clock() + timedelta(seconds=1), clock, cancelled, pause)

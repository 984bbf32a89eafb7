"""The device lease between processes."""

import subprocess
from pathlib import Path

import pytest

from retune.core.stopwatch import Stopwatch
from retune.core.target import GENERIC_CPU
from retune.device.measure.lease import lease, lock_path
from tests.support.processes import heard, talk
from tests.support.waiting import OtherHolders

HOLDER = """
import logging, sys
logging.basicConfig(stream=sys.stdout, format="%(message)s")
from retune.core.target import GENERIC_CPU
from retune.device.measure import lease as leases
from retune.device.measure.lease import lease
leases.QUIET_S = 0
with lease(GENERIC_CPU):
    print("held")
    sys.stdin.read()
"""


def start(folder: Path) -> subprocess.Popen[str]:
    return talk(HOLDER, RETUNE_LOCKS=str(folder))


@pytest.mark.process
def test_a_second_process_waits_and_says_for_whom(tmp_path: Path):
    with start(tmp_path) as first:
        assert heard(first) == "held"
        with start(tmp_path) as second:
            waiting = heard(second)
            first.communicate("")
            assert f"device {GENERIC_CPU.name} is used by process {first.pid} " in waiting
            assert heard(second).startswith("the wait is over after ")
            assert heard(second) == "held"


@pytest.mark.process
def test_a_killed_holder_frees_the_device(tmp_path: Path):
    with start(tmp_path) as first:
        assert heard(first) == "held"
        first.kill()
        first.wait()
    with start(tmp_path) as second:
        assert heard(second) == "held"


def test_the_lock_lies_in_the_configured_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RETUNE_LOCKS", str(tmp_path / "deep" / "locks"))
    with lease(GENERIC_CPU):
        assert lock_path(GENERIC_CPU).parent == tmp_path / "deep" / "locks"
        assert lock_path(GENERIC_CPU).is_file()


@pytest.fixture
def others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OtherHolders:
    monkeypatch.setenv("RETUNE_LOCKS", str(tmp_path))
    return OtherHolders().install(monkeypatch)


def test_waiting_for_the_device_is_not_time_of_the_run(others: OtherHolders):
    stopwatch = Stopwatch(others)
    others.seconds = 100.0
    with stopwatch.counting():
        began = stopwatch()
        for _ in range(3):
            with lease(GENERIC_CPU):
                others.now += 2.0
    assert stopwatch() - began == 6.0


def test_the_log_tells_once_of_a_wait_that_lasts_and_then_how_long_it_was(
    others: OtherHolders, caplog: pytest.LogCaptureFixture
):
    others.seconds = 100.0
    with lease(GENERIC_CPU):
        pass
    doing = f"device {GENERIC_CPU.name} is used by"
    assert [record.getMessage() for record in caplog.records] == [
        f"{doing} another process; waiting until it ends",
        f"the wait is over after 100 s: {doing} this process",
    ]


def test_turns_at_a_shared_device_are_not_told(
    others: OtherHolders, caplog: pytest.LogCaptureFixture
):
    others.seconds = 0.7
    for _ in range(87):
        with lease(GENERIC_CPU):
            pass
    assert not caplog.records

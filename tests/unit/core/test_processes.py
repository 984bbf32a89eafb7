"""A process is known by more than its number, and by other processes too."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune.core import processes
from retune.core.processes import Holder, is_alive, local_time, this_process
from tests.support.properties import quick


@pytest.fixture(params=["as it is", "without /proc"])
def system(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "without /proc":
        monkeypatch.setattr(processes, "_PROC", tmp_path / "none")
    return request.param


@pytest.mark.process
def test_this_process_is_alive_and_one_that_ended_is_not(system: str):
    here = this_process()
    assert here.process == os.getpid()
    assert is_alive(here)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert not is_alive(replace(here, process=ended.pid))


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_a_number_that_was_used_again_is_another_process():
    assert not is_alive(replace(this_process(), started="1"))


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_a_process_that_ended_and_that_nobody_has_asked_after_is_not_alive():
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert processes._started(ended.pid) == ""


def test_of_another_host_nothing_is_known():
    assert is_alive(Holder(host="elsewhere", process=1, started="2"))


def test_a_holder_says_who_it_is():
    holder = Holder(host="build7", process=12, started="3")
    assert str(holder) == "process 12 on build7"
    since = "2026-01-02T03:04:05+00:00"
    assert str(replace(holder, since=since)).endswith(f" since {local_time(since)}")
    assert local_time("some time") == "some time"


def test_a_line_names_the_holder():
    here = this_process()
    assert Holder.from_line(here.to_line()) == here


@quick(60)
@given(st.text())
def test_other_lines_name_nobody_or_can_be_asked_after(line: str):
    holder = Holder.from_line(line)
    assert holder is None or is_alive(holder) in (True, False)

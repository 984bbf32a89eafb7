"""The device lease between processes."""

import subprocess
from pathlib import Path

import pytest

from retune.core.target import GENERIC_CPU
from retune.device.measure.lease import lease, lock_path
from tests.support.processes import heard, talk

HOLDER = """
import logging, sys
logging.basicConfig(stream=sys.stdout, format="%(message)s")
from retune.core.target import GENERIC_CPU
from retune.device.measure.lease import lease
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
            assert f"device {GENERIC_CPU.name} is being measured by process {first.pid} " in waiting
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

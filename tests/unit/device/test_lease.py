"""The device lease between processes."""

import os
import subprocess
import sys
from pathlib import Path

from retune.core.target import GENERIC_CPU
from retune.device.lease import lease, lock_path

HOLDER = """
import logging, sys
logging.basicConfig(stream=sys.stdout, format="%(message)s")
from retune.core.target import GENERIC_CPU
from retune.device.lease import lease
with lease(GENERIC_CPU):
    print("held", flush=True)
    sys.stdin.read()
"""


def start(folder: Path) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "RETUNE_LOCKS": str(folder),
        "PYTHONPATH": os.pathsep.join(item for item in sys.path if item),
    }
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_second_process_waits_and_says_for_whom(tmp_path: Path):
    with start(tmp_path) as first:
        assert line(first) == "held"
        with start(tmp_path) as second:
            waiting = line(second)
            assert f"is being measured by process {first.pid}; waiting" in waiting
            first.communicate("")
            assert line(second) == "held"
            second.communicate("")


def test_a_killed_holder_frees_the_device(tmp_path: Path):
    with start(tmp_path) as first:
        assert line(first) == "held"
        first.kill()
        first.wait()
    with start(tmp_path) as second:
        assert line(second) == "held"
        second.communicate("")


def test_the_lock_lies_in_the_configured_folder(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("RETUNE_LOCKS", str(tmp_path / "deep" / "locks"))
    with lease(GENERIC_CPU):
        assert lock_path(GENERIC_CPU).read_text() == str(os.getpid())
    with lease(GENERIC_CPU):
        pass

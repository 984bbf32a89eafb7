"""Flow runs of processes that are gone are known by their tags."""

import os
import subprocess
import sys


def test_dead_runs_are_recognised():
    from retune.prefect.reap import is_dead, run_tags

    host, _ = run_tags()
    assert not is_dead(run_tags())
    assert not is_dead([host])
    assert not is_dead([host, "process:of the user's own"])
    assert not is_dead(["host:elsewhere", f"process:{os.getpid()}-1"])
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert is_dead([host, f"process:{ended.pid}-1"])
    assert is_dead([host, f"process:{os.getpid()}-1"])  # the number was used again

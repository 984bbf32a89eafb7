"""A night of two lanes that is killed a few times; `python -m tests.kills 200` kills more."""

import sys
from pathlib import Path

import pytest

from tests.kills.killing import Undisturbed, descendants, kill_nights, lives
from tests.support.processes import talk, tell, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")


@pytest.mark.process
def test_processes_of_processes_are_found():
    start = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'input()']); p.wait()"
    )
    with talk(start) as process:
        assert wait_until(lambda: len(descendants(process.pid)) == 1, 30)
        (child,) = descendants(process.pid).items()
        assert lives(child) and not lives((child[0], "0"))
        tell(process)
    assert not lives(child)


@pytest.mark.slow
@pytest.mark.device
def test_nothing_is_lost_or_decided_otherwise(tmp_path: Path, seed: int):
    undisturbed = Undisturbed(tmp_path / "undisturbed")
    (*_, found) = kill_nights(undisturbed, 5, tmp_path, seed)
    assert found.kills == 5 and not found.defects

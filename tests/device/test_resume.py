"""`retune tune` killed at random moments goes on where it was: nothing is lost or measured twice.

This is plain Python without a flow, on a small network; `tests/flows/test_kill.py` does the same
to the flow, on a large one.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from retune.records.files import list_files
from retune.records.store import RecordStore
from tests.support.device_networks import write
from tests.support.processes import leftovers, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.device,
    pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc"),
]

ROOT = Path(__file__).resolve().parents[2]
KILLS = 5
TRIALS = 40
DEADLINE_S = 240.0
COLUMNS = ["record_id", "run_id", "task_key", "config_hash", "status", "phase"]


class Run:
    """One tuning run in a folder of its own: started, killed, and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = RecordStore(folder / "records")
        self.log = folder / "log.txt"
        self.model = write("bottleneck", folder)

    def start(self) -> subprocess.Popen[bytes]:
        own = {
            "PYTHONPATH": f"{ROOT / 'lib'}:{ROOT}",
            "RETUNE_CACHE": str(self.folder / "cache"),
            "RETUNE_RECORDS": str(self.folder / "records"),
            "RETUNE_LOCKS": str(self.folder),
            "POCL_CACHE_DIR": str(self.folder / "kernels"),
        }
        command = [sys.executable, "-m", "retune.cli.main", "tune", str(self.model), "--no-prefect"]
        (self.folder / "kernels").mkdir(exist_ok=True)
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*command, "--out", "out", "--trials", str(TRIALS), "--seed", "3"],
                cwd=self.folder,
                env={**os.environ, **own},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def files(self) -> int:
        return len(list_files(self.store.root))

    def rows(self) -> pd.DataFrame:
        if not self.store.root.is_dir():
            return pd.DataFrame(columns=COLUMNS)
        return self.store.scan(columns=COLUMNS)

    def kill(self, batches: int, delay_s: float) -> None:
        """Starts the run and kills it that many batches and seconds later; what was there stays.

        On a quick machine a run may have ended by then, which changes nothing of what must hold.
        """
        before, process = self.files(), self.start()

        def has_come_so_far() -> bool:
            return self.files() >= before + batches or process.poll() is not None

        assert wait_until(has_come_so_far, DEADLINE_S), self.log.read_text()
        with contextlib.suppress(subprocess.TimeoutExpired):
            assert process.wait(timeout=delay_s) == 0, self.log.read_text()
        durable = set(self.rows()["record_id"])
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert wait_until(lambda: not leftovers(process.pid), DEADLINE_S), leftovers(process.pid)
        assert durable <= set(self.rows()["record_id"])


def test_killed_again_and_again_it_does_each_trial_once(tmp_path: Path, seed: int):
    moments, run = random.Random(seed), Run(tmp_path)
    for kill in range(KILLS):
        run.kill(batches=int(kill > 0) + moments.randrange(2), delay_s=moments.uniform(0.01, 1.0))

    kept = set(run.rows()["record_id"])
    assert kept
    last = run.start()
    assert last.wait(timeout=DEADLINE_S) == 0, run.log.read_text()
    rows = run.rows()
    assert kept <= set(rows["record_id"])
    trials, finals = rows[rows["phase"] == "search"], rows[rows["phase"] == "final"]
    assert len(trials) == TRIALS
    assert len(trials) + len(finals) == len(rows)
    assert rows["run_id"].nunique() == 1
    assert not trials.duplicated(["task_key", "config_hash"]).any()
    assert set(finals["config_hash"]) <= set(trials["config_hash"])
    assert (tmp_path / "out" / "module" / "module.json").is_file()
    assert not leftovers(last.pid)

    again = run.start()
    assert again.wait(timeout=DEADLINE_S) == 0, run.log.read_text()
    assert set(run.rows()["record_id"]) == set(rows["record_id"])

"""The real thing, killed: `retune tune` on PoCL under SIGKILL loses and repeats nothing."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from retune.records.store import RecordStore
from tests.support.processes import leftovers, wait_until

ROOT = Path(__file__).resolve().parents[2]
KILLS = 5
TRIALS = 160
DEADLINE_S = 300.0

pytestmark = [pytest.mark.slow, pytest.mark.device]


def start(folder: Path) -> subprocess.Popen[bytes]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "RETUNE_"))}
    environment["PYTHONPATH"] = f"{ROOT / 'lib'}:{ROOT}"
    command = [sys.executable, "-m", "retune.cli.main", "tune", "light:squeezenet", "--out", "out"]
    with (folder / "log.txt").open("ab") as log:
        return subprocess.Popen(
            [*command, "--trials", str(TRIALS)],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def record_ids(folder: Path) -> set[str]:
    store = folder / "artifacts" / "records"
    if not store.is_dir():
        return set()
    return set(RecordStore(store).scan(columns=["record_id"])["record_id"].tolist())


def start_and_kill(folder: Path, delay_s: float) -> None:
    """Kills a run that long after its first new records; none of them may be lost."""
    before = record_ids(folder)
    process = start(folder)

    def has_grown_or_ended() -> bool:
        return len(record_ids(folder)) > len(before) or process.poll() is not None

    wait_until(has_grown_or_ended, DEADLINE_S)
    assert process.poll() is None, (folder / "log.txt").read_text()
    time.sleep(delay_s)
    durable = record_ids(folder)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert wait_until(lambda: not leftovers(process.pid), 30), leftovers(process.pid)
    assert before | durable <= record_ids(folder)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_killed_five_times_nothing_is_lost_and_nothing_is_repeated(tmp_path: Path, seed: int):
    moments = random.Random(seed)
    for _ in range(KILLS):
        start_and_kill(tmp_path, moments.uniform(0.0, 3.0))

    kept = record_ids(tmp_path)
    last = start(tmp_path)
    assert last.wait(timeout=DEADLINE_S) == 0, (tmp_path / "log.txt").read_text()
    columns = ["record_id", "run_id", "task_key", "config_hash", "status", "phase"]
    rows = RecordStore(tmp_path / "artifacts" / "records").scan(columns=columns)
    assert kept <= set(rows["record_id"].tolist())
    assert rows["run_id"].nunique() == 1
    tried = rows[(rows["status"] != "skipped") & (rows["phase"] == "search")]
    assert not tried.duplicated(["task_key", "config_hash"]).any()
    assert len(tried) <= TRIALS
    assert (tmp_path / "out" / "module" / "module.json").is_file()

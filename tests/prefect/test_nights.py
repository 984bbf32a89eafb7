"""Three nights of a fleet, unattended: all goes wrong, and the right bundle is published.

Two small networks, PoCL, and a simulated board whose kernels hang and crash, whose driver is lost,
and which computes nonsense. Night 1: these faults, and a folder of somebody else's where a bundle
is to be. Night 2: the Prefect server is killed, and so is the night. Night 3: a candidate that
looks right and is wrong in every bundle.
"""

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from retune.bundle.versions import current
from retune.records.quarantine import quarantined
from retune.records.store import RecordStore
from tests.support.processes import leftovers, wait_until

ROOT = Path(__file__).resolve().parents[2]
REHEARSAL = ROOT / "examples" / "rehearsal"
DEADLINE_S = 400.0

pytestmark = [pytest.mark.slow, pytest.mark.device]

MEMBERS = [("kws", "board"), ("mlp", "board"), ("mlp", "pocl")]


class Fleet:
    """A copy of the example's folder, and the commands that a cron job would give there."""

    def __init__(self, folder: Path, example: Path | None = REHEARSAL) -> None:
        self.folder = folder
        if example is not None:
            shutil.copytree(example, folder, dirs_exist_ok=True)
        self.store = RecordStore(folder / "records")

    def use_board(self, name: str) -> None:
        """Puts another board in the place of the one that the fleet has."""
        shutil.copy(self.folder / "boards" / f"{name}.toml", self.folder / "board.toml")

    def start(self, night: str) -> subprocess.Popen[str]:
        return self._command("run", "--campaign", night)

    def run(self, night: str) -> int:
        """The exit code of a whole night."""
        process = self.start(night)
        process.communicate(timeout=DEADLINE_S)
        return process.returncode

    def status(self, night: str) -> dict[tuple[str, str], dict[str, Any]]:
        """What `retune nightly status` says of each member."""
        out, err = self._command("status", "--night", night, "--json").communicate()
        assert out, err
        members = json.loads(out)["members"]
        return {(member["model"], member["device"]): member for member in members}

    def bundle(self, model: str, device: str) -> Path:
        return self.folder / "fleet" / model / device

    def rows(self) -> pd.DataFrame:
        columns = ["record_id", "run_id", "task_key", "config_hash", "trial", "status", "phase"]
        return self.store.scan(columns=columns)

    def _command(self, *arguments: str) -> subprocess.Popen[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "RETUNE_"))}
        config = ["--config", "nightly.toml"]
        return subprocess.Popen(
            [sys.executable, "-m", "retune.cli.main", "nightly", *arguments, *config],
            cwd=self.folder,
            env=kept | {"PYTHONPATH": f"{ROOT / 'lib'}:{ROOT}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


def check_records(fleet: Fleet, earlier: set[str]) -> set[str]:
    """No record is lost or doubled; gives their ids."""
    rows = fleet.rows()
    ids = set(rows["record_id"])
    assert len(ids) == len(rows)
    assert earlier <= ids
    tried = rows[rows["phase"] == "search"]
    assert not tried.duplicated(["run_id", "trial"]).any()
    tried = tried[tried["status"] != "skipped"]
    assert not tried.duplicated(["run_id", "task_key", "config_hash"]).any()
    return ids


def verified(fleet: Fleet, model: str, device: str) -> bool:
    """Whether what is published agrees with the oracle, by the command that users have."""
    module = fleet.bundle(model, device) / "module"
    command = ["verify", str(module), "--model", f"zoo:{model}"]
    done = subprocess.run(
        [sys.executable, "-m", "retune.cli.main", *command],
        cwd=fleet.folder,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'lib'}:{ROOT}"},
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


def server_of(session: int) -> int | None:
    """The private Prefect server of a night that runs."""
    for line in leftovers(session):
        if "uvicorn" in line:
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    if b"uvicorn" in (folder / "cmdline").read_bytes() and session == os.getsid(
                        int(folder.name)
                    ):
                        return int(folder.name)
                except OSError:
                    continue
    return None


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_three_nights_in_which_everything_goes_wrong(tmp_path: Path):
    fleet = Fleet(tmp_path)

    # Night 1: faults of the board, and a folder that is somebody else's.
    foreign = fleet.bundle("mlp", "pocl") / "module" / "notes.txt"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("not a bundle")
    assert fleet.run("one") == 1
    assert foreign.read_text() == "not a bundle"
    first = fleet.status("one")
    assert first[("mlp", "pocl")]["outcome"] == "failed"
    assert "left as it is" in first[("mlp", "pocl")]["reason"]
    for model, device in MEMBERS[:2]:
        assert first[(model, device)]["outcome"] == "promoted"
    assert {"timeout", "crash", "wrong_result"} <= set(fleet.rows()["status"])
    known = check_records(fleet, set())

    # Night 2: the server is killed, then the night itself; the same night goes on.
    foreign.unlink()
    foreign.parent.rmdir()
    fleet.use_board("healthy")
    process = fleet.start("two")
    assert wait_until(lambda: len(fleet.rows()) > len(known), DEADLINE_S)
    server = server_of(process.pid)
    assert server is not None
    os.kill(server, signal.SIGKILL)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=DEADLINE_S)
    known = check_records(fleet, known)
    assert all(current(fleet.bundle(*member)) for member in MEMBERS[:2])
    assert fleet.run("two") == 0
    known = check_records(fleet, known)
    second = fleet.status("two")
    assert all(member["status"] == "done" for member in second.values())
    for member in MEMBERS[:2]:  # published in night one, and timed in absolute time since
        assert second[member]["verdict"]["time_us"] > 0
        assert second[member]["verdict"]["verdict"] == "noise"
    assert (tmp_path / "fleet" / "nights" / "index.html").is_file()
    assert second[("mlp", "pocl")]["outcome"] == "promoted"
    grown = second[("kws", "board")]
    assert grown["gain"] >= first[("kws", "board")]["gain"]
    assert grown["result"]["ratio"] is None or grown["result"]["ratio"] <= 1.0

    # Night 3: what looks fastest is wrong in its network.
    fleet.use_board("wrong")
    assert fleet.run("three") == 0
    check_records(fleet, known)
    third = fleet.status("three")
    assert all(member["status"] == "done" for member in third.values())
    assert third[("kws", "board")]["gain"] >= grown["gain"]
    assert quarantined(fleet.store.root)
    for model, device in MEMBERS:
        assert current(fleet.bundle(model, device)) is not None
    assert verified(fleet, "mlp", "pocl")
    notices = (tmp_path / "notices.txt").read_text()
    assert "left as it is" in notices


LANES = ("one", "two", "three")
THREE_LANES = """
out = "fleet"
records = "records"
work = "work"
minutes = 0.4
[[model]]
model = "zoo:kws"
runs_per_day = 1000
[[model]]
model = "zoo:mlp"
minutes = { least = 0.1 }
[notify]
on = ["always"]
command = ["tee", "--append", "notices.txt"]
"""


def three_lanes(folder: Path) -> Fleet:
    text = THREE_LANES
    for name in LANES:
        lost = '[[fault]]\nkind = "lost"\nat = 40\n' if name == "three" else ""
        (folder / f"{name}.toml").write_text(
            f'name = "{name}"\nbase = "pocl"\nmeasure_s = 0.05\n{lost}'
        )
        text += f'[[device]]\nname = "{name}"\ndevice = "sim:{name}.toml"\n'
    (folder / "nightly.toml").write_text(text)
    return Fleet(folder, None)


def kill_the_server(_: Fleet, process: subprocess.Popen[str]) -> None:
    server = server_of(process.pid)
    assert server is not None
    os.kill(server, signal.SIGKILL)


def lock_the_database(fleet: Fleet, _: subprocess.Popen[str]) -> None:
    database = sqlite3.connect(fleet.folder / ".retune/prefect/prefect.db", timeout=60)
    database.execute("BEGIN EXCLUSIVE")
    begun = len(fleet.rows())
    wait_until(lambda: len(fleet.rows()) > begun + 100, 30.0)  # the search does not stand still
    assert len(fleet.rows()) > begun + 20
    database.rollback()
    database.close()


def fill_the_disk(fleet: Fleet, _: subprocess.Popen[str]) -> None:
    ballast = fleet.folder / "work" / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb") as stream:
        while True:
            stream.write(bytes(1 << 16))
    wait_until(lambda: False, 5.0)
    ballast.unlink()


FAULTS = {
    "the server is killed": kill_the_server,
    "the database is locked": lock_the_database,
    "the disk is full": fill_the_disk,
}


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize("fault", FAULTS)
def test_three_lanes_survive(tmp_path: Path, fault: str):
    """Besides, one of the three boards loses its driver once."""
    fleet = three_lanes(tmp_path)
    with contextlib.ExitStack() as held:
        if fault == "the disk is full":
            (tmp_path / "work").mkdir()
            held.enter_context(small_disk(tmp_path / "work"))
        process = fleet.start("one")
        assert wait_until(lambda: len(fleet.rows()) > 30, DEADLINE_S)
        FAULTS[fault](fleet, process)
        out, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, out + err
        check_records(fleet, set())
        members = fleet.status("one")
        assert {member["status"] for member in members.values()} == {"done"}
        assert all(current(fleet.bundle("kws", name)) for name in LANES)
        assert "promoted" in (tmp_path / "notices.txt").read_text()


@contextlib.contextmanager
def small_disk(folder: Path) -> Generator[None]:
    """The folder is a disk of its own that is full soon, where that may be made."""
    command = ["mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a disk can only be made by root")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_three_lanes_that_are_killed_go_on(tmp_path: Path):
    fleet = three_lanes(tmp_path)
    process = fleet.start("one")
    assert wait_until(lambda: len(fleet.rows()) > 60, DEADLINE_S)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=DEADLINE_S)
    known = check_records(fleet, set())
    assert fleet.run("one") == 0
    check_records(fleet, known)
    members = fleet.status("one")
    assert {member["status"] for member in members.values()} == {"done"}
    assert "stopped" not in (tmp_path / "notices.txt").read_text()

"""The whole flow on its own Prefect server, over fake stages: reuse, damage, kill and resume."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flows.fakes import TASKS, runs
from tests.support.processes import wait_until

ROOT = Path(__file__).resolve().parents[2]
BEFORE = ["import", "extract"]
SEARCHES = [f"search-{task.key}" for task in TASKS]
HELD = TASKS[1].key
AFTER = ["finalists", "validate", "compare", "compile-untuned", "compile-tuned", "verify", "bench"]
EVERY_STAGE = [*BEFORE, *SEARCHES, *AFTER]
DEADLINE_S = 240.0


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The private server's folder; making its database takes ten seconds, so tests share it."""
    return tmp_path_factory.mktemp("prefect")


def start(home: Path, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")
    }
    environment |= {"PREFECT_HOME": str(home), "PYTHONPATH": f"{ROOT / 'lib'}:{ROOT}"}
    return subprocess.Popen(
        [sys.executable, str(ROOT / "tests/flows/run_fake.py"), str(folder), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> dict[str, float]:
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert "Error logging to API" not in err
    return json.loads(out)


def states(home: Path) -> list[str]:
    """States of all flow runs, the oldest first."""
    with sqlite3.connect(f"file:{home / 'prefect.db'}?mode=ro", uri=True) as database:
        rows = database.execute("select state_type from flow_run order by created").fetchall()
    return [row[0] for row in rows]


def in_order(names: list[str]) -> list[str]:
    """The names; of searches that run at once each earlier one first."""
    first = next(i for i, name in enumerate(names) if name.startswith("search"))
    last = next((i for i, name in enumerate(names) if name == "finalists"), len(names))
    return [*names[:first], *sorted(names[first:last]), *names[last:]]


def servers(home: Path) -> list[int]:
    """Live server processes whose home is this folder."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        if b"uvicorn" in command and f"PREFECT_HOME={home}\0".encode() in environment:
            found.append(int(folder.name))
    return found


def test_finished_run_is_not_done_twice_and_damage_is_mended(home: Path, tmp_path: Path):
    first = finish(start(home, tmp_path))
    assert first == {"trials": 9, "tuned_us": 300.0}
    assert in_order(runs(tmp_path / "work")) == EVERY_STAGE
    assert (tmp_path / "out" / "module" / "module.json").is_file()
    assert servers(home) == []

    (bundle,) = [
        path
        for path in (tmp_path / "work" / "compile").glob("*/module/module.json")
        if '"variant": "tuned"' in (path.parents[1] / "manifest.json").read_text()
    ]
    bundle.write_text("damaged")
    assert finish(start(home, tmp_path)) == first
    assert in_order(runs(tmp_path / "work")) == [*EVERY_STAGE, "compile-tuned"]


def held_alone(work: Path) -> bool:
    """Two of the searches have ended, and the third one goes on."""
    searches = work / "tune"
    ended = list(searches.glob("[!.]*/manifest.json"))
    return len(ended) == len(TASKS) - 1 and any(searches.glob(".*.tmp"))


@pytest.mark.slow
def test_ctrl_c_ends_the_measuring_and_the_next_start_goes_on(home: Path, tmp_path: Path):
    work = tmp_path / "work"
    process = start(home, tmp_path, HELD)
    assert wait_until(lambda: held_alone(work), DEADLINE_S), process.stderr
    process.send_signal(signal.SIGINT)
    assert finish(process)["trials"] == 9
    assert in_order(runs(work)) == EVERY_STAGE
    assert states(home)[-1] == "COMPLETED"

    assert finish(start(home, tmp_path))["trials"] == 9
    assert runs(work)[len(EVERY_STAGE) :] == [f"search-{HELD}", "finalists"]


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.slow
def test_killed_run_continues_where_it_stopped(home: Path, tmp_path: Path):
    work = tmp_path / "work"
    process = start(home, tmp_path, HELD)
    assert wait_until(lambda: held_alone(work), DEADLINE_S), process.stderr
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=DEADLINE_S)
    others = [name for name in SEARCHES if not name.endswith(HELD)]
    assert in_order(runs(work)) == [*BEFORE, *others]
    assert wait_until(lambda: servers(home) == [], DEADLINE_S), "the server outlived the run"

    finish(start(home, tmp_path))
    assert sorted(runs(work)) == sorted(EVERY_STAGE)
    assert states(home)[-2:] == ["CRASHED", "COMPLETED"]

"""`kill -9` after and inside each stage: the resumed run ends as one that was never interrupted."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from retune.bundle.format import program_key
from retune.records.store import RecordStore

ROOT = Path(__file__).resolve().parents[2]
BOARD = 'name = "board"\nbase = "pocl"\n'
STAGES = [
    "import",
    "extract",
    "tune",
    "layout",
    "finalists",
    "compile",
    "verify",
    "validate",
    "compare",
    "bench",
]
APPENDS = ["1", "1+", "3", "3+"]
POINTS = [
    *(("inside", name) for name in STAGES),
    *(("after", name) for name in STAGES),
    *(("append", which) for which in APPENDS),
]
BY_CHANCE = {"seconds", "seconds_done", "trials_done", "folder", "record_id", "key", "run_id"}
"""Fields of manifests that differ between any two runs; keys follow from ids of records. Searches
run side by side: how far the others are when one ends, nobody can say."""

pytestmark = [pytest.mark.slow, pytest.mark.device]


def run(folder: Path, *point: str) -> int:
    folder.mkdir(exist_ok=True)
    (folder / "board.toml").write_text(BOARD)
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/flows/run_killed.py"), str(folder), *point],
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'lib'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


def plain(value: Any, folder: Path) -> Any:
    """A manifest's data without what differs by chance."""
    match value:
        case dict():
            return {k: plain(v, folder) for k, v in value.items() if k not in BY_CHANCE}
        case list():
            return [plain(item, folder) for item in value]
        case str():
            return value.replace(str(folder), "")
        case _:
            return value


def manifests(folder: Path) -> list[str]:
    """The contents of all manifests of stages, in order."""
    found: list[str] = []
    for path in (folder / "work").glob("*/*/manifest.json"):
        data = plain(json.loads(path.read_text()), folder)
        data.pop("outputs")  # the bundles' hashes cover ids of records; their programs are compared
        found.append(f"{path.parents[1].name}: {json.dumps(data, sort_keys=True)}")
    return sorted(found)


def trials(folder: Path) -> pd.DataFrame:
    columns = ["trial", "task_key", "config_hash", "status", "median_us", "phase"]
    rows = RecordStore(folder / "records").scan(columns=columns)
    return rows.sort_values(["phase", "trial"], ignore_index=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nobody interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    assert run(folder) == 0
    return folder


@pytest.mark.parametrize(("when", "what"), POINTS)
def test_a_run_that_was_killed_ends_like_any_other(
    whole: Path, tmp_path: Path, when: str, what: str
):
    folder = tmp_path / "killed"
    assert run(folder, when, what) == -signal.SIGKILL
    assert run(folder) == 0
    assert manifests(folder) == manifests(whole)
    pd.testing.assert_frame_equal(trials(folder), trials(whole))
    assert program_key(folder / "out" / "module") == program_key(whole / "out" / "module")

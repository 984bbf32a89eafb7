"""What nobody has used for some time is removed, and nothing else."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from retune.core.locking import exclusive
from retune.device.opencl.binaries import Binaries
from retune.pipeline.pruning import plan_pruning, prune
from retune.pipeline.stage import MANIFEST

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def used(path: Path, days: int) -> None:
    """The file was last used so many days ago."""
    moment = (NOW - timedelta(days=days)).timestamp()
    os.utime(path, (moment, moment))


def output(work: Path, name: str, days: int) -> Path:
    folder = work / "stage" / name
    folder.mkdir(parents=True)
    for part in (MANIFEST, "weights"):
        (folder / part).write_bytes(b"content")
    from retune.pipeline.stage import _SEAL

    (folder / _SEAL).write_text("seal")
    used(folder / _SEAL, days)
    return folder


@pytest.fixture
def work(tmp_path: Path) -> Path:
    for name, days in (("old", 40), ("held", 50), ("new", 1)):
        output(tmp_path / "work", name, days)
        binaries = Binaries(folder=tmp_path / "programs")
        binaries.keep(name, b"program")
        used(tmp_path / "programs" / f"{name}.program", days)
        run = tmp_path / "work" / "runs" / name
        run.mkdir(parents=True)
        (run / "run.json").write_text("{}")
        used(run / "run.json", days)
    return tmp_path / "work"


def test_what_was_not_used_for_a_month_goes(work: Path, tmp_path: Path):
    found = plan_pruning(work, tmp_path / "programs", NOW - timedelta(days=30))
    assert [o.folder.name for o in found.outputs] == ["held", "old"]
    assert [p.stem for p in found.programs] == ["held", "old"]
    assert found.bytes > 0
    (held,) = (o for o in found.outputs if o.folder.name == "held")
    with exclusive(held.lock):
        prune(found)
    assert sorted(p.name for p in (work / "stage").iterdir() if p.is_dir()) == ["held", "new"]
    assert [p.stem for p in (tmp_path / "programs").iterdir()] == ["new"]
    assert [p.name for p in (work / "runs").iterdir()] == ["new"]


def test_nothing_is_removed_where_there_is_nothing(tmp_path: Path):
    found = plan_pruning(tmp_path / "none", None, NOW)
    assert (found.outputs, found.runs, found.programs, found.bytes) == ((), (), (), 0)
    prune(found)


def test_a_run_whose_files_change_meanwhile_stays(work: Path):
    (work / "runs" / "old" / ".run.json.0.tmp").symlink_to("renamed")  # listed, and gone
    found = plan_pruning(work, None, NOW - timedelta(days=30))
    assert [folder.name for folder in found.runs] == ["held"]

"""A stage runs once for its inputs; what is damaged or half-made is made anew."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from retune.core.codec import from_json, to_json
from retune.stages.manifest import Manifest, TuneRequest
from retune.stages.stage import load, run_once, stage_folder, stage_intact, stage_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(Manifest):
    count: int
    pairs: tuple[tuple[str, int], ...] = ()


class Body:
    """Counts its runs; writes two files."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, folder: Path) -> Sample:
        self.runs += 1
        (folder / "sub").mkdir()
        (folder / "sub" / "data.bin").write_bytes(b"123")
        (folder / "text.txt").write_text("hello")
        return Sample(count=self.runs, pairs=(("a", 1),))


def once(work: Path, body: Body) -> Sample:
    return run_once(Sample, stage="sample", key="k", work=work, body=body)


def test_second_call_returns_the_first_output(tmp_path: Path):
    body = Body()
    first = once(tmp_path, body)
    second = once(tmp_path, body)
    assert body.runs == 1
    assert first == second
    assert second.file("text.txt").read_text() == "hello"
    assert [entry.path for entry in second.outputs] == ["sub/data.bin", "text.txt"]
    assert load(Sample, stage_folder(tmp_path, "sample", "k")) == second


@pytest.mark.parametrize("damage", ["change", "shorten", "remove", "manifest", "other-kind"])
def test_damaged_output_is_made_anew(tmp_path: Path, damage: str):
    body = Body()
    first = once(tmp_path, body)
    target = first.file("text.txt")
    match damage:
        case "change":
            target.write_text("hullo")
        case "shorten":
            target.write_text("")
        case "remove":
            target.unlink()
        case "manifest":
            first.file("manifest.json").write_text('{"count": ')
        case _:
            first.file("manifest.json").write_text('{"count": "one"}')
    again = once(tmp_path, body)
    assert body.runs == 2
    assert again.count == 2
    assert again.file("text.txt").read_text() == "hello"


def remembered(work: Path) -> Sample:
    """The manifest of an output without files, as it comes back from a cache of results."""
    made = run_once(Sample, stage="s", key="k", work=work, body=lambda _: Sample(count=1))
    assert made.outputs == ()
    return from_json(Sample, to_json(made))


def test_what_a_cache_remembers_is_intact_while_it_is_what_is_stored(tmp_path: Path):
    manifest = remembered(tmp_path)
    assert stage_intact(manifest)
    assert not stage_intact(replace(manifest, count=2))
    assert not stage_intact(replace(manifest, folder=str(tmp_path / "elsewhere")))


@pytest.mark.parametrize("lost", ["folder", "manifest", "content", "other"])
def test_an_output_without_files_is_not_believed_once_it_is_gone(tmp_path: Path, lost: str):
    manifest = remembered(tmp_path)
    file = manifest.file("manifest.json")
    match lost:
        case "folder":
            shutil.rmtree(manifest.folder)
        case "manifest":
            file.unlink()
        case "content":
            file.write_text("{")
        case _:
            file.write_text(to_json(replace(manifest, folder="", count=2)))
    assert not stage_intact(manifest)


@pytest.mark.parametrize("damage", ["change", "remove"])
def test_an_output_with_a_damaged_file_is_not_intact(tmp_path: Path, damage: str):
    manifest = once(tmp_path, Body())
    assert stage_intact(manifest)
    file = manifest.file("text.txt")
    if damage == "change":
        file.write_text("hullo")
    else:
        file.unlink()
    assert not stage_intact(manifest)


def test_what_was_never_stored_has_nothing_that_could_be_missing():
    assert stage_intact(Sample(count=1))
    assert stage_intact(Sample(count=1, stage="s", key="k", stopped=True))


def test_failure_leaves_nothing_behind(tmp_path: Path):
    def fails(folder: Path) -> Sample:
        (folder / "half").write_text("x")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run_once(Sample, stage="sample", key="k", work=tmp_path, body=fails)
    left = [path.name for path in (tmp_path / "sample").iterdir()]
    assert left == [".k.lock"]


def test_output_that_was_cut_short_is_returned_but_not_stored(tmp_path: Path):
    body = Body()

    def stopped(folder: Path) -> Sample:
        return replace(body(folder), stopped=True)

    short = run_once(Sample, stage="sample", key="k", work=tmp_path, body=stopped)
    assert (short.count, short.stopped, short.key, short.outputs) == (1, True, "k", ())
    assert load(Sample, stage_folder(tmp_path, "sample", "k")) is None
    assert [path.name for path in (tmp_path / "sample").iterdir()] == [".k.lock"]
    assert once(tmp_path, body).count == 2


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path):
    stale = tmp_path / "sample" / ".k.999999.tmp"
    stale.mkdir(parents=True)
    (stale / "half").write_text("x")
    once(tmp_path, Body())
    assert not stale.exists()


def test_two_processes_make_one_output(tmp_path: Path):
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from retune.stages.manifest import TaskManifest\n"
        "from retune.stages.stage import run_once\n"
        "def body(folder):\n"
        "    with open(sys.argv[1] + '/runs', 'a') as runs: runs.write('x')\n"
        "    time.sleep(0.3)\n"
        "    return TaskManifest(model_key='m', tasks=())\n"
        "run_once(TaskManifest, stage='s', key='k', work=Path(sys.argv[1]), body=body)\n"
    )
    lib = str(Path(__file__).resolve().parents[3] / "lib")
    environment = {**os.environ, "PYTHONPATH": lib}
    command = [sys.executable, "-c", code, str(tmp_path)]
    processes = [subprocess.Popen(command, env=environment) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert (tmp_path / "runs").read_text() == "x"


def test_key_depends_on_stage_and_inputs():
    request = TuneRequest(model="m", out="o", records="r", work="w")
    assert stage_key("a", request) == stage_key("a", request)
    assert stage_key("a", request) != stage_key("b", request)
    assert stage_key("a", 1) != stage_key("a", 2)

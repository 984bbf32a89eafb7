"""A stage runs once for its inputs; what is damaged or half-made is made anew."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune.core.errors import InputError
from retune.core.schema import from_json, to_json
from retune.pipeline.manifest import Manifest
from retune.pipeline.request import TuneRequest
from retune.pipeline.results import TuneEvent
from retune.pipeline.stage import (
    load,
    run_once,
    sha256,
    stage,
    stage_folder,
    stage_intact,
    stage_key,
)
from retune.pipeline.watch import watching
from tests.support.properties import quick


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


@stage(Sample, "told", lambda request: (request.model,), doing="samples are made")
def stage_told(folder: Path, request: TuneRequest) -> Sample:
    return Sample(count=len(list(folder.iterdir())))


def once(work: Path, body: Body) -> Sample:
    return run_once(Sample, stage="sample", key="k", work=work, body=body)


def test_who_watches_is_told_of_work_that_is_done_and_not_of_what_is_stored(tmp_path: Path):
    told: list[TuneEvent] = []
    with watching(told.append):
        for _ in range(2):
            stage_told(TuneRequest("zoo:mlp", "out", work=tmp_path))
    assert told == [TuneEvent(stage="told", text="samples are made")]


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


def corrupt_manifest(made: Sample, keep: int) -> None:
    path = made.file("manifest.json")
    path.write_bytes(path.read_bytes()[:keep])


def sealed(made: Sample, text: str) -> None:
    """As a program would that has another idea of what belongs there."""
    made.file("manifest.json").write_text(text)
    made.file("manifest.sha256").write_text(sha256(made.file("manifest.json")))


def folder_for_file(path: Path) -> None:
    path.unlink()
    path.mkdir()


def file_for_folder(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("a file")


FAULTS: dict[str, Callable[[Sample], None]] = {
    "nothing left of the manifest": lambda made: corrupt_manifest(made, 0),
    "half of the manifest": lambda made: corrupt_manifest(made, 60),
    "no manifest": lambda made: made.file("manifest.json").unlink(),
    "a manifest that is no text": lambda made: made.file("manifest.json").write_bytes(b"\xff"),
    "no seal": lambda made: made.file("manifest.sha256").unlink(),
    "another stage's manifest": lambda made: sealed(made, to_json(replace(made, stage="other"))),
    "another kind of manifest": lambda made: sealed(made, '{"stage": "sample", "key": "k"}'),
    "a folder for a manifest": lambda made: folder_for_file(made.file("manifest.json")),
    "a folder for a file": lambda made: folder_for_file(made.file("text.txt")),
    "a file for a folder": lambda made: file_for_folder(made.file("sub")),
    "no folder": lambda made: shutil.rmtree(made.folder),
    "an empty folder": lambda made: (shutil.rmtree(made.folder), Path(made.folder).mkdir()),
    "a file for the output": lambda made: file_for_folder(Path(made.folder)),
    "the files of the folder half removed": lambda made: shutil.rmtree(made.file("sub")),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_is_left_of_an_output_it_is_made_anew(tmp_path: Path, fault: str):
    body = Body()
    FAULTS[fault](once(tmp_path, body))
    assert load(Sample, stage_folder(tmp_path, "sample", "k")) is None
    assert once(tmp_path, body).count == 2
    assert once(tmp_path, body).count == 2


@pytest.mark.parametrize("name", ["manifest.json", "text.txt"])
def test_what_may_not_be_read_is_made_anew(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
):
    """Permissions do not stop the superuser, whom tests may run as: the file itself refuses."""
    body = Body()
    unreadable = once(tmp_path, body).file(name)
    allowed = Path.open

    def opened(path: Path, *arguments: Any, **options: Any) -> Any:
        if path == unreadable and body.runs == 1:
            raise PermissionError(13, "Permission denied")
        return allowed(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", opened)
    assert once(tmp_path, body).count == 2


def test_a_stage_that_has_no_place_says_so(tmp_path: Path):
    (tmp_path / "sample").write_text("a file where the stage's folder is to be")
    with pytest.raises(InputError, match="sample: expected a folder that can be written to"):
        once(tmp_path, Body())


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    return once(tmp_path_factory.mktemp("work"), Body())


@quick(60)
@given(place=st.floats(0, 1, exclude_max=True), byte=st.binary(min_size=1, max_size=1))
def test_a_damaged_manifest_is_not_believed(output: Sample, place: float, byte: bytes):
    path = output.file("manifest.json")
    sound = path.read_bytes()
    at = int(place * len(sound))
    damaged = sound[:at] + byte + sound[at + 1 :]
    try:
        path.write_bytes(damaged)
        found = load(Sample, Path(output.folder))
    finally:
        path.write_bytes(sound)
    assert found == (output if damaged == sound else None)


def test_failure_leaves_nothing_behind(tmp_path: Path):
    def fails(folder: Path) -> Sample:
        (folder / "half").write_text("x")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run_once(Sample, stage="sample", key="k", work=tmp_path, body=fails)
    assert not list((tmp_path / "sample").iterdir())


def test_output_that_was_cut_short_is_returned_but_not_stored(tmp_path: Path):
    body = Body()

    def stopped(folder: Path) -> Sample:
        return replace(body(folder), stopped=True)

    short = run_once(Sample, stage="sample", key="k", work=tmp_path, body=stopped)
    assert (short.count, short.stopped, short.key, short.outputs) == (1, True, "k", ())
    assert load(Sample, stage_folder(tmp_path, "sample", "k")) is None
    assert not list((tmp_path / "sample").iterdir())
    assert once(tmp_path, body).count == 2


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path):
    stale = tmp_path / "sample" / ".k.999999.tmp"
    stale.mkdir(parents=True)
    (stale / "half").write_text("x")
    once(tmp_path, Body())
    assert not stale.exists()


@pytest.mark.process
def test_two_processes_make_one_output(tmp_path: Path):
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from retune.pipeline.manifest import TaskManifest\n"
        "from retune.pipeline.stage import run_once\n"
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

"""`retune export`: a bundle as a C program, and what is refused."""

from pathlib import Path

import pytest

from retune.bundle.format import pack_zip, write_bundle
from retune.cli.main import run_command
from tests.support.bundle_fixtures import make_plan
from tests.support.hosts import plan_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_bundle(make_plan(), tmp_path / "build" / "module")


def test_a_folder_and_a_zip_give_the_same_program(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    zipped = pack_zip(folder, tmp_path / "net.zip")
    programs = tmp_path / "folder", tmp_path / "zip"
    for source, program in zip((folder, zipped), programs, strict=True):
        assert run_command(["export", str(source), "--c", str(program)]) == 0
        assert capsys.readouterr().out.startswith(f"{program}: 0.1 MB of C99, kernels and weights")
    parts = [{p.name: p.read_bytes() for p in program.iterdir()} for program in programs]
    assert parts[0] == parts[1]


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("nowhere", "program", "nowhere: expected a bundle"),
        ("build/module", "build", "build: expected a new folder or an exported program"),
        ("build/module", "build/module/module.json", "expected a folder, got a file"),
        ("detector", "program", "bundle detector: expected kernels alone, got host steps, which"),
    ],
)
def test_bad_input_ends_with_2_and_one_sentence(
    source: str,
    target: str,
    message: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    if source == "detector":
        write_bundle(plan_of("detector", tmp_path), tmp_path / "detector")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert run_command(["export", source, "--c", target]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before

"""`retune pack`: a bundle as one file, and what is refused."""

from hashlib import sha256
from pathlib import Path

import pytest

from retune.bundle.format import read_bundle, write_bundle
from retune.cli.main import run_command
from tests.support.bundle_fixtures import make_plan


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_bundle(make_plan(), tmp_path / "build" / "module")


def test_the_zip_holds_the_bundle(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "new" / "net.zip"
    assert run_command(["pack", str(folder), str(path)]) == 0
    assert read_bundle(path).name == read_bundle(folder).name
    digest = sha256((folder / "module.json").read_bytes()).hexdigest()
    assert capsys.readouterr().out == f"{path}: 0.0 MB, digest {digest}\n"


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("nowhere", "net.zip", "nowhere: expected a bundle"),
        ("build/module", "net.tar", "net.tar: expected a name that ends with .zip"),
        ("build/module/module.json", "net.zip", "expected a bundle's folder, got a file"),
        ("build/module", "build/module/module.json/net.zip", "expected a folder, got a file"),
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
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert run_command(["pack", source, target]) == 2
    assert message in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_damaged_bundle_is_not_packed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (folder / "kernels.cl").write_text("")
    assert run_command(["pack", str(folder), str(tmp_path / "net.zip")]) != 0
    assert "kernels.cl: expected" in capsys.readouterr().err
    assert not (tmp_path / "net.zip").exists()

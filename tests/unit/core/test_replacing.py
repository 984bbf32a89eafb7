"""A file or folder is what it was until its successor is there in full."""

import shutil
from pathlib import Path

import pytest

from retune.core.replacing import remove_leftovers, replacing, whole_folder


def test_the_file_appears_in_a_folder_that_is_made(tmp_path: Path):
    path = tmp_path / "a" / "b.txt"
    for content in (b"1", b"22"):
        with replacing(path) as stream:
            stream.write(content)
            assert not path.exists() or path.read_bytes() != content, "not before the end"
        assert path.read_bytes() == content
    assert [entry.name for entry in path.parent.iterdir()] == ["b.txt"]


def test_an_error_leaves_what_was_there_and_nothing_else(tmp_path: Path):
    path = tmp_path / "b.txt"
    path.write_bytes(b"old")

    def half() -> None:
        with replacing(path) as stream:
            stream.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half()
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["b.txt"]


def make(path: Path, content: str, *, replace: bool = True) -> None:
    with whole_folder(path, replace=replace) as fresh:
        (fresh / "part").mkdir()
        (fresh / "part" / "file").write_text(content)
        assert not path.exists() or (path / "part" / "file").read_text() != content


def test_a_folder_appears_whole_in_the_place_of_another(tmp_path: Path):
    path = tmp_path / "a" / "b"
    make(path, "1")
    (path / "stale").write_text("x")
    make(path, "22")
    assert [entry.name for entry in path.iterdir()] == ["part"]
    assert (path / "part" / "file").read_text() == "22"
    assert [entry.name for entry in path.parent.iterdir()] == ["b"]


def test_a_folder_that_must_not_be_replaced_is_left(tmp_path: Path):
    make(tmp_path / "b", "1", replace=False)
    with pytest.raises(OSError, match="not empty"):
        make(tmp_path / "b", "22", replace=False)
    assert (tmp_path / "b" / "part" / "file").read_text() == "1"
    assert [entry.name for entry in tmp_path.iterdir()] == ["b"]


@pytest.mark.parametrize("there", [False, True])
def test_an_error_or_a_removal_leaves_the_folder_that_was_there(tmp_path: Path, *, there: bool):
    path = tmp_path / "b"
    if there:
        make(path, "old")
    with whole_folder(path) as fresh:
        (fresh / "file").write_text("half")
        shutil.rmtree(fresh)

    def half() -> None:
        with whole_folder(path) as fresh:
            (fresh / "file").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half()
    assert [entry.name for entry in tmp_path.iterdir()] == ["b"] * there
    assert not there or (path / "part" / "file").read_text() == "old"


def test_leftovers_of_this_folder_alone_are_removed(tmp_path: Path):
    names = (".a[1].0f.tmp", ".a[1].0f.old", ".a1.0f.tmp", "a[1]")
    for name in names:
        (tmp_path / name).mkdir()
    remove_leftovers(tmp_path / "a[1]")
    assert {entry.name for entry in tmp_path.iterdir()} == set(names[2:])

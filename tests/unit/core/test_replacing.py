"""A file or folder is what it was until its successor is there in full."""

import errno
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from retune.core import replacing as replacing_module
from retune.core.replacing import (
    exchange,
    point,
    put_in_place,
    remove_folder,
    remove_leftovers,
    replacing,
    whole_folder,
)
from tests.support.killing import killed_at_each_change


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


@pytest.mark.parametrize("made", [replacing, whole_folder])
def test_a_full_disk_is_said_to_be_that_of_the_path(
    tmp_path: Path, made: Callable[[Path], AbstractContextManager[object]]
):
    with pytest.raises(OSError, match=r"No space.*'.*/new'"), made(tmp_path / "new"):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match=r"left on device$"), made(tmp_path / "new"):
        raise OSError("No space left on device")
    assert not list(tmp_path.iterdir())


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


def test_a_link_is_pointed_elsewhere(tmp_path: Path):
    link = tmp_path / "link"
    for target in ("a", "b"):
        point(link, target)
        assert str(link.readlink()) == target
    assert [entry.name for entry in tmp_path.iterdir()] == ["link"]


def test_names_are_exchanged(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("elsewhere")
    if exchange(tmp_path / "folder", tmp_path / "link"):  # not every file system can
        assert (tmp_path / "link").is_dir()
        assert str((tmp_path / "folder").readlink()) == "elsewhere"
    with pytest.raises(FileNotFoundError):
        exchange(tmp_path / "folder", tmp_path / "nothing")


@pytest.mark.parametrize("able", [True, False])
@pytest.mark.parametrize("there", ["nothing", "file", "link", "folder"])
def test_what_is_put_in_place_is_there_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str, *, able: bool
):
    if not able:
        monkeypatch.setattr(replacing_module, "exchange", lambda first, second: False)
    fresh, path = tmp_path / ".b.0f.tmp", tmp_path / "b"
    fresh.mkdir()
    match there:
        case "file":
            path.write_text("old")
        case "link":
            path.symlink_to(tmp_path)
        case "folder":
            make(path, "old")
    put_in_place(fresh, path)
    assert not any(path.iterdir())
    assert [entry.name for entry in tmp_path.iterdir()] == ["b"]


def test_a_folder_is_never_gone_while_it_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path, others = tmp_path / "b", (tmp_path / "c", tmp_path / "d")
    for other in others:
        other.mkdir()
    able = exchange(*others)

    def setup() -> None:
        shutil.rmtree(path, ignore_errors=True)
        make(path, "old")

    for _ in killed_at_each_change(monkeypatch, setup, lambda: make(path, "new")):
        if able:
            assert (path / "part" / "file").read_text() in ("old", "new")
        remove_leftovers(path)
    assert (path / "part" / "file").read_text() == "new"


def test_a_removed_folder_is_gone_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "b"

    def setup() -> None:
        if not path.exists():
            make(path, "old")

    for _ in killed_at_each_change(monkeypatch, setup, lambda: remove_folder(path)):
        assert not path.exists() or (path / "part" / "file").read_text() == "old"
        remove_leftovers(path)
    assert not any(tmp_path.iterdir())

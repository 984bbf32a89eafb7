"""Places that cannot be written to are found out beforehand, and stay as they are."""

from pathlib import Path

import pytest

from retune.core.errors import InputError
from retune.core.files import check_file, check_folder


def test_a_folder_that_is_there_or_can_be_made_is_left_alone(tmp_path: Path):
    check_folder("--out", tmp_path)
    check_folder("--out", tmp_path / "a" / "b")
    check_file("--output", tmp_path / "a" / "b.npz")
    assert not list(tmp_path.iterdir())


def test_a_file_in_the_way(tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file", tmp_path / "file" / "below" / "it"):
        with pytest.raises(InputError, match=r"--out .*: expected a folder, got a file at .*file$"):
            check_folder("--out", place)
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(InputError, match="expected a folder, got something else"):
        check_folder("--out", tmp_path / "link")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_in_a_files_place(tmp_path: Path):
    with pytest.raises(InputError, match="expected the name of a file, got a folder"):
        check_file("--output", tmp_path)


def test_a_folder_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Permissions do not stop the superuser, whom tests may run as: the system call refuses."""

    def refuse(*arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.mkdir", refuse)
    with pytest.raises(InputError, match=r"can be written to; .* refuses it \(Permission denied\)"):
        check_folder("--records", tmp_path / "new")


def test_a_file_in_a_folder_that_refuses_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"^--output file/o.npz: expected a folder, got a file at"):
        check_file("--output", Path("file/o.npz"))

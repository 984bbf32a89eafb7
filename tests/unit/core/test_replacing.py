"""A file is what it was until its successor is there in full."""

from pathlib import Path

import pytest

from retune.core.replacing import replacing


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

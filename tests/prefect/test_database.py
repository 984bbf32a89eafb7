"""The database of a private server is made once, and copied for other folders."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from retune.prefect.database import keep_database, provide_database


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RETUNE_LOCKS", str(tmp_path / "locks"))
    path = tmp_path / "a" / "prefect.db"
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as opened:
        opened.execute("create table made (by text)")
        opened.execute("insert into made values ('migrations')")
        opened.commit()
    return path


def content(path: Path) -> list[tuple[str]]:
    with closing(sqlite3.connect(path)) as opened:
        return opened.execute("select * from made").fetchall()


def test_another_folder_gets_a_copy_and_keeps_its_own(database: Path, tmp_path: Path):
    other = tmp_path / "b" / "prefect.db"
    assert not provide_database(other), "nothing is kept yet: Prefect makes it"
    assert not other.exists()
    keep_database(database)
    assert provide_database(other)
    assert content(other) == [("migrations",)]
    other.write_bytes(b"its own")
    assert provide_database(other)
    assert other.read_bytes() == b"its own"


def test_what_cannot_be_kept_is_no_error(database: Path, tmp_path: Path):
    keep_database(tmp_path / "nosuch.db")
    (tmp_path / "locks").write_text("no folder")
    keep_database(database)
    assert not provide_database(tmp_path / "b" / "prefect.db")

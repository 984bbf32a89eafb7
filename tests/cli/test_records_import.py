"""`retune records import`: files of three tuners and stores, by one command."""

from pathlib import Path

import pytest

from retune.cli.main import run_command
from retune.records.distilled import write_records
from retune.records.foreign import foreign_lines
from retune.records.store import RecordStore
from tests.support.store import record


def test_what_is_new_is_added_from_files_and_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    both = record(0)
    write_records([both], Path("own.jsonl"))
    lines = foreign_lines([record(1)], "autotvm")
    Path("tvm.json").write_text("".join(f"{line}\n" for line in lines))
    RecordStore(Path("other")).append([both, record(2)])
    command = ["records", "import", "own.jsonl", "tvm.json", "other", "--records", "store"]
    for new in ("3 new records", "0 new records"):
        assert run_command(command) == 0
        assert f"{new} of 4" in capsys.readouterr().err
    assert RecordStore(Path("store")).summary().records == 3


def test_a_source_that_cannot_be_read_adds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    write_records([record(0)], Path("own.jsonl"))
    assert run_command(["records", "import", "own.jsonl", "nosuch", "--records", "store"]) == 2
    assert "nosuch: expected a file of records" in capsys.readouterr().err
    assert not Path("store").exists()

"""How many records a cost model has not seen."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from retune.nightly import members
from retune.nightly.members import new_records
from retune.records import files
from retune.records.arrow import to_table
from retune.records.store import RecordStore
from tests.support.store import DAY, record


@dataclass(frozen=True)
class Card:
    until: str


def test_records_are_counted_that_are_newer_than_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Rows of somebody else's file that say no moment are not newer."""
    RecordStore(tmp_path).append([record(1), record(2)])
    table = to_table([record(3)]).drop_columns(["timestamp"])
    home = {"target": "cpu one", "model": "zoo:mlp", "date": "2026-03-01"}
    files.write_table(table, files.partition_folder(tmp_path, home) / "part-1-old-1.parquet")
    assert new_records(tmp_path) == 3
    for hours, newer in ((-1, 2), (0, 0), (1, 0)):
        until = (DAY + timedelta(hours=hours)).replace(tzinfo=None).isoformat()
        monkeypatch.setattr(members, "registered", lambda _, until=until: [Card(until)])
        assert new_records(tmp_path) == newer

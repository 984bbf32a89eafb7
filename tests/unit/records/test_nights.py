"""The table of nights: one row for a night, network and device, readable by later programs."""

import threading
from dataclasses import fields, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import retune.records
from retune.core.errors import InputError, RecordError
from retune.records.nights import NIGHTS_SCHEMA, NightRow, read_nights, write_nights
from tests.support.nights import night

FILE = Path("nights") / "fleet" / "2026-03-01.parquet"


def test_rows_come_back_as_they_were_written(store: Path):
    rows = [night(0), night(0, network="kws", kernel=None, time_us=None, problem="gone")]
    write_nights(store, rows)
    assert read_nights(store) == rows
    assert [field.name for field in fields(NightRow)] == NIGHTS_SCHEMA.names


def test_a_row_of_the_same_night_network_and_device_takes_the_place_of_the_one_before(store: Path):
    write_nights(store, [night(0), night(0, device="other")])
    changed = night(0, 1.5, verdict="real")
    write_nights(store, [changed])
    assert read_nights(store) == [changed, night(0, device="other")]


def test_nights_are_in_the_order_in_which_they_began(store: Path):
    write_nights(store, [night(2), night(0), replace(night(1), night="a-campaign")])
    assert [row.night for row in read_nights(store)] == ["2026-03-01", "a-campaign", "2026-03-03"]
    assert [row.night for row in read_nights(store, "fleet", "a-campaign")] == ["a-campaign"]


def test_fleets_that_share_a_store_have_tables_of_their_own(store: Path):
    write_nights(store, [night(0), night(0, fleet="a fleet/b")])
    assert [row.fleet for row in read_nights(store, "a fleet/b")] == ["a fleet/b"]
    assert len(read_nights(store)) == 2


def test_the_table_is_loaded_for_pandas(store: Path):
    write_nights(store, [night(1), night(0), night(0, fleet="other")])
    frame = retune.records.load_nights(store)
    assert frame.columns.to_list() == NIGHTS_SCHEMA.names
    assert frame["night"].to_list() == ["2026-03-01", "2026-03-02", "2026-03-01"]
    assert len(retune.records.load_nights(store, "other")) == 1
    assert frame["time_us"].dtype.kind == "f"
    with pytest.raises(InputError, match="expected the folder of a record store"):
        retune.records.load_nights(store / "nowhere")


def test_an_empty_store_has_a_table_without_rows(store: Path):
    assert read_nights(store) == []
    assert retune.records.load_nights(store).columns.to_list() == NIGHTS_SCHEMA.names


def test_older_files_lack_columns_and_unknown_columns_are_ignored(store: Path):
    write_nights(store, [night(0)])
    older = pq.read_table(store / FILE).drop_columns(["why", "kernel_us", "promoted"])
    pq.write_table(older.append_column("colour", pa.array(["red"])), store / FILE)
    (row,) = read_nights(store)
    assert (row.why, row.kernel_us, row.promoted) == ("", None, False)
    write_nights(store, [night(0, network="kws")])
    assert len(read_nights(store)) == 2


def test_a_newer_file_is_refused(store: Path):
    write_nights(store, [night(0)])
    newer = pq.read_table(store / FILE).replace_schema_metadata({b"retune.schema_version": b"2"})
    pq.write_table(newer, store / FILE)
    for attempt in (lambda: read_nights(store), lambda: write_nights(store, [night(0)])):
        with pytest.raises(RecordError, match=r"2026-03-01.parquet: expected .* 1 at most, got 2"):
            attempt()


def test_a_damaged_file_is_left_out_and_named(store: Path, caplog: pytest.LogCaptureFixture):
    write_nights(store, [night(0), night(1)])
    (store / FILE).write_bytes(b"PAR1 and then nothing")
    assert [row.night for row in read_nights(store)] == ["2026-03-02"]
    assert "2026-03-01.parquet cannot be read and is left out" in caplog.text
    write_nights(store, [night(0)])
    assert len(read_nights(store)) == 2


def test_lanes_may_write_at_once(store: Path):
    rows = [night(0, device=f"board{i}") for i in range(8)]
    threads = [threading.Thread(target=write_nights, args=(store, [row])) for row in rows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(row.device for row in read_nights(store)) == [row.device for row in rows]

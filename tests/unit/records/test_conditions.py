"""Times are compared where their conditions are equal, and nowhere else if both are known."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retune.core.keys import content_key
from retune.core.target import GENERIC_CPU, GENERIC_GPU
from retune.device.measure.workload import MeasureOptions, measuring_conditions
from retune.records import files
from retune.records.arrow import FILE_SCHEMA, to_records, to_table
from retune.records.conditions import WARM, Conditions, constants_from, within
from retune.records.ranking import known, top
from retune.records.store import RecordStore
from tests.support.store import record

HERE = Conditions(
    device="cpu one|1.0|OpenCL 3.0",
    instance="pocl",
    host="a processor, 2 cores, caches 32 KiB",
    compute_units=2,
    affinity="2 of 2 cores, pinned",
    spread_bytes=5 << 20,
    constants="l3",
    flush=False,
)


@pytest.mark.parametrize(
    "change",
    [
        {"device": "another"},
        {"host": "a processor, 64 cores, caches 48 KiB"},
        {"compute_units": 1},
        {"affinity": "1 of 2 cores, not pinned"},
        {"constants": "memory"},
        {"flush": True},
        {"place": within("squeezenet")},
    ],
)
def test_what_a_time_depends_on_makes_other_conditions(change: dict[str, object]):
    assert replace(HERE, **change).key != HERE.key


def test_equal_devices_and_networks_of_like_size_compare():
    assert replace(HERE, instance="pocl-1", spread_bytes=6 << 20).key == HERE.key


def test_the_host_of_a_device_with_cores_of_its_own_does_not_matter():
    gpu = replace(HERE, affinity="")
    assert replace(gpu, host="another").key == gpu.key


def test_constants_come_from_the_smallest_cache_that_holds_them():
    sizes = [0, 1, 32 << 10, (32 << 10) + 1, 2 << 20, 17 << 20]
    found = [constants_from(GENERIC_CPU, size) for size in sizes]
    assert found == [WARM, "l1", "l1", "l2", "l3", "memory"]
    blind = replace(GENERIC_CPU, l1_bytes=0, l2_bytes=0, l3_bytes=0)
    assert constants_from(blind, 5 << 20) == constants_from(blind, 8 << 20) == "8388608 bytes"


def test_conditions_follow_from_the_device_and_the_options():
    spec = replace(GENERIC_CPU, host="h", affinity="2 of 2 cores, pinned")
    found = measuring_conditions(spec, MeasureOptions(spread_bytes=17 << 20, cache_flush=True))
    assert (found.host, found.affinity, found.compute_units) == ("h", spec.affinity, 2)
    assert (found.constants, found.flush, found.place) == ("memory", True, "alone")
    gpu = measuring_conditions(GENERIC_GPU, MeasureOptions(spread_bytes=17 << 20))
    assert (gpu.spread_bytes, gpu.constants) == (0, WARM)


def test_conditions_survive_the_round_trip_field_by_field(store: Path):
    RecordStore(store).append([record(1, conditions=HERE), record(2)])
    table = RecordStore(store).table()
    found = {item.decisions[0]: item.conditions for item in to_records(table)}
    assert found == {1: HERE, 2: None}
    row = table.to_pandas().set_index("config_hash").loc[f"{1:016x}"]
    assert row["conditions"] == HERE.key
    assert (row["instance"], row["constants"], row["compute_units"]) == ("pocl", "l3", 2)


def test_times_from_a_cache_are_no_best_of_times_from_memory(store: Path):
    far = replace(HERE, constants="memory")
    RecordStore(store).append([record(1, conditions=HERE), record(2, conditions=far)])
    RecordStore(store).append([record(3, conditions=far)])
    found = top(RecordStore(store), "task-a", far.comparable, 9)
    assert [item.decisions[0] for item in found] == [2, 3]
    assert known(RecordStore(store), "task-a", HERE.comparable) == {f"{1:016x}"}


def test_records_of_before_count_for_their_device(store: Path):
    """Their files lack the columns."""
    names = ["conditions", "instance", "host", "compute_units", "affinity", "spread_bytes"]
    older = to_table([record(1)]).drop_columns([*names, "constants", "flush", "place", "calm_us"])
    values = {"target": "cpu one", "model": "zoo:mlp", "date": "2026-03-01"}
    files.write_table(older, files.partition_folder(store, values) / "part-1-old-1.parquet")
    RecordStore(store).append([record(2, conditions=HERE)])
    for conditions in (HERE, replace(HERE, constants="memory")):
        found = top(RecordStore(store), "task-a", conditions.comparable, 9)
        assert [item.decisions[0] for item in found] == [1, 2][: 1 + (conditions == HERE)]
    assert not top(RecordStore(store), "task-a", replace(HERE, device="another").comparable, 9)
    assert len(RecordStore(store).tasks()) == 2


def test_layouts_of_earlier_versions_have_their_names_of_today(store: Path):
    """Files called NHWC rows; a key of conditions is still made of that word."""
    there = replace(HERE, layout_in="NHWC+16", layout_out="NCHW16c")
    host = (HERE.host, HERE.affinity) if HERE.affinity else ()
    how = (HERE.constants, HERE.flush, HERE.place)
    old = ("rows+16", "NCHW16c")
    key = content_key(HERE.device, HERE.compute_units, host, how, old)
    assert there.key == key
    records = RecordStore(store)
    records.append([replace(record(0), conditions=there), replace(record(1), conditions=HERE)])
    for path in files.list_files(store):
        table = pq.read_table(path, schema=FILE_SCHEMA)
        for name in ("layout_in", "layout_out"):
            old_names = [text.replace("NHWC", "rows") for text in table[name].to_pylist()]
            number = table.column_names.index(name)
            column = pa.array(old_names, pa.string())
            table = table.set_column(number, table.schema.field(number), column)
        pq.write_table(table, path)
        assert {"rows+16", "rows"} == {
            *pq.read_table(path, schema=FILE_SCHEMA)["layout_in"].to_pylist()
        }
    found = RecordStore(store).scan({"conditions": [key]})
    assert found["layout_in"].tolist() == ["NHWC+16"] and found["layout_out"].tolist() == [
        "NCHW16c"
    ]
    rows = RecordStore(store).scan()
    named = RecordStore(store).named(dict(zip(rows["record_id"], rows["task_key"], strict=True)))
    assert {item.conditions for item in named.values()} == {there, HERE}

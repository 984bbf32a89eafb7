"""Records as arrow tables: the explicit schema with units, and both directions of conversion.

The schema is always given, never inferred: an all-null column would otherwise change type from
file to file.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, get_type_hints

import pyarrow as pa
import pyarrow.compute as pc

from retune.core.errors import RecordError
from retune.core.layouts import NHWC
from retune.records.conditions import ROWS, Conditions
from retune.records.schema import SCHEMA_VERSION, Environment, Measurement, TuningRecord

if TYPE_CHECKING:
    import pandas as pd

PARTITION_COLUMNS = ("target", "model", "date")
"""Stored in the folder names, and nowhere inside the files."""

VERSION_KEY = b"retune.schema_version"
_VERSION_DIGITS = 10
"""No version has as many; Python refuses to read a number of thousands."""

_NO_VALUE = (ValueError, OverflowError)
"""Text that is not UTF-8, a date of the year 300,000."""

_LOG = logging.getLogger(__name__)

_TEXT = pa.string()
_ENV = pa.struct([(name, _TEXT) for name in ("driver", "opencl", "retune")])

_COLUMNS: tuple[tuple[str, pa.DataType, str], ...] = (
    ("record_id", _TEXT, "unique id"),
    ("run_id", _TEXT, ""),
    ("night", _TEXT, ""),
    ("attempt", pa.int16(), "count"),
    ("trial", pa.int32(), "count"),
    ("phase", _TEXT, ""),
    ("task_key", _TEXT, "content key"),
    ("task_name", _TEXT, ""),
    ("op", _TEXT, ""),
    ("flops", pa.int64(), "operations"),
    ("bytes", pa.int64(), "bytes"),
    ("input_shapes", pa.list_(pa.list_(pa.int32())), "elements"),
    ("output_shape", pa.list_(pa.int32()), "elements"),
    ("dtypes", pa.list_(_TEXT), ""),
    ("tuner", _TEXT, ""),
    ("seed", pa.int64(), ""),
    ("sketch", _TEXT, ""),
    ("decisions", pa.list_(pa.int32()), "value of each decision"),
    ("knobs", pa.map_(_TEXT, pa.list_(pa.int32())), "values of each decision, by name"),
    ("trace", _TEXT, "json"),
    ("config_hash", _TEXT, "content key"),
    ("strategy", _TEXT, ""),
    ("layout", _TEXT, ""),
    ("device", _TEXT, "model|driver|opencl"),
    ("conditions", _TEXT, "content key"),
    ("instance", _TEXT, ""),
    ("host", _TEXT, ""),
    ("compute_units", pa.int32(), "count"),
    ("affinity", _TEXT, ""),
    ("spread_bytes", pa.int64(), "bytes"),
    ("constants", _TEXT, "memory level"),
    ("flush", pa.bool_(), ""),
    ("place", _TEXT, ""),
    ("layout_in", _TEXT, "NHWC, or as NCHW16c"),
    ("layout_out", _TEXT, "NHWC, or as NCHW16c"),
    ("env", _ENV, "versions"),
    ("spec", _TEXT, "content key"),
    ("features", pa.list_(pa.float32()), "see feature_set"),
    ("feature_set", _TEXT, ""),
    ("status", _TEXT, ""),
    ("error", _TEXT, ""),
    ("run_times_us", pa.list_(pa.float32()), "us"),
    ("median_us", pa.float64(), "us"),
    ("max_abs_err", pa.float32(), "of the output"),
    ("reference_us", pa.float32(), "us"),
    ("calm_us", pa.float32(), "us"),
    ("build_s", pa.float32(), "s"),
    ("run_s", pa.float32(), "s"),
    ("clock_mhz", pa.float32(), "MHz"),
    ("temperature_c", pa.float32(), "degrees Celsius"),
    ("governor", _TEXT, ""),
    ("timestamp", pa.timestamp("us", tz="UTC"), "UTC"),
)

FILE_SCHEMA = pa.schema(
    [pa.field(name, kind, metadata={"unit": unit}) for name, kind, unit in _COLUMNS],
    metadata={
        VERSION_KEY: str(SCHEMA_VERSION).encode(),
        b"retune.kind": b"tuning_records",
        b"writer": b"retune",
    },
)
"""What a record file holds."""

READ_SCHEMA = pa.schema([*FILE_SCHEMA, *(pa.field(name, _TEXT) for name in PARTITION_COLUMNS)])
"""What a reader sees: the file's columns and those of its folder."""

_CONDITIONS = tuple(f.name for f in dataclasses.fields(Conditions) if f.name != "device")
_STATED = tuple(
    field.name for field in dataclasses.fields(Conditions) if field.default is dataclasses.MISSING
)
"""Columns of conditions that every record with conditions has; the others came later."""
_MEASURED = tuple(f.name for f in dataclasses.fields(Measurement) if f.name != "instance")
_TUPLES = ("decisions", "features", "run_times_us", "output_shape", "dtypes")


def to_table(records: Sequence[TuningRecord]) -> pa.Table:
    """The records as rows of FILE_SCHEMA; target and model are left to the folder names."""
    return pa.table(_by_column(records), schema=FILE_SCHEMA)


def _by_column(records: Sequence[TuningRecord]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    conditions = [record.conditions for record in records]
    for name in FILE_SCHEMA.names:
        if name == "env":
            columns[name] = [dataclasses.asdict(record.env) for record in records]
        elif name == "conditions":
            columns[name] = [item and item.key for item in conditions]
        elif name in _CONDITIONS:
            columns[name] = [item and getattr(item, name) for item in conditions]
        elif name in _MEASURED:
            columns[name] = [getattr(record.measurement, name) for record in records]
        else:
            columns[name] = [getattr(record, name) for record in records]
    return columns


def check_storable(records: Mapping[str, TuningRecord]) -> None:
    """Raises: RecordError that begins with where a record is, if no file can hold it.

    No array is made of the values: that imports pandas, which a run that measures nothing does
    without.
    """
    every = list(records.values())
    columns = {name: [getattr(r, name) for r in every] for name in PARTITION_COLUMNS[:2]}
    for name, values in {**_by_column(every), **columns}.items():
        kind = READ_SCHEMA.field(name).type
        for where, value in zip(records, values, strict=True):
            if not _fits(value, kind):
                raise RecordError(
                    f"{where}: expected numbers of 64 bits and text in Unicode, got others "
                    f"({name}: {kind}); remove it"
                )


def _fits(value: Any, kind: pa.DataType) -> bool:
    """Whether a value of a record's type fits in a column of that kind."""
    if value is None:
        return True
    if pa.types.is_integer(kind):
        return -1 <= value >> (kind.bit_width - 1) <= 0
    if pa.types.is_list(kind):
        return all(_fits(item, kind.value_type) for item in value)
    if pa.types.is_map(kind):
        keys, items = zip(*value, strict=True) if value else ((), ())
        return _fits(keys, pa.list_(kind.key_type)) and _fits(items, pa.list_(kind.item_type))
    if pa.types.is_struct(kind):
        return all(_fits(value[field.name], field.type) for field in kind)
    try:
        if pa.types.is_string(kind):
            value.encode()
        elif pa.types.is_floating(kind):
            float(value)
    except (OverflowError, UnicodeEncodeError):
        return False
    return True


def to_records(table: pa.Table) -> list[TuningRecord]:
    """The rows of a table of READ_SCHEMA as records. Meant for a handful of rows.

    Rows that are none, as somebody else's file may have them, are left out, and the log says so.
    """
    found = [_known_record(row) for row in _rows(table)]
    records = [record for record in found if record is not None]
    if len(records) < len(found):
        _LOG.warning(
            "%d of %d rows are no records: they lack a task, a schedule or a result, or hold what "
            "is none; their file was not written by retune, or is damaged",
            len(found) - len(records),
            len(found),
        )
    return records


def as_frame(table: pa.Table) -> pd.DataFrame:
    """The table with arrow-typed columns: what is null stays null, and integers stay integers."""
    import pandas as pd  # a third of a second, which questions that need no frame are spared

    return table.to_pandas(types_mapper=pd.ArrowDtype)


def empty(schema: pa.Schema) -> pa.Table:
    """A table without rows. Other than `Schema.empty_table`, it imports no pandas."""
    return pa.Table.from_batches([], schema=schema)


RESTATED = ("night", "layout_in", "layout_out")
"""Columns that `as_of_today` changes: files of earlier versions are not to be searched for them."""


def as_of_today(table: pa.Table) -> pa.Table:
    """The table, with files of earlier versions read as today's: the layouts have their new names,
    and records without a night belong to none."""
    for name in RESTATED:
        if name in table.column_names:
            number = table.column_names.index(name)
            column = table.column(number)
            if name == "night":
                column = pc.fill_null(column, "")
            else:
                column = pc.replace_substring_regex(column, f"^{ROWS}", NHWC)
            table = table.set_column(number, table.schema.field(number), column)
    return table


def schema_version(metadata: Mapping[bytes, bytes] | None) -> int:
    """The version that a file says it has; a file that says nothing is of version 1."""
    text = (metadata or {}).get(VERSION_KEY, b"1")
    if not text.isdigit():
        return 1
    return int(text) if len(text) < _VERSION_DIGITS else 10**_VERSION_DIGITS


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    """The rows as Python's values; one that holds what has none is empty."""
    try:
        return table.to_pylist()
    except _NO_VALUE:
        if table.num_rows == 1:
            return [{}]
        return [row for number in range(table.num_rows) for row in _rows(table.slice(number, 1))]


def _known_record(row: Mapping[str, Any]) -> TuningRecord | None:
    try:
        return _record(row)
    except (KeyError, TypeError, *_NO_VALUE):
        return None


def _record(row: Mapping[str, Any]) -> TuningRecord:
    values = {name: value for name, value in row.items() if value is not None}
    for name in _TUPLES:
        values[name] = tuple(values.get(name, ()))
    values["input_shapes"] = tuple(tuple(shape) for shape in values.get("input_shapes", ()))
    values["knobs"] = tuple((name, tuple(chosen)) for name, chosen in values.get("knobs", ()))
    stamp = values.get("timestamp")
    if not isinstance(stamp, datetime):
        values.pop("timestamp", None)
    measurement = Measurement(**{name: values[name] for name in _MEASURED if name in values})
    identity = {name: values[name] for name in get_type_hints(TuningRecord) if name in values}
    known = values.get("conditions") and all(name in values for name in _STATED)
    given = {n: values[n] for n in ("device", *_CONDITIONS) if n in values} if known else None
    identity["conditions"] = given and Conditions(**given)
    identity["env"] = Environment(**{k: v or "" for k, v in (row["env"] or {}).items()})
    return TuningRecord(**identity, measurement=measurement)

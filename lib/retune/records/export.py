"""Records as one file, for tools that do not read the store: CSV, JSON lines, or Parquet.

Nothing is rounded or shortened: what a tool reads back is what the store holds.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from retune.core.files import check_ending
from retune.core.replacing import replacing
from retune.records import files
from retune.records.arrow import as_frame
from retune.records.store import Filter, RecordStore

FORMATS = (".csv", ".json", ".parquet")
"""Endings of the names of files that `export` writes."""


def export(store: RecordStore, path: Path, filters: Mapping[str, Filter] | None = None) -> int:
    """`path` holds a row for each matching record; gives their number. The name's end says how.

    `.parquet` is one file of the store's columns; `.json` has an object on each line; in `.csv`,
    lists, structures and maps are JSON. The file appears whole or not at all, in a folder that is
    made.

    Raises: InputError for another ending; what `RecordStore.scan` raises.
    """
    check_format(path)
    table = store.table(filters)
    if path.suffix == ".parquet":
        files.write_table(table, path)
        return table.num_rows
    with replacing(path) as stream:
        if path.suffix == ".csv":
            _plain(table, json.dumps).to_csv(stream, index=False)
        else:
            _plain(table, lambda value: value).to_json(
                stream,
                orient="records",
                lines=True,
                date_format="iso",
                date_unit="us",
                double_precision=15,
            )
    return table.num_rows


def check_format(path: Path) -> None:
    """Raises: InputError if the name does not end in one of FORMATS."""
    check_ending(str(path), path, *FORMATS)


def _plain(table: pa.Table, written: Callable[[object], object]) -> pd.DataFrame:
    """The table with every list, structure and map as Python's, `written` in some way."""
    frame = as_frame(table)
    for field in table.schema:
        if pa.types.is_nested(field.type):
            values = table.column(field.name).to_pylist()
            if pa.types.is_map(field.type):
                values = [None if value is None else dict(value) for value in values]
            plain: list[Any] = [written(value) for value in values]
            frame[field.name] = plain
    return frame

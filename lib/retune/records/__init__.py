"""The record store: every measurement, as rows of Parquet files.

`load` gives the rows as a pandas table; RecordStore (retune.records.store) writes and searches.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from retune.core.config import records_root

if TYPE_CHECKING:
    import pandas as pd

    from retune.records.store import Filter, Summary

    Table = pd.DataFrame
    """Rows of measurements, as other packages name the type."""

__all__ = ["load", "summary"]


def load(
    root: Path | str | None = None, columns: list[str] | None = None, **filters: Filter
) -> pd.DataFrame:
    """The records below `root` (default: the RETUNE_RECORDS folder) that match every filter.

    `load(status="ok", task_name=["conv2d_0", "conv2d_1"])` keeps rows with these values.
    Raises: InputError for an unknown column; RecordError for a file of a newer schema.
    """
    from retune.records.store import RecordStore

    return RecordStore(root or records_root()).scan(filters, columns)


def summary(root: Path | str | None = None) -> Summary:
    """Counts of what the store at `root` holds."""
    from retune.records.store import RecordStore

    return RecordStore(root or records_root()).summary()

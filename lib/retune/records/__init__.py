"""The record store: every measurement, as rows of Parquet files.

`load` gives the rows as a pandas table; RecordStore (retune.records.store) writes and searches.
`best`, `curve`, `failures`, `compare`, `importance` and `tuners` answer questions about these rows,
see `retune.records.analysis`.
`load_nights` gives the table of nights beside them, see `retune.records.nights`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from retune.core.config import records_root
from retune.core.errors import InputError
from retune.core.extras import explained

if TYPE_CHECKING:
    import pandas as pd

    from retune.records.analysis import best, compare, curve, failures, importance, tuners
    from retune.records.store import Filter, RecordStore, Summary

    Table = pd.DataFrame
    """Rows of measurements, as other packages name the type."""

__all__ = [
    "best",
    "compare",
    "curve",
    "failures",
    "importance",
    "load",
    "load_nights",
    "summary",
    "tuners",
]

_ANALYSIS = ("best", "compare", "curve", "failures", "importance", "tuners")

MEASURED = "retune.records.measured"
"""Logger of each measurement that is kept, at level DEBUG."""


def load(
    root: Path | str | None = None,
    columns: list[str] | None = None,
    *,
    night: str | None = None,
    run: str | None = None,
    model: str | None = None,
    device: str | None = None,
    shape: Sequence[int] | None = None,
    **filters: Filter,
) -> pd.DataFrame:
    """The records below `root` (default: the RETUNE_RECORDS folder) that match everything given.

    `run` is the id of a run, or its beginning; `model` what was given to `retune tune`, or its name
    without folder, with its ending or not: files of that name in every folder; `device` a model,
    such as `pthread-AMD EPYC`, or a whole fingerprint; `shape` that of an input or of the output.
    Filters are columns:
    `load(status="ok", phase=["search", "layout"])` keeps rows with these values.
    Raises: LookupFailed for a night, run, model, device or shape that no record is of; InputError
    for an unknown column, or a folder that is not there; RecordError for a file of a newer schema.
    """
    store = _store(root)
    asked = {"night": night, "run_id": run, "model": model, "device": device}
    from retune.records.lookup import filter_by_shape, resolve_filters

    found = resolve_filters(
        store, {name: value for name, value in asked.items() if value is not None}
    )
    return filter_by_shape(store, {**filters, **found}, columns, shape)


def load_nights(root: Path | str | None = None, fleet: str = "") -> pd.DataFrame:
    """The table of nights below `root` (default: the RETUNE_RECORDS folder), the oldest first.

    One row for each night, network and device: its time, its controls' and the verdict; columns are
    the fields of `retune.records.nights.NightRow`. `fleet` is a fleet's name, by default all.
    Raises: InputError for a folder that is not there; RecordError for a file of a newer schema.
    """
    from retune.records.nights import nights_frame

    return nights_frame(_store(root).root, fleet)


def __getattr__(name: str) -> object:
    if name not in _ANALYSIS:
        raise AttributeError(f"module 'retune.records' has no attribute {name!r}")
    with explained():
        from retune.records import analysis

        return getattr(analysis, name)


def summary(root: Path | str | None = None) -> Summary:
    """Counts of what the store at `root` holds. Raises: InputError if there is none."""
    return _store(root).summary()


def _store(root: Path | str | None) -> RecordStore:
    with explained():
        from retune.records.store import RecordStore

    folder = Path(root or records_root())
    if not folder.is_dir():
        got = "a file" if folder.exists() else "nothing there"
        raise InputError(
            f"{folder}: expected the folder of a record store, got {got}; `retune tune` makes one"
        )
    return RecordStore(folder)

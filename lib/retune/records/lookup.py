"""Filters of a store from the names that people use; a name that no record has is an error."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath

import pandas as pd

from retune.core.errors import InputError, LookupFailed
from retune.core.names import model_name
from retune.core.schema import did_you_mean
from retune.records.store import Filter, RecordStore

_MEANING = {"night": "night", "run_id": "run", "model": "model", "device": "device"}
"""Column -> what people call it."""
_MOST_NAMED = 12
"""Names that an error lists."""


def resolve_filters(store: RecordStore, asked: Mapping[str, Filter]) -> dict[str, Filter]:
    """Column -> the values in the store that are meant. Raises: LookupFailed if there is none."""
    if not asked:
        return {}
    rows = store.scan(None, list(asked))
    return {name: _meant(name, value, rows[name]) for name, value in asked.items()}


def _meant(name: str, value: Filter, column: pd.Series) -> Filter:
    known = sorted({str(each) for each in column.dropna().unique()})
    wanted = [value] if isinstance(value, str) else value
    if not isinstance(wanted, Sequence):
        raise _unknown(name, value, known)
    found = [each for one in wanted for each in known if _is_meant(name, str(one), each)]
    if not found:
        raise _unknown(name, value, known)
    return found


def _is_meant(name: str, asked: str, known: str) -> bool:
    if asked == known:
        return True
    if name == "run_id":
        return bool(asked) and known.startswith(asked)
    if name == "model":
        return asked in (model_name(known), PurePath(known).name)
    return name == "device" and known.partition("|")[0] == asked


def _unknown(name: str, value: object, known: Sequence[str]) -> LookupFailed:
    what = _MEANING[name]
    if not known:
        return LookupFailed(
            f"{what} {value}: the store has no records yet; `retune tune` makes some"
        )
    listed = ", ".join(each or "(none)" for each in known[:_MOST_NAMED])
    more = f" and {len(known) - _MOST_NAMED} more" if len(known) > _MOST_NAMED else ""
    hint = did_you_mean(str(value), known)
    return LookupFailed(
        f"{what} {value}: no record is of this {what}; there are: {listed}{more}{hint}"
    )


def filter_by_shape(
    store: RecordStore,
    filters: Mapping[str, Filter],
    columns: Sequence[str] | None,
    shape: Sequence[int] | None,
) -> pd.DataFrame:
    """The matching rows, with a shape those of tasks that read or make it.

    Raises: LookupFailed if no task has the shape, InputError for what is not one.
    """
    if shape is None:
        return store.scan(filters, columns)
    if isinstance(shape, str) or not isinstance(shape, Iterable):
        raise InputError(f"shape: expected extents such as [1, 1000], got {shape!r}")
    wanted, shapes = list(shape), ["input_shapes", "output_shape"]
    rows = store.scan(filters, None if columns is None else [*{*columns, *shapes}])
    fits = [
        wanted == list(out) or any(wanted == list(one) for one in read)
        for read, out in zip(rows["input_shapes"], rows["output_shape"], strict=True)
    ]
    if not any(fits):
        text = ", ".join(map(str, wanted))
        raise LookupFailed(f"shape [{text}]: no task among these records reads or makes it")
    return rows[fits][list(columns)] if columns is not None else rows[fits]

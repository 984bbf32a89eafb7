"""Ranking of a task's records by cost."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from retune.records.cost import COST_COLUMNS, recorded_costs
from retune.records.schema import TuningRecord
from retune.records.store import Filter, RecordStore

if TYPE_CHECKING:
    import pandas as pd

Where = Mapping[str, Filter]
"""Columns by which records are comparable: a filter of the store."""


def best(store: RecordStore, task_key: str, where: Where) -> TuningRecord | None:
    """The first of `top`; None if no record is right."""
    found = top(store, task_key, where, 1)
    return found[0] if found else None


def top(
    store: RecordStore,
    task_key: str,
    where: Where,
    count: int,
    sketches: Sequence[str] | None = None,
) -> list[TuningRecord]:
    """The `count` fastest right configurations of the task, fastest first, each once.

    With `sketches`, only configurations of these. Fast is what costs little (see `cost`). A
    configuration that was measured as a finalist counts by the middle one of these costs, not by
    its luckiest.
    """
    wanted: dict[str, Filter] = {**where, "task_key": task_key, "status": "ok"}
    if sketches is not None:
        wanted["sketch"] = list(sketches)
    columns = ["config_hash", "phase", *COST_COLUMNS]
    return store.chosen(wanted, columns, lambda table: _fastest(table.select(columns), count))


def _fastest(table: pa.Table, count: int) -> list[int]:
    """Row numbers of the fastest configurations, fastest first."""
    if not table.num_rows:
        return []  # a frame imports pandas, which takes a third of a second
    rows = table.to_pandas()
    rows["cost"] = recorded_costs(rows)[1]
    ranked = standing(rows[rows["cost"] > 0], ["config_hash"]).sort_values("cost", kind="stable")
    return ranked.index[:count].tolist()


def standing(rows: "pd.DataFrame", configuration: list[str]) -> "pd.DataFrame":
    """One row for each configuration, by which its `cost` is known.

    Of one that was measured as a finalist the middle one of these costs, not its luckiest; of any
    other the least one. `configuration` are the columns that tell configurations apart.
    """
    import pandas as pd

    final = rows[rows["phase"] == "final"].sort_values("cost", kind="stable")
    number = final.groupby(configuration).cumcount()
    size = final.groupby(configuration)["cost"].transform("size")
    middle = final[number == (size - 1) // 2]
    finalists = pd.MultiIndex.from_frame(final[configuration])
    others = rows[~pd.MultiIndex.from_frame(rows[configuration]).isin(finalists)]
    least = others.sort_values("cost", kind="stable").drop_duplicates(configuration)
    return pd.concat([middle, least])


def known(store: RecordStore, task_key: str, where: Where) -> set[str]:
    """config_hash of every candidate of the task that was tried."""
    rows = store.scan({**where, "task_key": task_key}, ["config_hash", "status"])
    return set(rows.loc[(rows["status"] != "skipped").to_numpy(bool), "config_hash"])

"""Questions that people ask of records, answered as pandas tables: one row for each answer.

Every function takes rows as `retune.records.load` returns them, and raises InputError for others.
Times compare only within ALIKE: one task, on one device, under one set of conditions (alone or in
one network, cores, caches, layouts). No table mixes them. Costs, which rank candidates, are times
with the machine's drift taken out (`records.cost`); what is shown is the time as it was.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd

from retune.core.errors import InputError
from retune.records.cost import COST_COLUMNS, recorded_costs
from retune.records.ranking import standing
from retune.records.schema import BESIDE_SEARCH

ALIKE = ["task_key", "device", "conditions"]
"""Columns within which times compare."""
SHOWN = ["task_name", "place"]
"""Columns that tell people which rows these are."""
NEAR = 1.05
"""Times the best cost that still counts as near it."""
_MOST_ERROR = 100
"""Characters of a reason."""
_TEXTS = (
    *("conditions", "place", "constants", "layout_in", "layout_out", "config_hash"),
    *("tuner", "strategy", "error", "run_id", "night"),
)
_READ = dict.fromkeys(
    (*SHOWN, *ALIKE, *_TEXTS, *COST_COLUMNS, "phase", "trial", "timestamp", "flops", "knobs")
)
"""What an answer reads of rows, or shows."""
_EXPECTED = "rows: expected those of retune.records.load, with all columns"


def best(rows: pd.DataFrame) -> pd.DataFrame:
    """The fastest correct candidate of each task under each of its conditions, slowest task first.

    A finalist counts by the middle one of its measurements. `trials` and `failed` count what was
    searched there, over all runs among the rows.
    """
    found = _costed(rows)
    right = found[found["cost"] > 0]
    first = standing(right, [*ALIKE, "config_hash"]).sort_values("cost", kind="stable")
    first = first.drop_duplicates(ALIKE)
    searched = found[~found["phase"].isin(BESIDE_SEARCH)]
    counts = searched.groupby(ALIKE).agg(trials=("wrong", "size"), failed=("wrong", "sum"))
    first = first.merge(counts.reset_index(), "left", on=ALIKE)
    counted = {"trials": first["trials"].fillna(0), "failed": first["failed"].fillna(0)}
    first = first.assign(**{name: column.astype(int) for name, column in counted.items()})
    first["gflops"] = first["flops"].astype(float) / first["median_us"] / 1e3
    knobs = [_by_name(knobs) for knobs in first["knobs"]]
    first["knobs"] = pd.Series(knobs, first.index, dtype=object)  # Arrow would give all one struct
    columns = [
        *(*SHOWN, "median_us", "gflops", "trials", "failed", "strategy", "tuner", "knobs"),
        *("constants", "layout_in", "layout_out", "model", "night", "run_id", "record_id"),
        *(*ALIKE, "cost"),
    ]
    return first[columns].sort_values("median_us", ascending=False, ignore_index=True)


def _by_name(knobs: object) -> dict[str, list[int]]:
    pairs = knobs.items() if isinstance(knobs, dict) else knobs
    return {name: list(values) for name, values in pairs} if isinstance(pairs, Iterable) else {}


def curve(rows: pd.DataFrame) -> pd.DataFrame:
    """Each trial of each search in its order, with the best time so far (NaN until one is right).

    `trial` counts from 1 within a task and run.
    """
    found = _searched(rows).sort_values(["timestamp", "trial"], kind="stable")
    keys = [*ALIKE, "run_id"]
    found["trial"] = found.groupby(keys).cumcount() + 1
    least = found.groupby(keys)["median_us"].cummin()
    found["best_us"] = least.groupby([found[key] for key in keys]).ffill()
    columns = [*SHOWN, "trial", "median_us", "best_us", "status", "tuner", "night", *keys]
    return found[columns].reset_index(drop=True)


def failures(rows: pd.DataFrame) -> pd.DataFrame:
    """Numbers of failed candidates by task, strategy and reason, the most first.

    `share` is of the candidates that were measured for that task and strategy.
    """
    found = _costed(rows)
    kind = ["task_name", "strategy", "device"]
    measured = found.groupby(kind).size().rename("measured")
    wrong = found[found["status"] != "ok"]
    lines = wrong["error"].str.split("\n").str[0].str.slice(0, _MOST_ERROR)
    counts = wrong.assign(reason=lines).groupby([*kind, "status", "reason"]).size()
    table = counts.rename("count").reset_index().merge(measured, left_on=kind, right_index=True)
    table["share"] = table["count"] / table["measured"]
    columns = ["task_name", "strategy", "status", "reason", "count", "share", "device"]
    return table[columns].sort_values("count", ascending=False, ignore_index=True)


def compare(before: pd.DataFrame, after: pd.DataFrame) -> pd.DataFrame:
    """The best of each task in two sets of rows; `ratio` is the cost after over that before.

    Below 1, `after` is faster. A task that one of them lacks, or has under other conditions, has no
    ratio. The rows with the greatest change come first.
    """
    columns = [*SHOWN, *ALIKE, "median_us", "strategy", "cost"]
    both = best(before)[columns].merge(
        best(after)[columns], "outer", on=ALIKE, suffixes=("_before", "_after")
    )
    for name in SHOWN:
        both[name] = both[f"{name}_after"].fillna(both[f"{name}_before"])
    both["ratio"] = both["cost_after"] / both["cost_before"]
    change = both["ratio"].astype(float).transform(np.log).abs().fillna(-1.0)
    shown = [
        *(*SHOWN, "median_us_before", "median_us_after", "ratio"),
        *("strategy_before", "strategy_after", *ALIKE),
    ]
    return both.loc[change.sort_values(ascending=False, kind="stable").index, shown].reset_index(
        drop=True
    )


def importance(rows: pd.DataFrame) -> pd.DataFrame:
    """The importance of each knob: the share of the variance of log times that it explains.

    For each task, strategy and knob of the correct trials: `explained` is epsilon squared, from 0
    (its values say nothing) to 1. It is corrected for the number of values, so that a knob that
    has another value in each trial explains nothing. `best` is its value in the fastest one.
    """
    right = _searched(rows).dropna(subset=["cost", "knobs"])
    told = [
        {**dict(zip([*ALIKE, "strategy"], key, strict=True)), "task_name": name, **row}
        for key, group in right.groupby([*ALIKE, "strategy"])
        for name in group["task_name"].iloc[:1]
        for row in _explained(group)
    ]
    columns = ["task_name", "strategy", "knob", "explained", "best", "values", "trials", *ALIKE]
    table = pd.DataFrame(told, columns=columns)
    return table.sort_values("explained", ascending=False, ignore_index=True)


def tuners(rows: pd.DataFrame) -> pd.DataFrame:
    """Each tuner's best time for each task, beside the best of all, and how soon it was found.

    `trials_to_near` are the trials, in the run that took the fewest, until the tuner came within
    5 % of the best of all tuners.
    """
    found = _searched(rows)
    overall = found.groupby(ALIKE)["cost"].transform("min")
    near = found["cost"] <= NEAR * overall
    order = found.sort_values("timestamp").groupby([*ALIKE, "tuner", "run_id"]).cumcount() + 1
    found = found.assign(overall=overall, order=order.where(near))
    table = found.groupby([*ALIKE, "tuner"], as_index=False).agg(
        task_name=("task_name", "first"),
        trials=("status", "size"),
        failed=("wrong", "sum"),
        best_us=("median_us", "min"),
        cost=("cost", "min"),
        overall=("overall", "min"),
        trials_to_near=("order", "min"),
    )
    table["ratio_to_best"] = table["cost"] / table["overall"]
    columns = ["task_name", "tuner", "trials", "failed", "best_us", "ratio_to_best"]
    return table[[*columns, "trials_to_near", *ALIKE]].sort_values(
        ["task_name", "ratio_to_best"], ignore_index=True
    )


def _costed(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with `cost`, NaN where one failed (`wrong`: 1); text that early versions lack is
    empty. Raises: InputError for anything but rows with all columns."""
    given: object = rows
    if not isinstance(given, pd.DataFrame):
        raise InputError(f"{_EXPECTED}, got {type(given).__name__}")
    if lacking := [name for name in _READ if name not in rows]:
        raise InputError(f"{_EXPECTED}, got a table without {', '.join(lacking)}")
    found = rows.copy()
    for name in _TEXTS:
        found[name] = found[name].astype(object).where(found[name].notna().to_numpy(bool), "")
    found["cost"] = recorded_costs(found[list(COST_COLUMNS)])[1]
    right = (found["status"] == "ok").to_numpy(bool)
    found["wrong"] = (~right).astype(int)
    found["median_us"] = found["median_us"].astype(float).where(right)
    return found


def _searched(rows: pd.DataFrame) -> pd.DataFrame:
    """The trials alone: finalists are measured again, most of them inside the network."""
    found = _costed(rows)
    return found[~found["phase"].isin(BESIDE_SEARCH)].copy()


def _explained(group: pd.DataFrame) -> Iterator[dict[str, object]]:
    """A row for each knob of one task and strategy."""
    logs = np.log(group["cost"].to_numpy(float))
    total = float(((logs - logs.mean()) ** 2).sum())
    chosen = [
        {name: tuple(values) for name, values in dict(knobs).items()} for knobs in group["knobs"]
    ]
    fastest = chosen[int(logs.argmin())]
    for knob in fastest:
        values = pd.Series([str(each.get(knob)) for each in chosen])
        count = values.nunique()
        if count < 2 or len(logs) <= count or not total:
            continue
        means = pd.Series(logs).groupby(values).transform("mean").to_numpy(float)
        within = float(((logs - means) ** 2).sum()) / (len(logs) - count)
        share = max(0.0, 1 - within / (total / (len(logs) - 1)))
        yield {
            "knob": knob,
            "explained": share,
            "best": ",".join(map(str, fastest[knob])),
            "values": count,
            "trials": len(logs),
        }

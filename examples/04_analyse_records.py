"""What was measured, as pandas tables: best per task, tuning curve, failure reasons.

    .venv/bin/python examples/04_analyse_records.py [STORE]

STORE is a record store, artifacts/records by default. `retune.records.load` returns every
measurement as one row; the rest of this file is plain pandas.
"""

import sys

import pandas as pd

import retune.records

COLUMNS = [
    *("model", "task_name", "task_key", "sketch", "decisions", "config_hash", "phase"),
    *("status", "error", "median_us", "reference_us", "timestamp", "device", "conditions", "place"),
]
ALIKE = ["task_name", "task_key", "device", "conditions", "place"]
"""Times compare where these are equal: on one device, alone or in one network."""
SHOWN = ["task_name", "device", "place"]


def best_per_task(rows: pd.DataFrame) -> pd.DataFrame:
    """The fastest right candidate of each task and condition, how many were tried, and the gain."""
    right = rows[rows["status"] == "ok"].sort_values("median_us")
    tasks = right.groupby(ALIKE)
    best = tasks.agg(best_us=("median_us", "min"), median_us=("median_us", "median"))
    best["tried"] = rows.groupby(ALIKE).size()
    best["decisions"] = tasks["decisions"].first().map(list)
    best["typical / best"] = (best["median_us"] / best["best_us"]).round(2)
    shown = best.reset_index().drop(columns=["task_key", "conditions"])
    return shown.sort_values("best_us", ascending=False)


def tuning_curve(rows: pd.DataFrame, points: int = 8) -> pd.DataFrame:
    """Best time so far of each task after 1, 2, 4, ... trials of its searches.

    Finalists are measured again, most of them inside the network: those are no trials.
    """
    curve = rows[rows["phase"] == "search"].sort_values("timestamp")
    times = curve["median_us"].where(curve["status"] == "ok").astype("float64")
    keys = [curve[name] for name in ALIKE]
    curve = curve.assign(trial=curve.groupby(ALIKE).cumcount() + 1, best_us=times)
    curve["best_us"] = curve["best_us"].groupby(keys).cummin().groupby(keys).ffill()
    shown = curve[curve["trial"].isin([2**i for i in range(points)])]
    return shown.pivot_table(index=SHOWN, columns="trial", values="best_us")


def failure_reasons(rows: pd.DataFrame) -> pd.DataFrame:
    """How many candidates ended how, with the most frequent message of each kind."""
    failed = rows[rows["status"] != "ok"]
    reason = failed["error"].astype(str).str.split("\n").str[0].str.slice(0, 80)
    table = failed.assign(reason=reason).groupby(["status", "reason"], observed=True).size()
    return table.rename("count").sort_values(ascending=False).reset_index().head(10)


def main() -> None:
    """Prints the three tables."""
    store = sys.argv[1] if len(sys.argv) > 1 else None
    rows = retune.records.load(store, columns=COLUMNS)
    rows = rows.fillna({"conditions": "", "place": "", "phase": "search"})  # of early versions
    pd.set_option("display.width", 160, "display.max_columns", 20, "display.precision", 1)
    rows["device"] = rows["device"].str.partition("|")[0]  # without driver and OpenCL version
    rows["place"] = rows["place"].str.slice(0, len("network:") + 8)  # enough to tell them apart
    print(f"{len(rows)} measurements of {rows['task_key'].nunique()} tasks\n")
    if rows.empty:
        return
    print("best per task\n", best_per_task(rows).to_string(index=False), "\n")
    print("best so far (us) after so many measurements\n", tuning_curve(rows).to_string(), "\n")
    reasons = failure_reasons(rows)
    print("failures\n", reasons.to_string(index=False) if len(reasons) else "none")


if __name__ == "__main__":
    main()

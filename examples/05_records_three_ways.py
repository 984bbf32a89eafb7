"""The same three questions to a record store in pandas, DuckDB and Polars: one line each.

    .venv/bin/python examples/05_records_three_ways.py [STORE]

STORE is a record store, artifacts/records by default. The questions: how many GFLOPS each task
reaches under each of its conditions, which tuner found what, and the decisions of each candidate, a
column for each knob. DuckDB and Polars read the Parquet files as they are; neither comes with
retune.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import retune.records

SHOWN = 5
"""Candidates whose knobs are printed."""
ALIKE = ["task_name", "device", "conditions"]
"""Columns that are equal where times compare."""
PATTERN = "v1/*/*/*/*.parquet"
"""Of the store's files; target, model and date are in the names of the folders."""


def with_pandas(pd: ModuleType, store: str) -> None:
    """`load` fills columns that older files lack with nulls."""
    right = retune.records.load(store, status="ok").sort_values("median_us")
    right = right.fillna({"conditions": ""})
    right["gflops"] = right["flops"] / right["median_us"] / 1e3
    gflops = right.groupby(ALIKE)["gflops"].max()
    tuners = right.pivot_table("median_us", index=ALIKE, columns="tuner", aggfunc="min")
    right = right.dropna(subset="knobs")
    knobs = pd.DataFrame(map(dict, right["knobs"]), index=right["median_us"])
    print(gflops.to_frame("gflops"), tuners, knobs.head(SHOWN), sep="\n\n")


def with_duckdb(duckdb: ModuleType, store: str) -> None:
    """`union_by_name` does the same."""
    files = f"'{store}/{PATTERN}', union_by_name = true, hive_partitioning = true"
    ask = duckdb.connect().sql
    ask(f"CREATE VIEW good AS SELECT * FROM read_parquet({files}) WHERE status = 'ok'")
    alike = ", ".join(ALIKE)
    print(ask(f"SELECT {alike}, max(flops / median_us / 1e3) AS gflops FROM good GROUP BY ALL"))
    print(ask(f"PIVOT good ON tuner USING min(median_us) GROUP BY {alike}"))
    pairs = "SELECT median_us, unnest(map_entries(knobs), recursive := true) FROM good"
    knobs = f"PIVOT ({pairs}) ON key USING first(value) GROUP BY median_us"
    print(ask(f"{knobs} ORDER BY median_us LIMIT {SHOWN}"))


def with_polars(pl: ModuleType, store: str) -> None:
    """A diagonal concatenation does the same."""
    files = Path(store).glob(PATTERN)
    rows = pl.concat([pl.read_parquet(path) for path in files], how="diagonal")
    right = rows.filter(status="ok").sort("median_us")
    gflops = (pl.col("flops") / pl.col("median_us") / 1e3).max().alias("gflops")
    print(right.group_by(ALIKE).agg(gflops))
    print(right.pivot("tuner", index=ALIKE, values="median_us", aggregate_function="min"))
    kind = pl.List(pl.Struct({"key": pl.String, "value": pl.List(pl.Int32)}))
    pairs = right.select("median_us", pl.col("knobs").cast(kind)).explode("knobs").unnest("knobs")
    print(pairs.pivot("key", index="median_us", aggregate_function="first").head(SHOWN))


WAYS = {"pandas": with_pandas, "duckdb": with_duckdb, "polars": with_polars}


def main() -> None:
    """Asks in each way that is installed."""
    store = sys.argv[1] if len(sys.argv) > 1 else "artifacts/records"
    for name, answers in WAYS.items():
        print(f"\n== {name}")
        if find_spec(name) is None:
            print(f"{name} is not installed here; `pip install {name}` if you want to use it")
        else:
            answers(import_module(name), store)


if __name__ == "__main__":
    main()

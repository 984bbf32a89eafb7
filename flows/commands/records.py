"""`retune records`: what was measured, summed up, the best of it, and all of it as a table."""

from pathlib import Path
from typing import Annotated

import typer

from flows.console import print_json, print_table, rounded, say
from flows.options import Json, Records
from retune.core.config import records_root
from retune.core.errors import InputError

app = typer.Typer(help="Look into the record store.", no_args_is_help=True, rich_markup_mode=None)

FORMATS = (".csv", ".json", ".parquet")

Target = Annotated[str | None, typer.Option(help="Only records of this device.")]
NetworkName = Annotated[str | None, typer.Option("--model", help="Only records of this network.")]


@app.command("summary")
def summary(records: Records = None, json: Json = False) -> None:
    """Print counts and the best time for each device, network and task."""
    from retune.records import summary as summarize

    rows = summarize(_root(records)).to_dict("records")
    if json:
        print_json(rows)
    else:
        print_table(rounded(rows), f"records of {_root(records)}")


@app.command("best")
def best(
    records: Records = None,
    target: Target = None,
    model: NetworkName = None,
    json: Json = False,
) -> None:
    """Print the fastest right candidate of each task, with its schedule's decisions."""
    frame = _load(_root(records), target, model)
    right = frame[frame["status"] == "ok"].sort_values("median_us")
    first = right.drop_duplicates(["target", "task_key"])
    names = ["target", "model", "task_name", "sketch", "decisions", "median_us", "record_id"]
    rows = first[[name for name in names if name in first.columns]].to_dict("records")
    rows = [{name: _plain(value) for name, value in row.items()} for row in rows]
    if json:
        print_json(rows)
    else:
        print_table(rounded(rows), f"best records of {_root(records)}")


@app.command("export")
def export(
    output: Annotated[Path, typer.Argument(help="A .csv, .json or .parquet file.")],
    records: Records = None,
    target: Target = None,
    model: NetworkName = None,
) -> None:
    """Write all records as one table, for tools that do not read the store."""
    if output.suffix not in FORMATS:
        raise InputError(f"{output}: expected a name that ends with {', '.join(FORMATS)}")
    frame = _load(_root(records), target, model)
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = output.with_name(f".{output.name}.tmp")
    match output.suffix:
        case ".csv":
            frame.to_csv(temporary, index=False)
        case ".json":
            frame.to_json(temporary, orient="records", lines=True, date_format="iso")
        case _:
            frame.to_parquet(temporary, index=False)
    temporary.replace(output)
    say(f"{output}: {len(frame)} records")


def _root(records: Path | None) -> Path:
    root = records or records_root()
    if not root.is_dir():
        raise InputError(
            f"--records {root}: expected a record store, got no folder; `retune tune` makes one"
        )
    return root


def _load(root: Path, target: str | None, model: str | None):
    from retune.records import load

    frame = load(root)
    if target:
        frame = frame[frame["target"] == target]
    if model:
        frame = frame[frame["model"] == model]
    return frame


def _plain(value: object) -> object:
    """Lists of a column as plain lists."""
    tolist = getattr(value, "tolist", None)
    return tolist() if callable(tolist) else value

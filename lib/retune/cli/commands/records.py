"""`retune records`: what was measured, summed up, the best of it, and all of it as a table."""

from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from retune.cli.console import print_json, print_line, print_table, say
from retune.cli.options import Json, Records, device_names, record_store
from retune.core.config import records_root
from retune.core.errors import InputError, LookupFailed
from retune.core.files import check_ending, check_file
from retune.core.quantities import counted

if TYPE_CHECKING:
    from retune.records import Table
    from retune.records.distilled import TravellingRecords
    from retune.records.store import RecordStore

_FOR_PROGRAMS = frozenset(("task_key", "last", "conditions", "flops"))
"""Columns that the table of tasks for people has not."""
_DEVICE_PARTS = 2
"""Of a fingerprint that people see: model and driver."""
_PLACE_CHARS = len("network:") + 8
"""Of a place that people see: enough to tell networks apart."""

Model = Annotated[str | None, typer.Option(help="Network whose records count. Default: all.")]
Device = Annotated[
    str | None,
    typer.Option(
        help="Device whose records count: its name, model or fingerprint. Default: all.",
        autocompletion=device_names,
    ),
]

app = typer.Typer(
    help="Read and share the record store.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("summary")
def summary(records: Records = None, json: Json = False) -> None:
    """Print counts of records by outcome, device, network and task."""
    store = record_store(records)
    found = store.summary()
    tasks = _tasks(store)
    if json:
        print_json({**asdict(found), "per_task": tasks})
        return
    of_what = f"{counted(found.tasks, 'task')}, {counted(found.runs, 'run')}"
    print_line(f"{counted(found.records, 'record')} of {of_what}")
    print_line(f"{counted(found.files, 'file')}, {found.bytes / 2**20:.2f} MiB in {store.root}")
    for name, counts in (
        ("outcomes", found.statuses),
        ("devices", found.targets),
        ("networks", found.models),
    ):
        said = ", ".join(f"{count:,} {what}" for what, count in counts.items())
        print_line(f"{name}: {said or 'none'}")
    for path in found.damaged:
        print_line(f"damaged: {path}")
    print_table(_for_people(tasks), "tasks", optional=("device", "best_gflops", "ok"))


@app.command("export")
def export(
    output: Annotated[
        Path, typer.Argument(metavar="FILE", help="Output file: .csv, .json or .parquet.")
    ],
    records: Records = None,
    model: Model = None,
    json: Json = False,
) -> None:
    """Write all records as one table.

    For tools that do not read the store.
    """
    from retune.records.export import check_format
    from retune.records.export import export as write
    from retune.records.lookup import resolve_filters

    check_format(output)
    check_file("output", output)
    store = record_store(records)
    count = write(store, output, resolve_filters(store, {"model": model} if model else {}))
    if json:
        print_json({"file": output, "records": count})
        return
    say(f"{output}: {counted(count, 'record')}")


@app.command("distill")
def distill(
    output: Annotated[
        Path, typer.Argument(metavar="FILE", help="Output file: .jsonl, or .jsonl.gz, compressed.")
    ],
    records: Records = None,
    best: Annotated[
        int, typer.Option(min=1, help="Number of records of each task and device.")
    ] = 4,
    model: Annotated[
        str, typer.Option(help="Network whose records count. Default: all.", show_default=False)
    ] = "",
    tuner: Annotated[
        str,
        typer.Option(
            "--as",
            help="Format of the lines: retune, autotvm, ansor. The last two are for comparison.",
        ),
    ] = "retune",
    json: Json = False,
) -> None:
    """Write the best records of each task to a small file.

    Other machines read it by `retune records import`, or the variable RETUNE_TEAM_RECORDS.
    """
    from retune.core.replacing import replacing
    from retune.records import distilled
    from retune.records.foreign import KINDS, Kind, foreign_lines

    check_ending(str(output), output, ".jsonl", ".jsonl.gz")
    check_file("output", output)
    if tuner not in ("retune", *KINDS):
        raise InputError(f"--as {tuner}: expected one of retune, {', '.join(KINDS)}")
    store = record_store(records)
    found = distilled.distill(store, best, model)
    if not found:
        of = f" of {model}" if model else ""
        raise LookupFailed(f"{store.root}: expected correct candidates{of}, got none; tune first")
    kinds: dict[str, Kind] = {str(kind): kind for kind in KINDS}
    if (kind := kinds.get(tuner)) is not None:
        with replacing(output) as stream:
            stream.write("".join(f"{line}\n" for line in foreign_lines(found, kind)).encode())
    else:
        distilled.write_records(found, output, distilled.devices_of(store, found))
    tasks = len({record.task_key for record in found})
    if json:
        print_json({"file": output, "records": len(found), "tasks": tasks})
        return
    say(f"{output}: {counted(len(found), 'record')} of {counted(tasks, 'task')}")


@app.command("import")
def import_(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="SOURCE",
            help="JSON lines of retune (`retune records distill`), AutoTVM or Ansor, or stores.",
        ),
    ],
    records: Records = None,
    json: Json = False,
) -> None:
    """Add the records of files or of other stores to the record store.

    Those that it has already stay as they are. Times of AutoTVM and Ansor are for comparison: their
    schedules are of other spaces.
    """
    from retune.records.distilled import merge
    from retune.records.store import RecordStore

    read = [_records_of(source) for source in sources]
    found = [record for one in read for record in one.records]
    store = RecordStore(records or records_root())
    new = merge(store, found, [spec for one in read for spec in one.devices.values()])
    if json:
        print_json({"store": store.root, "records": len(found), "new": new})
        return
    say(f"{store.root}: {counted(new, 'new record')} of {len(found):,}")


def _records_of(source: Path) -> "TravellingRecords":
    """All records of a store, or those of a file."""
    from retune.records.arrow import to_records
    from retune.records.distilled import TravellingRecords, devices_of, read_records
    from retune.records.foreign import kind_of, read_foreign
    from retune.records.origins import spec_key

    if source.is_dir():
        store = record_store(source)
        rows = tuple(to_records(store.table()))
        devices = {spec_key(spec): spec for spec in devices_of(store, rows)}
        return TravellingRecords(records=rows, devices=devices)
    kind = kind_of(source)
    return TravellingRecords(records=read_foreign(source, kind)) if kind else read_records(source)


def plain_rows(frame: "Table") -> list[dict[str, Any]]:
    """The rows as plain data; None where something is not known."""
    objects: Any = frame.astype(object)
    objects = objects.where(frame.notna().to_numpy(bool), None)
    rows = cast(list[dict[str, Any]], objects.to_dict("records"))
    return [{n: v.item() if hasattr(v, "item") else v for n, v in row.items()} for row in rows]


def with_short_place(row: dict[str, Any]) -> dict[str, Any]:
    """The row with as much of its place as people see."""
    return {**row, "place": str(row["place"])[:_PLACE_CHARS]} if row.get("place") else row


def _tasks(store: "RecordStore") -> list[dict[str, Any]]:
    """The store's tasks, each under each of its conditions; None where something is not known."""
    return plain_rows(store.tasks())


def fingerprint_of(device: str) -> str:
    """Of a device that `retune devices` lists; any other text as it is: a model, a fingerprint."""
    from retune.device.opening import spec_of

    with suppress(InputError):
        return spec_of(device).fingerprint
    return device


def _for_people(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what only programs read, and without those conditions that all rows share."""
    from retune.records.store import CONDITIONS

    shared = {n for n in CONDITIONS if len({row.get(n) for row in rows}) == 1}
    return [_shown(row, shared) for row in rows]


def _shown(row: dict[str, Any], shared: Collection[str]) -> dict[str, Any]:
    hidden = {*shared, *_FOR_PROGRAMS}
    shown = {name: value for name, value in row.items() if name not in hidden}
    shown["device"] = "|".join(str(shown["device"]).split("|")[:_DEVICE_PARTS])
    return with_short_place(shown)

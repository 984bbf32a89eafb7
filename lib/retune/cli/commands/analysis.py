"""`retune records curve`, `failures`, `compare`, `importance`, `tuners`: answers from the store."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from retune.cli.commands.records import PLACE_CHARS, app, fingerprint_of
from retune.cli.console import print_json, print_line, print_table
from retune.cli.options import Json, Records
from retune.core.errors import InputError
from retune.core.target import model_of

if TYPE_CHECKING:
    from retune.records import Table

Model = Annotated[str | None, typer.Option(help="Network whose records count. Default: all.")]
Device = Annotated[
    str | None,
    typer.Option(help="Device whose records count: its name, model or fingerprint. Default: all."),
]
Night = Annotated[
    str | None, typer.Option(help="Night or campaign whose records count. Default: all.")
]
Run = Annotated[
    str | None, typer.Option(help="Run whose records count: its id or the beginning. Default: all.")
]

_POINTS = [2**n for n in range(16)]
"""Trials that the table of curves shows."""


@app.command("curve")
def curve(
    records: Records = None,
    model: Model = None,
    device: Device = None,
    night: Night = None,
    run: Run = None,
    json: Json = False,
) -> None:
    """Print the best time of each task after 1, 2, 4, ... trials.

    With --json every trial.
    """
    from retune.records import analysis

    found = analysis.curve(_rows(records, model=model, device=device, night=night, run=run))
    if json:
        print_json(_plain(found))
        return
    at = found[found["trial"].isin(_POINTS)]
    lines = ["task_name", "run_id", *analysis.ALIKE]  # times of two devices have no mean
    wide = at.pivot_table("best_us", lines, "trial").reset_index()
    wide = wide.drop(columns=["task_key", "conditions"])
    wide.columns = [str(name) for name in wide.columns]
    wide["run_id"] = wide["run_id"].str.slice(0, 8)
    wide["device"] = [model_of(name) for name in wide["device"]]
    _show(wide, "best time so far, in us, after so many trials", ("device", "run_id"))


@app.command("failures")
def failures(
    records: Records = None,
    model: Model = None,
    device: Device = None,
    night: Night = None,
    run: Run = None,
    json: Json = False,
) -> None:
    """Print how candidates failed, and why."""
    from retune.records import analysis

    found = analysis.failures(_rows(records, model=model, device=device, night=night, run=run))
    if json:
        print_json(_plain(found))
        return
    found["share"] = [f"{100 * each:.1f} %" for each in found["share"]]
    _show(found, "failed candidates", ("device", "share", "strategy"))


@app.command("importance")
def importance(
    records: Records = None,
    model: Model = None,
    device: Device = None,
    night: Night = None,
    run: Run = None,
    json: Json = False,
) -> None:
    """Print which knob of a schedule explains how much of the spread of times."""
    from retune.records import analysis

    found = analysis.importance(_rows(records, model=model, device=device, night=night, run=run))
    if json:
        print_json(_plain(found))
        return
    found["explained"] = [f"{100 * each:.0f} %" for each in found["explained"]]
    _show(
        found.drop(columns=analysis.ALIKE), "knobs, by the spread that they explain", ("strategy",)
    )


@app.command("tuners")
def tuners(
    records: Records = None,
    model: Model = None,
    device: Device = None,
    night: Night = None,
    run: Run = None,
    json: Json = False,
) -> None:
    """Print what each tuner found for each task, and how soon."""
    from retune.records import analysis

    found = analysis.tuners(_rows(records, model=model, device=device, night=night, run=run))
    if json:
        print_json(_plain(found))
        return
    _show(found.drop(columns=analysis.ALIKE), "tuners", ("failed", "trials_to_near"))


@app.command("compare")
def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="Night, or run, that comes first.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Night, or run, to compare with it.")],
    records: Records = None,
    model: Model = None,
    device: Device = None,
    json: Json = False,
) -> None:
    """Print the best of each task in two nights or runs, beside each other.

    `ratio` is the time of B over that of A, with the drift of the machine taken out.
    """
    from retune.records import analysis

    before, after = (
        _of_night_or_run(records, name, model=model, device=device) for name in (first, second)
    )
    found = analysis.compare(before, after)
    if json:
        print_json(_plain(found))
        return
    strategies = ("strategy_before", "strategy_after")
    _show(found.drop(columns=analysis.ALIKE), f"{second} beside {first}", ("place", *strategies))
    print_line(f"{len(found.dropna(subset='ratio'))} of {len(found)} tasks are in both")


def _rows(records: Path | None, **asked: str | None) -> "Table":
    from retune.records import load

    if device := asked.get("device"):
        asked["device"] = fingerprint_of(device)
    return load(records, **asked)  # type: ignore[arg-type]


def _of_night_or_run(records: Path | None, name: str, **asked: str | None) -> "Table":
    """Raises: LookupFailed if it is neither."""
    try:
        return _rows(records, night=name, **asked)
    except InputError as error:
        try:
            return _rows(records, run=name, **asked)
        except InputError:
            raise error from None


def _plain(frame: "Table") -> list[dict[str, Any]]:
    """The rows as plain data; None where something is not known."""
    objects = frame.astype(object).where(frame.notna().to_numpy(bool), None)
    return [_without_arrow(row) for row in cast(list[dict[str, Any]], objects.to_dict("records"))]


def _without_arrow(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: v.item() if hasattr(v, "item") else v for name, v in row.items()}


def _show(frame: "Table", title: str, spare: tuple[str, ...]) -> None:
    rows = _plain(frame)
    for row in rows:
        if row.get("place"):
            row["place"] = str(row["place"])[:PLACE_CHARS]
    print_table(rows, title, spare=spare)

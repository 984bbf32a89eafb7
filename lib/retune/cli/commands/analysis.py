"""`retune records best`, `curve`, `compare`, ...: answers from the store."""

import inspect
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retune.cli.commands.records import (
    Device,
    Model,
    app,
    fingerprint_of,
    plain_rows,
    with_short_place,
)
from retune.cli.console import print_json, print_line, print_table
from retune.cli.options import Json, Records
from retune.core.errors import LookupFailed
from retune.core.target import model_of

if TYPE_CHECKING:
    from retune.records import Table

Night = Annotated[
    str | None, typer.Option(help="Night or campaign whose records count. Default: all.")
]
Run = Annotated[
    str | None, typer.Option(help="Run whose records count: its id or the beginning. Default: all.")
]

_NAMED = 6
"""Nights and runs that an error lists."""
_POINTS = [2**n for n in range(16)]
"""Trials that the table of curves shows."""


Show = Callable[["Table"], None]
"""Prints an answer as a table for people."""


def _answers(name: str) -> Callable[[Show], Show]:
    """Makes a command of how the answer of that name is shown; its docstring is the help."""

    def register(show: Show) -> Show:
        def command(
            records: Records = None,
            model: Model = None,
            device: Device = None,
            night: Night = None,
            run: Run = None,
            json: Json = False,
        ) -> None:
            from retune.records import analysis

            rows = _rows(records, model=model, device=device, night=night, run=run)
            found = getattr(analysis, name)(rows)
            if json:
                print_json(plain_rows(found))
            else:
                show(found)

        app.command(name, help=inspect.getdoc(show))(command)
        return show

    return register


@_answers("best")
def _show_best(found: "Table") -> None:
    """Print the fastest correct candidate of each task and condition.

    With its schedule's decisions. Times compare within a task and condition only: a kernel takes
    another time alone than in its network.
    """
    found["knobs"] = [
        " ".join(f"{name}={','.join(map(str, values))}" for name, values in knobs.items())
        for knobs in found["knobs"]
    ]
    found["device"] = [model_of(name) for name in found["device"]]
    alike = [n for n in ("constants", "layout_in", "layout_out") if len(set(found[n])) == 1]
    programs = ["task_key", "conditions", "cost", "record_id", "run_id", "night", *alike]
    optional = ("device", "tuner", "model", "knobs", "gflops", "failed", "trials", "constants")
    _show(found.drop(columns=programs), "best records", optional)


@_answers("curve")
def _show_curve(found: "Table") -> None:
    """Print the best time of each task so far, by its number of trials.

    After 1, 2, 4, 8 and so on, and after all. With --json every trial.
    """
    from retune.records import analysis

    at = found[found["trial"].isin(_POINTS)]
    lines = ["task_name", "run_id", *analysis.ALIKE]  # times of two devices have no mean
    wide = at.pivot_table("best_us", lines, "trial")
    wide["all"] = found.groupby(lines)["best_us"].last()
    wide = wide.reset_index()
    wide = wide.drop(columns=["task_key", "conditions"])
    wide.columns = [str(name) for name in wide.columns]
    wide["run_id"] = wide["run_id"].str.slice(0, 8)
    wide["device"] = [model_of(name) for name in wide["device"]]
    _show(wide, "best time so far, in us, after so many trials", ("device", "run_id"))


@_answers("failures")
def _show_failures(found: "Table") -> None:
    """Print how candidates failed, and why."""
    found["share"] = [f"{100 * each:.1f} %" for each in found["share"]]
    _show(found, "failed candidates", ("device", "share", "strategy"))


@_answers("importance")
def _show_importance(found: "Table") -> None:
    """Print which knob of a schedule explains how much of the spread of times."""
    from retune.records import analysis

    found["explained"] = [f"{100 * each:.0f} %" for each in found["explained"]]
    shown = found.drop(columns=analysis.ALIKE)
    title = "knobs, by the spread that they explain"
    if found.empty:
        title = "knobs with fewer values than there are trials of their strategy"
    _show(shown, title, ("strategy",))


@_answers("tuners")
def _show_tuners(found: "Table") -> None:
    """Print what each tuner found for each task, and how soon."""
    from retune.records import analysis

    title = "tuners (drift is taken out of ratios; near: within 5 % of the best)"
    _show(found.drop(columns=analysis.ALIKE), title, ("failed", "trials_to_near"))


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
        print_json(plain_rows(found))
        return
    strategies = ("strategy_before", "strategy_after")
    _show(found.drop(columns=analysis.ALIKE), f"{second} beside {first}", ("place", *strategies))
    both = len(found.dropna(subset="ratio"))
    print_line(f"{both} of {len(found)} tasks are in both; drift is taken out of the ratios")


def _rows(records: Path | None, **asked: str | None) -> "Table":
    from retune.records import load

    if device := asked.get("device"):
        asked["device"] = fingerprint_of(device)
    return load(records, **asked)  # type: ignore[arg-type]


def _of_night_or_run(records: Path | None, name: str, **asked: str | None) -> "Table":
    """Raises: LookupFailed if it is neither."""
    for kind in ("night", "run"):
        with suppress(LookupFailed):
            return _rows(records, **{kind: name}, **asked)
    every = _rows(records, **asked).sort_values("timestamp")
    named = [night for night in every["night"].tolist() if isinstance(night, str) and night]
    nights, runs = (
        list(dict.fromkeys(names))[-_NAMED:] for names in (named, every["run_id"].tolist())
    )
    raise LookupFailed(
        f"{name}: expected a night or a run with such records; the latest nights: "
        f"{', '.join(nights) or 'none'}; runs: {', '.join(run[:8] for run in runs) or 'none'}"
    )


def _show(frame: "Table", title: str, optional: tuple[str, ...]) -> None:
    print_table([with_short_place(row) for row in plain_rows(frame)], title, optional=optional)


# The help begins with what was measured, not with files that go elsewhere.
app.registered_commands.sort(key=lambda each: each.name in ("export", "distill", "import"))

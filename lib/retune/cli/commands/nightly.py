"""`retune nightly`: a fleet of networks, tuned night after night."""

import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from retune.cli.console import print_json, print_line, print_table, say
from retune.cli.interrupt import ctrl_c_ends_measuring
from retune.cli.options import Json
from retune.cli.progress import progress_on_stderr
from retune.core.errors import LookupFailed

if TYPE_CHECKING:
    from retune.nightly.config import NightlyConfig
    from retune.nightly.night import NightState

app = typer.Typer(
    help="Tune a fleet of networks, night after night.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Config = Annotated[
    Path, typer.Option(help="Configuration file; examples/nightly.toml shows every key.")
]
Campaign = Annotated[
    str, typer.Option(help="Campaign name, in place of the date; a known one is continued.")
]


@app.command("run")
def run(config: Config, campaign: Campaign = "", json: Json = False) -> None:
    """Run tonight's night now, or continue it.

    Exit code 1 if something of it failed.
    """
    settings = _checked(config)
    from retune.nightly.night import night_name
    from retune.prefect.launch import run_flow

    night_name(settings.hours, datetime.now(UTC), campaign)  # before a server is started for it
    with progress_on_stderr(), ctrl_c_ends_measuring():
        state = run_flow(lambda: _in_flow(config, campaign))
    failed = _show(settings, state, json=json)
    if failed:
        raise typer.Exit(1)


@app.command("serve")
def serve(config: Config) -> None:
    """Run nights when the cron expression says so.

    Until interrupted.
    """
    settings = _checked(config)
    from retune.prefect.launch import serve_flow

    say(f"retune: nights begin at {settings.schedule!r}, {settings.timezone}; Ctrl-C ends serving")
    serve_flow(
        _flow,
        name=f"nightly-{config.stem}",
        cron=settings.schedule,
        timezone=settings.timezone,
        parameters={"config": str(config.absolute())},
    )


@app.command("status")
def status(
    config: Config,
    night: Annotated[str, typer.Option(help="Name of the night. Default: the last one.")] = "",
    json: Json = False,
) -> None:
    """Print the result of a night, and list the nights."""
    from retune.nightly.night import read_nights

    settings = _checked(config)
    nights = read_nights(Path(settings.work))
    known = [state for state in nights if not night or state.name == night]
    if not known:
        if not nights:
            raise LookupFailed(
                f"{config}: no night was run yet; `retune nightly run --config {config}` runs one"
            )
        names = ", ".join(state.name for state in nights)
        raise LookupFailed(f"night {night}: no such night; there were: {names}")
    _show(settings, known[-1], json=json)
    if not json:
        print_line(f"nights    {', '.join(state.name for state in nights)}")


def _checked(config: Path) -> "NightlyConfig":
    from retune.nightly.config import load_config

    return load_config(config)


def _flow() -> Any:
    from flows.nightly import nightly

    return nightly


def _in_flow(config: Path, campaign: str) -> "NightState":
    return cast("NightState", _flow()(config=str(config), campaign=campaign))


def _show(settings: "NightlyConfig", state: "NightState", *, json: bool) -> int:
    """Prints the night, and gives how much of it failed."""
    from retune.nightly.members import earlier_nights, page_of, processes_of_this_machine
    from retune.nightly.night import attempt_of
    from retune.nightly.summary import night_data, night_lines, night_rows, summarize_night

    summary = summarize_night(state, earlier_nights(settings, state.name))
    if json:
        print_json(night_data(summary))
        return summary.failed
    last = attempt_of(state, processes_of_this_machine())
    print_table(night_rows(summary), f"night {state.name}, {last.end if last else 'not begun'}")
    for line in night_lines(summary):
        print_line(line)
    if (page := page_of(settings, state.name)).is_file():  # a night that was ended has none yet
        print_line(f"page      {page}")
    if last and last.end in ("died", "stopped"):
        again = ["retune", "nightly", "run", "--config", settings.file]
        print_line(f"goes on   {shlex.join([*again, '--campaign', state.name])}")
    return summary.failed

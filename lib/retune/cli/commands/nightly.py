"""`retune nightly`: a fleet of networks, tuned night after night."""

import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from retune.cli.console import print_json, print_line, print_table, say
from retune.cli.interrupt import ctrl_c_ends_measuring
from retune.cli.options import MOST_DAYS, NIGHTLY_FILE, Json, Quiet, Verbose
from retune.cli.progress import progress_on_stderr
from retune.core.errors import InputError, LookupFailed

if TYPE_CHECKING:
    from retune.nightly.config import NightlyConfig
    from retune.nightly.night import NightState
    from retune.nightly.pruning import Pruning

app = typer.Typer(
    help="Tune a fleet of networks, night after night.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Config = Annotated[
    Path, typer.Option(help="Configuration file; examples/nightly.toml shows every key.")
]
Campaign = Annotated[
    str, typer.Option(help="Campaign name, instead of the date; a known one is continued.")
]


@app.command("run")
def run(
    config: Config = NIGHTLY_FILE,
    campaign: Campaign = "",
    now: Annotated[
        bool, typer.Option("--now", help="Run the night outside of its window, too.")
    ] = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Run tonight's night, or continue it.

    Exit code 1 if a part of it failed, or nothing was tuned.
    """
    settings = _checked(config)
    from retune.nightly.night import night_name
    from retune.nightly.run import beginning
    from retune.prefect.launch import run_flow

    # Before a server is started for it:
    begins = beginning(settings, datetime.now(UTC), outside=now)
    night_name(settings.hours, begins, campaign)
    with progress_on_stderr(verbose=verbose, quiet=quiet), ctrl_c_ends_measuring():
        state = run_flow(lambda: _in_flow(config, campaign, now=now))
    if not _show(settings, state, json=json):
        raise typer.Exit(1)


@app.command("plan")
def plan(config: Config = NIGHTLY_FILE, json: Json = False) -> None:
    """Print the timetable of the coming night, and run nothing."""
    from retune.nightly.members import planned_night
    from retune.report.page import time_text

    settings = _checked(config)
    planned = planned_night(settings, datetime.now(UTC))
    if json:
        print_json(planned)
        return
    zone = settings.zone
    opens = planned.opens.astimezone(zone)
    until = f" to {planned.closes.astimezone(zone):%H:%M}" if planned.closes else ""
    rows = [
        {
            "device": turn.device,
            "network": turn.model,
            "minutes": turn.minutes,
            "begins": f"{turn.begin.astimezone(zone):%H:%M}",
            "ends": f"{turn.end.astimezone(zone):%H:%M}",
            "saves a day": time_text(1e6 * turn.saving_s),
        }
        for turn in planned.turns
    ]
    title = f"night {planned.night}, {opens:%Y-%m-%d %H:%M}{until} {settings.timezone}"
    print_table(rows, title)
    for model, device in planned.done:
        print_line(f"{model}/{device}: done in this night")
    for model, device, why in planned.broken:
        print_line(f"{model}/{device}: cannot be tuned: {why}")


@app.command("serve")
def serve(config: Config = NIGHTLY_FILE) -> None:
    """Run a night each time that the file schedules one.

    Until interrupted.
    """
    settings = _checked(config)
    from retune.nightly.config import member_faults
    from retune.prefect.launch import serve_flow

    for (model, device), why in member_faults(settings).items():
        say(f"retune: {model} on {device} cannot be tuned as it is now: {why}")
    say(f"retune: nights begin at {settings.schedule!r}, {settings.timezone}; Ctrl-C ends serving")
    serve_flow(
        _flow,
        name=settings.name,
        cron=settings.schedule,
        timezone=settings.timezone,
        parameters={"config": str(config.absolute())},
    )


@app.command("deploy")
def deploy(
    config: Config = NIGHTLY_FILE,
    pool: Annotated[str, typer.Option(help="Work pool; it is made if there is none.")] = "retune",
    queue: Annotated[
        str, typer.Option(help="Work queue of the host that owns the devices.")
    ] = "default",
    results: Annotated[
        str,
        typer.Option(
            help="Storage block for Prefect's copies of results, such as "
            "local-file-system/retune-results. Default: a folder of the worker's host."
        ),
    ] = "",
) -> None:
    """Register the fleet's nights on a Prefect server, by the schedule of the file.

    The same command again changes what differs.
    """
    settings = _checked(config)
    from retune.prefect.server import configured_server

    with configured_server() as url:
        from retune.prefect.deploying import WorkerPlacement, deploy_fleet

        name = deploy_fleet(
            _flow(),
            name=settings.name,
            config=str(config.absolute()),
            cron=settings.schedule,
            timezone=settings.timezone,
            workers=WorkerPlacement(pool=pool, queue=queue, results=results),
        )
    print_line(f"deployed  {name} on {url}: {settings.schedule!r}, {settings.timezone}")
    print_line(f"worker    prefect worker start --pool {pool} --work-queue {queue}")


@app.command("prune")
def prune(
    config: Config = NIGHTLY_FILE,
    keep: Annotated[
        int | None, typer.Option(min=1, help="Nights that are kept: the last ones.")
    ] = None,
    days: Annotated[
        int | None, typer.Option(min=0, max=MOST_DAYS, help="Nights of the last DAYS are kept.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be removed, and remove nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Remove the leftovers of old nights.

    Folders, pages, caches, and their runs on the Prefect server.

    Records, cost models and published versions stay.
    """
    from retune.nightly.members import processes_of_this_machine
    from retune.nightly.pruning import plan_pruning
    from retune.nightly.pruning import prune as remove
    from retune.prefect.server import known_api

    settings = _checked(config)
    machine, moment = processes_of_this_machine(), datetime.now(UTC)
    files = plan_pruning(settings, machine, moment, keep=keep, days=days)
    found = _counted(files)
    with known_api() as url:
        if url:
            from retune.prefect.pruning import plan_server_pruning, prune_server

            there = plan_server_pruning(settings.name, files.nights)
            found |= {
                "flow_runs": len(there.flow_runs),
                "task_runs": there.task_runs,
                "artifacts": len(there.artifacts),
                "logs": there.logs,
            }
            if not dry_run:
                prune_server(there)
    if not dry_run:
        remove(files)
    if json:
        print_json({"removed": not dry_run} | found)
    else:
        _show_pruned(found, dry_run=dry_run)


def _counted(files: "Pruning") -> dict[str, Any]:
    return {
        "nights": files.nights,
        "kept": files.kept,
        "folders": len(files.folders) + len(files.leftovers.runs),
        "pages": len(files.pages),
        "outputs": len(files.leftovers.outputs),
        "bytes": files.bytes,
    }


def _show_pruned(found: dict[str, Any], *, dry_run: bool) -> None:
    verb = "would be removed" if dry_run else "removed"
    print_line(f"{verb}: {len(found['nights'])} nights, {len(found['kept'])} are kept")
    names = [name for name in found if name not in ("nights", "kept", "bytes")]
    print_table([{"what": name.replace("_", " "), "number": found[name]} for name in names])
    print_line(f"disk      {found['bytes'] / 1e6:,.1f} MB")


@app.command("compare")
def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="Name of a night.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Name of a later night.")],
    config: Config = NIGHTLY_FILE,
    json: Json = False,
) -> None:
    """Print two nights side by side, with a verdict on each network's change.

    Absolute times of the published bundles, and the first night, driver or commit from which on a
    network is slower.
    """
    from retune.nightly.history import compared_rows, side_by_side
    from retune.records.nights import read_nights

    settings = _checked(config)
    pairs = side_by_side(read_nights(settings.records, settings.name), first, second)
    if json:
        print_json(pairs)
        return
    print_table(compared_rows(pairs), f"night {second} beside night {first}")
    for pair in pairs:
        name = "/".join(pair.second.key)
        print_line(f"{name}: {pair.second.verdict or 'no verdict'}: {pair.second.why}")
        if since := pair.slower_since:
            print_line(f"{name}: slower since night {since.night}: {since.text}")


@app.command("status")
def status(
    config: Config = NIGHTLY_FILE,
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
                f"{config}: no night was run yet in the work folder {settings.work}; `retune "
                f"nightly run --config {config}` runs one, and the key `work` names another folder"
            )
        names = ", ".join(state.name for state in nights)
        raise LookupFailed(f"night {night}: no such night; there were: {names}")
    _show(settings, known[-1], json=json)
    if not json:
        print_line(f"nights    {', '.join(state.name for state in nights)}")


def _checked(config: Path) -> "NightlyConfig":
    from retune.nightly.config import load_config

    if not config.exists():
        raise InputError(
            f"{config}: expected a nightly file, got no file; "
            f"`retune init MODEL --config {config}` writes one"
        )
    return load_config(config)


def _flow() -> Any:
    from flows.nightly import nightly

    return nightly


def _in_flow(config: Path, campaign: str, *, now: bool) -> "NightState":
    from retune.nightly.summary import NightFailed

    try:
        return cast("NightState", _flow()(config=str(config), campaign=campaign, now=now))
    except NightFailed as failed:
        return failed.state


def _show(settings: "NightlyConfig", state: "NightState", *, json: bool) -> bool:
    """Prints the night. True if it has no fault."""
    from retune.nightly.members import earlier_nights, page_of, processes_of_this_machine
    from retune.nightly.morning import index_of, rows_of
    from retune.nightly.night import attempt_of
    from retune.nightly.summary import night_data, night_lines, night_rows, summarize_night

    judged = rows_of(settings, state.name)
    summary = summarize_night(state, earlier_nights(settings, state.name), judged)
    if json:
        print_json(night_data(summary))
        return not summary.fault
    last = attempt_of(state, processes_of_this_machine())
    print_table(night_rows(summary), f"night {state.name}, {last.end if last else 'not begun'}")
    for line in night_lines(summary):
        print_line(line)
    if (page := page_of(settings, state.name)).is_file():  # a night that was ended has none yet
        print_line(f"page      {page}")
    if (index := index_of(settings)).is_file():
        print_line(f"all       {index}")
    waiting = any(member.status in ("planned", "running", "skipped") for member in state.members)
    if last and last.end != "running" and (waiting or last.end == "died"):
        again = ["retune", "nightly", "run", "--config", settings.file]
        print_line(f"goes on   {shlex.join([*again, '--campaign', state.name])}")
    return not summary.fault

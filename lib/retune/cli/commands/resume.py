"""`retune resume`: the runs there are, and going on with one of them."""

import contextlib
from collections.abc import Generator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retune.cli.commands.tune import NoPrefect, carry_out
from retune.cli.console import print_json, print_table, say
from retune.cli.options import Json, Quiet, Verbose
from retune.cli.progress import progress_on_stderr
from retune.core.config import cache_root
from retune.core.errors import InputError
from retune.core.processes import local_time

if TYPE_CHECKING:
    from retune.pipeline.running import RunRecord

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN", help="Run: its name, the beginning of it, or `last`. Default: list the runs."
    ),
]


def resume(
    run: Name = None,
    no_prefect: NoPrefect = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Continue a run from the stage that failed, or list the runs."""
    from retune.pipeline.running import find_run, runs

    work = cache_root()
    if run is None:
        _print_runs(runs(work), json)
        return
    record = find_run(work, run)
    with _started_from(record), progress_on_stderr(verbose=verbose, quiet=quiet):
        carry_out(record.request, no_prefect=no_prefect, json=json)


def _print_runs(records: "tuple[RunRecord, ...]", json: bool) -> None:
    if json:
        print_json([{**asdict(record), "state": record.standing} for record in records])
        return
    rows = [
        {
            "run": record.name,
            "model": record.request.model,
            "device": record.request.device,
            "state": record.standing,
            "stage": record.stage or "-",
            "since": local_time(record.changed),
            "why": record.error or "-",
        }
        for record in records
    ]
    print_table(rows, "runs, the latest at the end", optional=("since", "device", "stage"))


@contextlib.contextmanager
def _started_from(record: "RunRecord") -> Generator[None]:
    """The context is in the folder that the run was started in: its paths start from there."""
    folder = Path(record.folder)
    if not folder.is_dir():
        raise InputError(
            f"run {record.name} was started in {folder}, which is not a folder any more; "
            "start it anew with `retune tune`"
        )
    if folder.resolve() != Path.cwd().resolve():
        say(f"retune: run {record.name} goes on in {folder}")
    with contextlib.chdir(folder):
        yield

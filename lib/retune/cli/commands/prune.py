"""`retune prune`: what runs leave behind and nobody has used for some time."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from retune.cli.console import print_json, print_line, print_table
from retune.cli.options import MOST_DAYS, Json

Days = Annotated[
    int, typer.Option(min=0, max=MOST_DAYS, help="What was used within the last DAYS is kept.")
]
Cache = Annotated[
    Path | None,
    typer.Option(help="Work folder of stages and runs. Default: as RETUNE_CACHE says."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print what would be removed, and remove nothing.")
]


def prune(
    days: Days = 30, cache: Cache = None, dry_run: DryRun = False, json: Json = False
) -> None:
    """Remove caches that nobody has used for some time.

    Outputs of stages, records of ended runs and compiled programs. Measurements, cost models and
    published versions stay, and what is removed is made again when it is needed. Nights have a
    retention of their own: see `retune nightly prune`.
    """
    from retune.core.config import cache_root, programs_root
    from retune.pipeline.pruning import plan_pruning
    from retune.pipeline.pruning import prune as remove

    since = datetime.now(UTC) - timedelta(days=days)
    found = plan_pruning(cache or cache_root(), programs_root(), since)
    counts = {name: len(getattr(found, name)) for name in ("outputs", "runs", "programs")}
    size = found.bytes
    if not dry_run:
        remove(found)
    if json:
        print_json({"removed": not dry_run, **counts, "bytes": size})
        return
    print_table([{"what": name, "number": number} for name, number in counts.items()])
    print_line(f"{'would be ' if dry_run else ''}removed: {size / 1e6:,.1f} MB")

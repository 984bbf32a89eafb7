"""`retune build`: the bundle that a lock file says, without a search."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from retune.cli.console import print_json, say
from retune.cli.options import Json
from retune.cli.request import takes_request
from retune.core.names import check_model_file
from retune.pipeline.request import TuneRequest


@takes_request("model", "out", "records")
def build(
    request: TuneRequest,
    locked: Annotated[
        Path, typer.Option(help="Lock file of the bundle: `retune tune --out DIR` writes one.")
    ],
    json: Json = False,
) -> None:
    """Build a bundle from its lock file, byte for byte.

    Nothing is searched or timed. The device, precision and shapes are those of the lock.
    """
    check_model_file(request.model)
    from retune.pipeline.lock import build_locked, read_lock

    version = build_locked(request, read_lock(locked))
    if json:
        print_json({**asdict(version), "current": True})
    else:
        say(f"{request.module}: version {version.number}, with the bytes that {locked} says")

"""`retune versions` and `retune rollback`: what was published in a folder, and back to it."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retune.cli.console import print_json, print_line, print_table
from retune.cli.options import Json
from retune.core.errors import InputError

if TYPE_CHECKING:
    from retune.bundle.versions import Version

Out = Annotated[
    Path, typer.Argument(metavar="OUT", help="Output folder, as given to `retune tune --out`.")
]


def versions(out: Out, json: Json = False) -> None:
    """List the versions of a bundle that are kept."""
    from retune.bundle.versions import current

    present = current(out)
    found = [(version, version == present) for version in _kept(out)]
    if json:
        print_json([{**asdict(version), "current": now} for version, now in found])
    else:
        print_table([_row(version, now) for version, now in found], f"versions in {out}")


def rollback(out: Out, json: Json = False) -> None:
    """Publish the version before the current one again.

    Bundle and report; twice goes two back.
    """
    from retune.bundle.versions import current
    from retune.bundle.versions import rollback as go_back

    _kept(out)
    before = current(out)
    version = go_back(out)
    if json:
        print_json({**asdict(version), "current": True})
    else:
        was = f", version {before.number} no longer is" if before else ""
        print_line(f"{out}: version {version.number} of {version.created} is published{was}")


def _kept(out: Path) -> "list[Version]":
    """The versions. Raises: InputError if there are none, before anything is made there."""
    from retune.bundle.versions import versions as kept

    found = kept(out)
    if not found:
        raise InputError(
            f"{out}: expected a folder with versions of a bundle, got none; "
            "`retune tune MODEL --out OUT` publishes one in OUT"
        )
    return found


def _row(version: "Version", now: bool) -> dict[str, Any]:
    gain = version.gain
    return {
        "version": version.number,
        "created": version.created,
        "published": "yes" if now else "",
        "latency": f"{gain.ratio:.3f}x of version {gain.over}" if gain else None,
        "deviation": f"{version.deviation:.1e}" if version.deviation is not None else None,
        "verdict": version.verdict,
        "search": {True: "complete", False: "not complete", None: None}[version.complete],
    }

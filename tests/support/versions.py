"""What tests of versions share with others."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from retune.bundle.format import program_key, write_bundle
from retune.bundle.plan import NetworkPlan
from retune.bundle.versions import (
    MODULE,
    REPORT,
    Version,
    add_version,
    promote,
)
from retune.core import replacing
from tests.support.bundle_fixtures import make_plan

PLAN = make_plan()


NAMED = "named"
"""Note of the name, which stays when a bundle is published."""


def plan_named(name: str) -> NetworkPlan:
    """A plan of another program for each name: its weights differ."""
    seed = int.from_bytes(name.encode(), "big") % 1000
    weights = {"bias": np.full(32, seed, np.float32)}
    return replace(PLAN, name=name, notes={**PLAN.notes, NAMED: name}, weights=weights)


@cache
def parts_of(name: str) -> dict[str, bytes]:
    """The files of that plan's bundle: written once, as a publication of each kill has to be."""
    with TemporaryDirectory() as folder:
        written = write_bundle(plan_named(name), Path(folder) / MODULE)
        return {part.name: part.read_bytes() for part in written.iterdir()}


def write(name: str, folder: Path) -> None:
    folder.mkdir(parents=True)
    for part, content in parts_of(name).items():
        (folder / part).write_bytes(content)


def made(name: str) -> Callable[[Path], Version]:
    def make(folder: Path) -> Version:
        write(name, folder / MODULE)
        (folder / REPORT).write_text(f"report of {name}")
        return Version(
            model_key=PLAN.model_key,
            target=PLAN.device.fingerprint,
            program=program_key(folder / MODULE),
            verdict="as asked for",
        )

    return make


def publish(out: Path, name: str) -> int:
    number = add_version(out, made(name)).number
    assert promote(out, number)
    return number


def old_publication(out: Path, name: str) -> None:
    """What a retune without versions left."""
    with replacing.whole_folder(out / MODULE) as fresh:
        fresh.rmdir()
        write(name, fresh)
    with replacing.replacing(out / REPORT) as stream:
        stream.write(f"report of {name}".encode())

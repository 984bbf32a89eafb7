"""Every environment knob of retune, read here and nowhere else."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Knob:
    """One environment variable, its default and its meaning."""

    name: str
    default: str
    doc: str


KNOBS: tuple[Knob, ...] = (
    Knob("RETUNE_RECORDS", "artifacts/records", "default folder of the record store"),
    Knob(
        "RETUNE_TEAM_RECORDS",
        "",
        "records of a team: a file that `retune records distill` wrote, or a folder of them",
    ),
    Knob(
        "RETUNE_SHIPPED_RECORDS",
        "",
        "a file or folder of records instead of those that come with the package; `none`: without "
        "any",
    ),
    Knob("RETUNE_CACHE", "artifacts/cache", "stage outputs, content-addressed"),
    Knob(
        "RETUNE_JOURNAL",
        "artifacts/journal",
        "candidates in flight, for after a crash",
    ),
    Knob("RETUNE_VERIFY", "0", "1: check the IR after every lowering pass"),
    Knob(
        "RETUNE_LOCKS",
        "",
        "folder of the machine's lock files, and of what was found of its devices (default: the "
        "temporary folder, and one of the user's own in it)",
    ),
    Knob(
        "RETUNE_PROGRAMS",
        "",
        "folder of compiled programs (default: retune/programs in the user's cache folder; "
        "`off`: none is kept)",
    ),
    Knob("RETUNE_SCHEDULER", "", "address of the farm's scheduler, such as tls://farm:8786"),
    Knob("RETUNE_CERTS", "", "folder with ca.pem, cert.pem and key.pem, for a farm"),
)


def knob(name: str) -> str:
    """The knob's value from the environment, or its default. Raises: KeyError if unknown."""
    for entry in KNOBS:
        if entry.name == name:
            return os.environ.get(name, entry.default)
    raise KeyError(name)


def records_root(base: Path = Path()) -> Path:
    """Folder of the record store; the default one lies below `base`."""
    return _folder("RETUNE_RECORDS", base)


def cache_root(base: Path = Path()) -> Path:
    """Folder of content-addressed stage outputs; the default one lies below `base`."""
    return _folder("RETUNE_CACHE", base)


def _folder(name: str, base: Path) -> Path:
    """What the environment names is relative to the process's folder."""
    return Path(knob(name)) if name in os.environ else base / knob(name)


def programs_root() -> Path | None:
    """Folder of compiled programs; None if none are kept."""
    named = knob("RETUNE_PROGRAMS")
    if named == "off":
        return None
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return Path(named) if named else caches / "retune" / "programs"

"""Compiled programs, which come with a bundle or from a cache, instead of a compiler.

Read `Binaries`. A binary is found by a key of its text, the build options, the driver and the
device, so that another driver never gets it. It is a shortcut and nothing else: one that is damaged
or that the driver refuses gives way to the source, and the report says why. Drivers compile some
kernels at their first launch (PoCL, Mali), so what is kept is asked for after the launches.
"""

import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from pathlib import Path

from retune.core.errors import InputError
from retune.core.keys import content_key
from retune.core.replacing import replacing

_LOG = logging.getLogger(__name__)
_DIGEST_BYTES = 32
MOST_BYTES = 256 << 20
"""Of a cache: above it, the programs that were not used for the longest time are removed."""
_SUFFIX = ".program"


def key_of(text: str, options: Sequence[str], *device: str) -> str:
    """Equal where a compiled program of this text may be used; `device` names driver and device."""
    return content_key(text, list(options), list(device))


@dataclass(frozen=True, slots=True)
class BinaryReport:
    """Where the programs of a module came from."""

    given: int
    """Programs that came compiled with the bundle."""
    cached: int
    """Programs that came compiled from the cache."""
    compiled: int
    """Programs that were compiled from source."""
    reasons: tuple[str, ...]
    """Why compiled programs were not used, in sentences."""


@dataclass(slots=True, kw_only=True)
class Binaries:
    """Compiled programs by key, and what became of each one that was asked for."""

    given: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """With the bundle."""
    folder: Path | None = None
    """The cache; None: there is none."""
    collects: bool = False
    """Whether `kept` is filled."""
    kept: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """All that were used, with the kernels that were launched."""
    _used: dict[str, str] = field(default_factory=dict[str, str])
    _reasons: list[str] = field(default_factory=list[str])

    def candidates(self, key: str) -> list[tuple[str, bytes]]:
        """The compiled programs of that key, the bundle's first, each with where it is from."""
        found = [("bundle", self.given[key])] if key in self.given else []
        cached = self._read(key)
        return found if cached is None else [*found, ("cache", cached)]

    def use(self, key: str, origin: str) -> None:
        """The program of that key is from `bundle`, `cache` or `source`."""
        self._used[key] = origin
        if origin == "source" and self.given:
            self._note("the bundle has no compiled program for this device and driver")

    def refuse(self, origin: str, reason: str) -> None:
        """The driver did not take a program from there."""
        self._note(f"the driver refused the compiled program of the {origin}: {reason}")

    def wants(self, key: str) -> bool:
        """Whether `keep` has a use for the program: some drivers compile it again to hand it out.

        The cache takes what was compiled here; another bundle would run what comes from there.
        """
        return self.collects or (self.folder is not None and self._is_new(key))

    def keep(self, key: str, binary: bytes) -> None:
        """The program is kept, and in the cache if that wants it. One that cannot be written is
        left as it is."""
        if self.collects:
            self.kept[key] = binary
        if self.folder is None or not self._is_new(key):
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._is_own(self.folder):
                return
            with replacing(self.folder / f"{key}{_SUFFIX}") as stream:
                stream.write(_digest(binary) + binary)
            trim(self.folder, MOST_BYTES)
        except (OSError, InputError) as error:
            self._note(f"the cache {self.folder} cannot be written: {error}")

    def report(self) -> BinaryReport:
        """What was used so far."""
        count = list(self._used.values()).count
        reasons = tuple(dict.fromkeys(self._reasons))
        return BinaryReport(count("bundle"), count("cache"), count("source"), reasons)

    def _is_new(self, key: str) -> bool:
        return self._used.get(key, "source") == "source"

    def _is_own(self, folder: Path) -> bool:
        """Whether the cache is the user's alone: what lies in it is run."""
        try:
            found = folder.stat()
        except OSError:
            return False
        own = found.st_uid == os.getuid() and not found.st_mode & 0o022
        if not own:
            self._note(f"{folder}: expected a folder that only you can write to; it is not used")
        return own

    def _read(self, key: str) -> bytes | None:
        if self.folder is None or not self._is_own(self.folder):
            return None
        path = self.folder / f"{key}{_SUFFIX}"
        try:
            content = path.read_bytes()
            os.utime(path)
        except OSError:
            return None
        binary = content[_DIGEST_BYTES:]
        if content[:_DIGEST_BYTES] != _digest(binary):
            self._note(f"{path}: expected a compiled program with its hash; it is made again")
            return None
        return binary

    def _note(self, reason: str) -> None:
        _LOG.debug("%s", reason)
        self._reasons.append(reason)


def programs_unused_since(folder: Path, moment: datetime) -> tuple[Path, ...]:
    """The programs of the cache in that folder that were last made or loaded before that moment."""
    found: list[Path] = []
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < moment.timestamp():
                found.append(path)
    return tuple(found)


def trim(folder: Path, most_bytes: int) -> int:
    """Removes the programs that were not used for the longest time, until the others fit; bytes."""
    held: list[tuple[float, int, Path]] = []
    with contextlib.suppress(FileNotFoundError):
        for path in folder.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                held.append((stat.st_mtime, stat.st_size, path))
    total, removed = sum(size for _, size, _ in held), 0
    for _, size, path in sorted(held):
        if total - removed <= most_bytes:
            break
        path.unlink(missing_ok=True)
        removed += size
    return removed


def _digest(binary: bytes) -> bytes:
    return blake2b(binary, digest_size=_DIGEST_BYTES).digest()

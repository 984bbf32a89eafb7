"""Certificates that are good no longer: a list beside a member's own, by their serial numbers.

`retune farm revoke` writes it. A process that has it in its certificate's folder asks it before a
message is taken or sent, and sees a new list at once: the scheduler above all, to whom everybody
talks. Read `Revoked`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from retune.core.errors import InputError

REVOKED = "revoked.json"
"""The list: serial number, as TLS shows it, to the name that the certificate was made for."""
_Seen = tuple[int, int, int]


class Revoked:
    """The list in a folder; none is an empty one, and so is that of no folder."""

    def __init__(self, folder: Path | None) -> None:
        """Raises: InputError if the list cannot be read."""
        self._path = folder and folder / REVOKED
        self._seen: _Seen | None = None
        self._names: Mapping[str, str] = {}
        self._told: set[str] = set()
        self._read()

    def why(self, certificate: Mapping[str, Any]) -> str:
        """Why its owner is not to be talked with, in a few words; empty if nothing speaks against.

        While the list cannot be read nobody is let in: it may say so of anybody.
        """
        try:
            self._read()
        except InputError as error:
            return f"nobody can be let in: {error}"
        name = self._names.get(serial_of(certificate))
        return "" if name is None else f"the certificate of {name[:80]!r} was revoked"

    def is_news(self, why: str) -> bool:
        """Whether nobody asked so of these words before."""
        news = why not in self._told
        self._told.add(why)
        return news

    def _read(self) -> None:
        """The names are those of the list as it is now."""
        if self._path is None:
            return
        try:
            found = self._path.stat()
        except FileNotFoundError:
            self._seen, self._names = None, {}
            return
        seen = found.st_mtime_ns, found.st_size, found.st_ino
        if seen != self._seen:
            self._names = read_revoked(self._path)
            self._seen = seen


def serial_of(certificate: Mapping[str, Any]) -> str:
    """The serial number of a certificate as `getpeercert` shows it, as the list has it."""
    return str(certificate.get("serialNumber", "")).lstrip("0").upper()


def read_revoked(path: Path) -> dict[str, str]:
    """Names of revoked certificates by serial number. Raises: InputError if it is not a list."""
    try:
        found: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: expected a list of revoked certificates; {error}") from None
    entries = cast("dict[object, object]", found) if isinstance(found, dict) else {"": 0}
    if not all(isinstance(name, str) for name in entries.values()):
        raise InputError(
            f"{path}: expected names by serial numbers, got something else; `retune farm revoke` "
            "writes it"
        )
    return {str(serial): str(name) for serial, name in entries.items()}

"""Origins of rows: the expression of each task, and the device of each measurement.

A row names them by `task_key` and `spec`; each is a file of its own beside the partitions, written
once however many rows name it. With them, the trace and the decisions of a row, its features can be
computed again (see `search.model.replayed`).
"""

from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Literal

from retune.core.errors import RecordError
from retune.core.keys import content_key
from retune.core.replacing import replacing
from retune.core.schema import MOST_BYTES, from_json, to_json
from retune.core.target import DeviceSpec

FOLDER = "origins"
Kind = Literal["expression", "device"]


_LATER = {"datapath_bits": 0}
"""Fields that specs in files have since a later version, and what they say where they are unknown.
Rows and files of before name their devices without them."""


def spec_key(spec: DeviceSpec) -> str:
    """The device's key in rows: equal for equal specs, whichever version wrote them."""
    facts = asdict(spec.lasting)
    unknown = {name for name, value in _LATER.items() if facts[name] == value}
    return content_key({name: value for name, value in facts.items() if name not in unknown})


def keep_spec(root: Path, spec: DeviceSpec) -> str:
    """The store at `root` has the device; its key."""
    key = spec_key(spec)
    keep(root, "device", key, to_json(asdict(spec.lasting)))
    return key


def keep(root: Path, kind: Kind, key: str, text: str) -> None:
    """The store at `root` has that text under the key, durably; it is written once."""
    path = _path(root, kind, key)
    if not path.exists():
        with replacing(path) as stream:
            stream.write(text.encode())


def read(root: Path, kind: Kind, key: str) -> bytes | None:
    """The text of the key; None if the store does not have it. Raises: RecordError."""
    path = _path(root, kind, key)
    try:
        if path.stat().st_size > MOST_BYTES:
            raise RecordError(f"{path}: expected at most {MOST_BYTES} bytes; delete the file")
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RecordError(f"{path}: expected a readable file, got {error.strerror}") from error


@cache
def read_spec(root: Path, key: str) -> DeviceSpec | None:
    """The device of that key; None if the store does not have it. Raises: RecordError."""
    text = read(root, "device", key)
    return (
        None if text is None else from_json(DeviceSpec, text, where=str(_path(root, "device", key)))
    )


def _path(root: Path, kind: Kind, key: str) -> Path:
    """Keys are digits; anything else names no file outside the folder."""
    name = "".join(letter for letter in key if letter.isalnum())[:64] or "none"
    return root / FOLDER / f"{kind}-{name}.json"

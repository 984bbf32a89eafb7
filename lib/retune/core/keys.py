"""Content keys: the same value gives the same key in every process and on every machine.

`content_key` hashes canonical bytes, never `hash()`, `id()`, or pickles. CODE_VERSION belongs in
the key of every cached stage whose meaning lives in this package.
"""

import dataclasses
import enum
import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

CODE_VERSION = "3"
"""Bumped when a stage's output changes for the same input."""

_DIGEST_BYTES = 16
_SHOWN_DIGITS = 8
"""Of ten thousand tasks, two have the same ones with a probability of one in a hundred."""


def content_key(*values: object) -> str:
    """A 32-digit hexadecimal key of the values' contents.

    Accepts None, bool, int, float, str, bytes, enums, paths, tuples, lists, sets, mappings (order
    does not matter), numpy arrays and dataclasses of these.

    Raises: TypeError for any other type, since its identity would not be stable.
    """
    pieces: list[bytes | memoryview] = []
    for value in values:
        _add(pieces, value)
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def short_key(key: str) -> str:
    """The digits of a content key that names show: tasks of one store differ in them."""
    return key[:_SHOWN_DIGITS]


def file_key(path: Path) -> str:
    """The content key of a file's bytes, read in blocks."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@functools.lru_cache(maxsize=1 << 14)
def _text_key(text: str) -> str:
    return content_key(text)


def _add(pieces: list[bytes | memoryview], value: object) -> None:
    """Canonical bytes of the value, in pieces; most values are texts and numbers."""
    match value:
        case None | bool() | int() | float() | str() if not isinstance(value, enum.Enum):
            text = repr(value).encode()
            kind = str if isinstance(value, str) else type(value)  # an element type is its name
            pieces += (b"%s%d:" % (kind.__name__[0].encode(), len(text)), text)
        case bytes():
            pieces += (b"y%d:" % len(value), value)
        case enum.Enum():
            pieces.append(b"e")
            _add(pieces, value.name)
        case Path():
            pieces.append(b"p")
            _add(pieces, value.as_posix())
        case np.ndarray():
            pieces.append(b"a")
            _add(pieces, (str(value.dtype), value.shape))
            pieces.append(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
        case np.generic():
            _add(pieces, value.item())
        case tuple() | list():
            pieces.append(b"(%d" % len(value))  # pyright: ignore[reportUnknownArgumentType]
            for item in value:  # pyright: ignore[reportUnknownVariableType]
                _add(pieces, item)  # pyright: ignore[reportUnknownArgumentType]
        case set() | frozenset():
            pieces.append(b"{")
            _add(pieces, sorted(content_key(item) for item in value))  # pyright: ignore
        case Mapping():
            pieces.append(b"m")
            items = [(_key_of(k), k, v) for k, v in value.items()]  # pyright: ignore
            for _, key, item in sorted(items, key=lambda entry: entry[0]):
                _add(pieces, (key, item))
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            pieces.append(b"d")
            _add(pieces, type(value).__name__)
            for field in dataclasses.fields(value):
                if field.compare:
                    _add(pieces, getattr(value, field.name))
        case _:
            raise TypeError(f"content_key: {type(value).__name__} has no stable content")


def _key_of(value: object) -> str:
    return _text_key(value) if type(value) is str else content_key(value)

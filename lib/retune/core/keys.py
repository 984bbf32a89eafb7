"""Content keys: the same value gives the same key in every process and on every machine.

`content_key` hashes canonical bytes, never `hash()`, `id()`, or pickles. CODE_VERSION belongs in
the key of every cached stage whose meaning lives in this package.
"""

import dataclasses
import enum
import hashlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
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
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for value in values:
        for piece in _canonical(value):
            digest.update(piece)
    return digest.hexdigest()


@lru_cache(maxsize=1 << 12)
def _text_key(text: str) -> str:
    """The content key of a text: mappings are sorted by those of their keys."""
    return hashlib.blake2b(_plain(text), digest_size=_DIGEST_BYTES).hexdigest()


def _plain(value: object) -> bytes:
    """The canonical bytes of None, or of a bool, a number or a text."""
    text = repr(value).encode()
    kind = str if isinstance(value, str) else type(value)  # an element type is its name
    return b"%s%d:%s" % (kind.__name__[0].encode(), len(text), text)


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


def _canonical(value: object) -> Iterator[bytes | memoryview]:
    match value:
        case None | bool() | int() | float() | str() if not isinstance(value, enum.Enum):
            yield _plain(value)
        case bytes():
            yield b"y%d:" % len(value)
            yield value
        case enum.Enum():
            yield b"e"
            yield from _canonical(value.name)
        case Path():
            yield b"p"
            yield from _canonical(value.as_posix())
        case np.ndarray():
            yield b"a"
            yield from _canonical((str(value.dtype), value.shape))
            yield np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
        case np.generic():
            yield from _canonical(value.item())
        case tuple() | list():
            yield b"(%d" % len(value)  # pyright: ignore[reportUnknownArgumentType]
            for item in value:  # pyright: ignore[reportUnknownVariableType]
                yield from _canonical(item)  # pyright: ignore[reportUnknownArgumentType]
        case set() | frozenset():
            yield b"{"
            yield from _canonical(sorted(content_key(item) for item in value))  # pyright: ignore
        case Mapping():
            yield b"m"
            items = [
                (_text_key(k) if type(k) is str else content_key(k), k, v)  # pyright: ignore
                for k, v in value.items()  # pyright: ignore
            ]
            for _, key, item in sorted(items, key=lambda entry: entry[0]):
                yield from _canonical((key, item))
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield b"d"
            yield from _canonical(type(value).__name__)
            for field in dataclasses.fields(value):
                if field.compare:
                    yield from _canonical(getattr(value, field.name))
        case _:
            raise TypeError(f"content_key: {type(value).__name__} has no stable content")

"""Content keys: the same value gives the same key in every process and on every machine.

`content_key` hashes canonical bytes, never `hash()`, `id()`, or pickles. CODE_VERSION belongs in
the key of every cached stage whose meaning lives in this package.
"""

import dataclasses
import enum
import hashlib
from collections.abc import Callable, Mapping
from functools import cache, lru_cache, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

P = ParamSpec("P")
R = TypeVar("R")
FileVersion = tuple[int, ...]
CODE_VERSION = "8"
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
        _update(value, digest.update)
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


def file_version(path: Path) -> FileVersion:
    """What tells versions of a file apart without reading it, here and now; () if there is none."""
    try:
        facts = path.stat()
    except OSError:
        return ()
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


def cached_by_file(
    maxsize: int,
) -> Callable[[Callable[Concatenate[Path, P], R]], Callable[Concatenate[Path, P], R]]:
    """Decorates a function of a file, which is called once for each version of that file.

    Its other arguments are hashable; the last `maxsize` results are kept.
    """

    def decorate(body: Callable[Concatenate[Path, P], R]) -> Callable[Concatenate[Path, P], R]:
        @lru_cache(maxsize)
        def cached(path: Path, version: FileVersion, *args: Any, **kwargs: Any) -> R:
            del version
            return body(path, *args, **kwargs)

        @wraps(body)
        def called(path: Path, *args: P.args, **kwargs: P.kwargs) -> R:
            return cached(path, file_version(path), *args, **kwargs)

        return called

    return decorate


_LETTERS: dict[type, bytes] = {type(None): b"N", bool: b"b", int: b"i", float: b"f", str: b"s"}


def _update(value: object, put: Callable[[bytes | memoryview], object]) -> None:
    """Gives `put` the canonical bytes of a value, piece by piece."""
    letter = _LETTERS.get(type(value))
    if letter is not None:
        text = repr(value).encode()
        put(b"%s%d:%s" % (letter, len(text), text))
        return
    match value:
        case tuple() | list():
            put(b"(%d" % len(value))
            for item in value:
                _update(item, put)
        case Mapping():
            put(b"m")
            entries = [(*_key_of_entry(k), v) for k, v in value.items()]
            for _, key, item in sorted(entries, key=lambda entry: entry[0]):
                put(b"(2")
                put(key)
                _update(item, put)
        case int() | float() | str() if not isinstance(value, enum.Enum):
            text = repr(value).encode()
            kind = str if isinstance(value, str) else type(value)  # an element type is its name
            put(b"%s%d:%s" % (kind.__name__[0].encode(), len(text), text))
        case bytes():
            put(b"y%d:" % len(value))
            put(value)
        case enum.Enum():
            put(b"e")
            _update(value.name, put)
        case Path():
            put(b"p")
            _update(value.as_posix(), put)
        case np.ndarray():
            put(b"a")
            _update((str(value.dtype), value.shape), put)
            put(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
        case np.generic():
            _update(value.item(), put)
        case set() | frozenset():
            put(b"{")
            _update(sorted(content_key(item) for item in value), put)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            put(b"d")
            _update(type(value).__name__, put)
            for name in _compared(type(value)):
                _update(getattr(value, name), put)
        case _:
            raise TypeError(f"content_key: {type(value).__name__} has no stable content")


def _key_of_entry(key: object) -> tuple[str, bytes]:
    """What a mapping's entries are sorted by, and its canonical bytes; the same few names come
    again and again."""
    return _key_of_name(key) if type(key) is str else _canonical(key)


@lru_cache(maxsize=1 << 12)
def _key_of_name(name: str) -> tuple[str, bytes]:
    return _canonical(name)


def _canonical(key: object) -> tuple[str, bytes]:
    pieces: list[bytes | memoryview] = []
    _update(key, pieces.append)
    return content_key(key), b"".join(pieces)


@cache
def _compared(kind: type) -> tuple[str, ...]:
    """The names of a dataclass's fields that are part of its value."""
    return tuple(field.name for field in dataclasses.fields(kind) if field.compare)

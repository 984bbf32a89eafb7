"""Reads a GGUF file: its metadata, and where its tensors lie.

Format: GGUF of the ggml project, versions 2 and 3, little-endian: a header, pairs of key and value,
tensor descriptions, padding up to the alignment, then the tensors' bytes. Every count and extent is
compared with the bytes that are there before anything is allocated, so that a damaged file costs
one sentence. Tensors are mapped, not read.
"""

import math
import mmap
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from retune.core.errors import ModelError
from retune.frontend.gguf.blocks import KINDS, GgufType

Scalar = int | float | bool | str
Value = Scalar | tuple[Scalar, ...]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""Number of a type -> its letter of `struct`."""
_LEAST_PAIR, _LEAST_TENSOR = 13, 24
"""Bytes: an empty key, a type and a value of one byte; a tensor description without a name."""
_MOST_DIMENSIONS = 4
_ALIGNMENT = 32
"""Bytes, where `general.alignment` states no other."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor of the file: rows of blocks."""

    name: str
    kind: GgufType
    shape: tuple[int, ...]
    """Outermost first, as numpy has it; the file states the reverse."""
    raw: np.ndarray
    """uint8 [rows, bytes of a row], mapped."""

    def values(self) -> np.ndarray:
        """float32 of the tensor's shape, by the reference definition of its type."""
        return self.kind.values(self.raw).reshape(self.shape)

    def with_rows(self, rows: np.ndarray) -> "GgufTensor":
        """The matrix with these rows, in this order."""
        return replace(self, shape=(len(rows), *self.shape[1:]), raw=self.raw[rows])

    def with_rows_of(self, name: str, others: Sequence["GgufTensor"]) -> "GgufTensor":
        """The matrix of that name with the rows of others, of the same type, behind its own."""
        raw = np.concatenate([each.raw for each in (self, *others)])
        return replace(self, name=name, shape=(len(raw), *self.shape[1:]), raw=raw)


@dataclass(frozen=True, slots=True)
class GgufFile:
    """What a GGUF file says."""

    path: Path
    metadata: Mapping[str, Value]
    tensors: Mapping[str, GgufTensor]

    def tensor(self, name: str, *shape: int) -> GgufTensor:
        """The tensor of that name and shape. Raises: ModelError."""
        found = self.tensors.get(name)
        if found is None:
            raise ModelError(
                f"{self.path}: expected a tensor {name!r}, got none; convert the model again"
            )
        if found.shape != shape:
            raise ModelError(
                f"{self.path}: tensor {name!r}: expected {list(shape)}, got {list(found.shape)}; "
                "convert the model again"
            )
        return found

    def whole(self, key: str, default: int | None = None) -> int:
        """The integer of that key. Raises: ModelError if it is missing without a default."""
        found = self.metadata.get(key, default)
        if isinstance(found, bool) or not isinstance(found, int):
            raise self._wrong(key, "an integer", found)
        return found

    def number(self, key: str, default: float | None = None) -> float:
        """The number of that key. Raises: ModelError if it is missing without a default."""
        found = self.metadata.get(key, default)
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise self._wrong(key, "a number", found)
        return float(found)

    def text(self, key: str, default: str | None = None) -> str:
        """The text of that key. Raises: ModelError if it is missing without a default."""
        found = self.metadata.get(key, default)
        if not isinstance(found, str):
            raise self._wrong(key, "a text", found)
        return found

    def texts(self, key: str) -> list[str]:
        """The texts of that key; none if it is missing. Raises: ModelError for other values."""
        found = self._array(key)
        texts = [each for each in found if isinstance(each, str)]
        if len(texts) != len(found):
            raise self._wrong(key, "an array of texts", found)
        return texts

    def wholes(self, key: str) -> list[int]:
        """The integers of that key; none if it is missing. Raises: ModelError for other values."""
        found = self._array(key)
        numbers = [each for each in found if isinstance(each, int)]
        if len(numbers) != len(found):
            raise self._wrong(key, "an array of integers", found)
        return numbers

    def _array(self, key: str) -> tuple[Scalar, ...]:
        found = self.metadata.get(key, ())
        if not isinstance(found, tuple):
            raise self._wrong(key, "an array", found)
        return found

    def _wrong(self, key: str, expected: str, found: object) -> ModelError:
        got = "nothing" if found is None else f"{found!r:.60}"
        return ModelError(
            f"{self.path}: {key}: expected {expected}, got {got}; convert the model again"
        )


def open_gguf(path: Path) -> GgufFile:
    """The file, with its tensors mapped. Raises: ModelError if it is not a whole GGUF file."""
    try:
        with path.open("rb") as stream:
            data = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    except (FileNotFoundError, IsADirectoryError):
        got = "a folder" if path.is_dir() else "no file"
        raise ModelError(f"{path}: expected a GGUF file, got {got}") from None
    except ValueError:
        raise ModelError(f"{path}: expected a GGUF file, got an empty one") from None
    return _Cursor(path, data).file()


class _Cursor:
    """Reads one value after the other."""

    def __init__(self, path: Path, data: memoryview) -> None:
        self._path, self._data, self._at = path, data, 0

    def file(self) -> GgufFile:
        """Everything. Raises: ModelError."""
        if bytes(self._data[:4]) != _MAGIC:
            raise ModelError(f"{self._path}: expected a GGUF file, got another kind")
        self._at = 4
        version = self._scalar("I", "the version")
        if version not in _VERSIONS:
            raise self._damaged(
                f"version {version}", "version 2 or 3, little-endian", "convert the model again"
            )
        tensors, pairs = (self._scalar("Q", what) for what in ("tensors", "pairs"))
        self._fits(int(pairs) * _LEAST_PAIR + int(tensors) * _LEAST_TENSOR, "the header")
        metadata: dict[str, Value] = {}
        for _ in range(int(pairs)):
            key = self._string("a key")
            metadata[key] = self._value(int(self._scalar("I", key)), key)
        described = [self._description() for _ in range(int(tensors))]
        align = metadata.get("general.alignment", _ALIGNMENT)
        if not isinstance(align, int) or align < 1 or align > len(self._data):
            raise self._damaged(f"general.alignment {align!r:.20}", "a positive integer")
        begin = -(-self._at // align) * align
        found = {each[0]: self._tensor(*each, begin) for each in described}
        if len(found) < len(described):
            raise self._damaged("two tensors of one name", "different names")
        return GgufFile(self._path, metadata, found)

    def _description(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape, number of the type, and offset of a tensor."""
        name = self._string("a tensor's name")
        count = int(self._scalar("I", name))
        if count > _MOST_DIMENSIONS:
            raise self._damaged(f"tensor {name!r:.60} of {count} dimensions", "at most 4")
        shape = tuple(int(self._scalar("Q", name)) for _ in range(count))
        if 0 in shape:
            raise self._damaged(f"tensor {name!r:.60} {list(shape[::-1])}", "extents from 1")
        return name, shape[::-1], int(self._scalar("I", name)), int(self._scalar("Q", name))

    def _tensor(
        self, name: str, shape: tuple[int, ...], number: int, offset: int, begin: int
    ) -> GgufTensor:
        kind = KINDS.get(number)
        if kind is None:
            known = ", ".join(each.name for each in KINDS.values())
            raise self._damaged(f"tensor {name!r:.60} of type {number}", f"one of {known}")
        width = shape[-1] if shape else 1
        if width % kind.values_of_block:
            raise self._damaged(
                f"tensor {name!r:.60} {list(shape)}", f"rows of blocks of {kind.values_of_block}"
            )
        row = width // kind.values_of_block * kind.bytes_of_block
        rows = math.prod(shape[:-1])
        if begin + offset + rows * row > len(self._data):
            raise self._damaged(
                f"tensor {name!r:.60} up to byte {begin + offset + rows * row}",
                f"at most {len(self._data)}",
                "copy or download the file again",
            )
        first = begin + offset
        raw = np.frombuffer(self._data[first : first + rows * row], np.uint8).reshape(rows, row)
        return GgufTensor(name, kind, shape, raw)

    def _value(self, number: int, key: str) -> Value:
        if number != _ARRAY:
            return self._one(number, key)
        kind, count = int(self._scalar("I", key)), int(self._scalar("Q", key))
        if kind in _SCALARS:
            form = f"<{count}{_SCALARS[kind]}"
            self._fits(count * struct.calcsize(f"<{_SCALARS[kind]}"), key)
            found = struct.unpack_from(form, self._data, self._at)
            self._at += struct.calcsize(form)
            return found
        self._fits(8 * count, key)
        return tuple(self._one(kind, key) for _ in range(count))

    def _one(self, number: int, key: str) -> Scalar:
        if number == _STRING:
            return self._string(key)
        if number not in _SCALARS:
            raise self._damaged(f"{key!r:.60} of type {number}", "a number, text or array of them")
        return self._scalar(_SCALARS[number], key)

    def _scalar(self, letter: str, what: str) -> Scalar:
        size = struct.calcsize(f"<{letter}")
        self._fits(size, what)
        (value,) = struct.unpack_from(f"<{letter}", self._data, self._at)
        self._at += size
        return value

    def _string(self, what: str) -> str:
        size = int(self._scalar("Q", what))
        self._fits(size, what)
        raw = bytes(self._data[self._at : self._at + size])
        self._at += size
        return raw.decode("utf-8", "replace")

    def _fits(self, size: int, what: str) -> None:
        """Raises: ModelError if the file ends before so many further bytes."""
        if size > len(self._data) - self._at:
            raise self._damaged(
                f"its end within {what!r:.60}", "a whole file", "copy or download the file again"
            )

    def _damaged(
        self, got: str, expected: str, todo: str = "convert the model again"
    ) -> ModelError:
        return ModelError(f"{self._path}: expected {expected}, got {got}; {todo}")

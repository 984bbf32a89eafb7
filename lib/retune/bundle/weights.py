"""The weights file: safetensors, written by its library, read as views that copy nothing.

The format is eight bytes of header length, a JSON header, then the arrays. Reading it here, from
any buffer, lets a mapped file and a part of a zip take the same way, without a copy of the whole.
"""

import errno
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from retune.bundle.manifest import Malformed
from retune.core.dtypes import BFLOAT16
from retune.core.schema import Count, from_plain

_NUMPY: dict[str, str] = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "BF16": "bfloat16",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "|u1",
    "BOOL": "|b1",
}
"""safetensors element type -> numpy's; Source: https://github.com/huggingface/safetensors"""

_LENGTH_BYTES = 8

_METADATA = "__metadata__"
"""What the format keeps for itself. A weight of that name has one more underscore in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """An array in the header."""

    dtype: str
    shape: tuple[Count, ...]
    data_offsets: tuple[Count, Count]


def save_weights(weights: Mapping[str, np.ndarray], path: Path) -> None:
    """The file holds every array, written from its own memory (copied only if not contiguous).

    Raises: OSError where there is no room for it.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    dense = {_stored(n): np.require(array, requirements="C") for n, array in weights.items()}
    try:
        save_file(dense, path)
    except SafetensorError as error:  # the library says what the system says in words alone
        if shutil.disk_usage(path.parent).free >= sum(array.nbytes for array in dense.values()):
            raise
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error


def _stored(name: str) -> str:
    """The name in the file: other than the one of the format, and other than any other weight's."""
    return f"{name}_" if _is_metadata(name) else name


def _is_metadata(name: str) -> bool:
    return name.startswith(_METADATA) and not name.strip("_").removeprefix("metadata")


def map_file(path: Path) -> memoryview:
    """The file's bytes, mapped read-only: pages are read when they are used."""
    with path.open("rb") as stream:
        return map_open_file(stream)


def map_open_file(stream: BinaryIO) -> memoryview:
    """The same of an open file, which may be closed then."""
    if os.fstat(stream.fileno()).st_size == 0:
        return memoryview(b"")
    return memoryview(np.memmap(stream, dtype=np.uint8, mode="r"))  # pyright: ignore[reportArgumentType, reportCallIssue]


def view_weights(data: memoryview) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file by name, as read-only views of `data`: nothing is copied.

    Raises: Malformed for a header that is no JSON, or that states more than the file holds.
    """
    header_bytes = int.from_bytes(data[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + header_bytes
    if not _LENGTH_BYTES < start <= len(data):
        raise Malformed(f"header: expected at most {len(data)} bytes; got {header_bytes}")
    try:
        header = json.loads(bytes(data[_LENGTH_BYTES:start]))
    except (ValueError, RecursionError) as error:
        raise Malformed(f"header: expected JSON; got {error}") from error
    if isinstance(header, dict):
        cast("dict[str, object]", header).pop(_METADATA, None)
    entries = from_plain(dict[str, _Entry], header, where="header", error=Malformed)
    return {
        name[:-1] if _is_metadata(name) else name: _view(data[start:], name, entry)
        for name, entry in entries.items()
    }


def _view(data: memoryview, name: str, entry: _Entry) -> np.ndarray:
    if entry.dtype not in _NUMPY:
        raise Malformed(f"weight {name}: expected one of {', '.join(_NUMPY)}; got {entry.dtype}")
    dtype = BFLOAT16.numpy if entry.dtype == "BF16" else np.dtype(_NUMPY[entry.dtype])
    shape, (first, last) = entry.shape, entry.data_offsets
    if not (first <= last <= len(data) and last - first == prod(shape) * dtype.itemsize):
        raise Malformed(f"weight {name}: expected {shape} of {dtype}; got bytes {first} to {last}")
    return np.frombuffer(data[first:last], dtype=dtype).reshape(shape)

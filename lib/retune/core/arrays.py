"""Arrays by name in the form of safetensors, read as views that copy nothing.

The form is eight bytes of header length, a JSON header, then the arrays. What it calls an element
type follows from the type's entry; an array of a type that it lacks is stored as unsigned integers
of that size, and the header's metadata name the type.
"""

import errno
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, cast

import numpy as np

from retune.core.dtypes import NUMPY_DTYPES, DType, dtype_of
from retune.core.errors import RetuneError
from retune.core.schema import Count, from_plain

METADATA = "__metadata__"
"""What the format keeps for itself: texts by name, here types of arrays by their names."""
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """An array in the header."""

    dtype: str
    shape: tuple[Count, ...]
    data_offsets: tuple[Count, Count]


def array_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The arrays in one piece."""
    from safetensors.numpy import save

    dense, notes = _storable(arrays)
    return save(dense, notes)


def save_arrays(arrays: Mapping[str, np.ndarray], path: Path) -> None:
    """The file holds every array, written from its own memory (copied only if not contiguous).

    Raises: OSError where there is no room for it.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    dense, notes = _storable(arrays)
    try:
        save_file(dense, path, metadata=notes)
    except SafetensorError as error:  # the library says what the system says in words alone
        if shutil.disk_usage(path.parent).free >= sum(array.nbytes for array in dense.values()):
            raise
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error


def _storable(
    arrays: Mapping[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], dict[str, str] | None]:
    """What the library writes: arrays without gaps, of types that it has, and metadata if any."""
    dense = {name: np.require(array, requirements="C") for name, array in arrays.items()}
    types = {name: dtype_of(array) for name, array in dense.items()}
    bare = {name: str(dtype) for name, dtype in types.items() if not _is_stated(dtype)}
    dense |= {name: dense[name].view(_unsigned(types[name])) for name in bare}
    return dense, bare or None


def view_arrays(data: memoryview, *, error: type[RetuneError]) -> dict[str, np.ndarray]:
    """The arrays by name, as views of `data`.

    Raises: `error` for a header that is not JSON, or that states more than there is.
    """
    header_bytes = int.from_bytes(data[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + header_bytes
    if not _LENGTH_BYTES < start <= len(data):
        raise error(f"header: expected at most {len(data)} bytes; got {header_bytes}")
    try:
        header = json.loads(bytes(data[_LENGTH_BYTES:start]))
    except (ValueError, RecursionError) as caught:
        raise error(f"header: expected JSON; got {caught}") from caught
    notes: object = None
    if isinstance(header, dict):
        notes = cast("dict[str, object]", header).pop(METADATA, None)
    types = cast("dict[str, object]", notes) if isinstance(notes, dict) else {}
    entries = from_plain(dict[str, _Entry], header, where="header", error=error)
    known = {_name_in_file(dtype): dtype for dtype in NUMPY_DTYPES}
    arrays: dict[str, np.ndarray] = {}
    for name, entry in entries.items():
        if entry.dtype not in known:
            raise error(f"weight {name}: expected one of {', '.join(known)}; got {entry.dtype}")
        dtype = _noted(known[entry.dtype], types.get(name)).numpy.newbyteorder("<")
        shape, (first, last) = entry.shape, entry.data_offsets
        held = last - first if first <= last <= len(data) - start else -1
        if held != prod(shape) * dtype.itemsize:
            raise error(f"weight {name}: expected {shape} of {dtype}; got bytes {first} to {last}")
        part = data[start + first : start + last]
        arrays[name] = np.frombuffer(part, dtype=dtype).reshape(shape)
    return arrays


def _noted(stated: DType, note: object) -> DType:
    """The type that the metadata name, where bytes of its size are stated; else that one."""
    if not (isinstance(note, str) and note in NUMPY_DTYPES):
        return stated
    return DType(note) if stated.numpy == _unsigned(DType(note)) else stated


def _name_in_file(dtype: DType) -> str:
    """What the format calls a type: F32, U8, BF16, F8_E4M3, F8_E5M2FNUZ, ...

    Source: https://github.com/huggingface/safetensors
    """
    short = dtype.replace("uint", "u").replace("int", "i").replace("float", "f")
    return re.sub("FN$", "", short.upper())


@cache
def _is_stated(dtype: DType) -> bool:
    """Whether the format has that type, as the library says."""
    from safetensors import SafetensorError
    from safetensors.numpy import save

    try:
        header = save({"w": np.zeros(0, dtype.numpy)})[_LENGTH_BYTES:]
    except SafetensorError:
        return False
    return json.loads(header)["w"]["dtype"] == _name_in_file(dtype)


def _unsigned(dtype: DType) -> np.dtype[Any]:
    """The unsigned integers of that size."""
    return np.dtype(f"u{dtype.itemsize}")

"""The weights file: safetensors, written by its library, read as views that copy nothing.

Reading it by `core/arrays.py`, from any buffer, lets a mapped file and a part of a zip take the
same way, without a copy of the whole.
"""

import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from retune.bundle.manifest import Malformed
from retune.core.arrays import METADATA, save_arrays, view_arrays


def save_weights(weights: Mapping[str, np.ndarray], path: Path) -> None:
    """The file holds every array, written from its own memory (copied only if not contiguous).

    Raises: OSError where there is no room for it.
    """
    save_arrays({_stored(name): array for name, array in weights.items()}, path)


def _stored(name: str) -> str:
    """The name in the file: other than the one of the format, and other than any other weight's.

    A weight of the format's name has one more underscore there.
    """
    return f"{name}_" if _is_metadata(name) else name


def _is_metadata(name: str) -> bool:
    return name.startswith(METADATA) and not name.strip("_").removeprefix("metadata")


def map_file(path: Path) -> memoryview:
    """The file's bytes, mapped read-only: pages are read when they are used."""
    with path.open("rb") as stream:
        return map_open_file(stream)


def map_open_file(stream: BinaryIO) -> memoryview:
    """The same of an open file, which may be closed then."""
    if os.fstat(stream.fileno()).st_size == 0:
        return memoryview(b"")
    return memoryview(np.memmap(stream, dtype=np.uint8, mode="r"))  # pyrefly: ignore[bad-argument-type]


def forget_pages(data: memoryview | np.ndarray) -> None:
    """What lies in a file that is mapped read-only takes no memory until it is read again.

    Reading all of a large file otherwise makes all of it resident. Anything else stays as it is.
    """
    owner: object = data
    while owner is not None and not isinstance(owner, mmap.mmap):
        owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
    if owner is None or not hasattr(mmap, "MADV_DONTNEED"):
        return
    first = _address(data) - _address(owner)
    start, end = -(-first // mmap.PAGESIZE), (first + data.nbytes) // mmap.PAGESIZE
    if start < end:
        owner.madvise(mmap.MADV_DONTNEED, start * mmap.PAGESIZE, (end - start) * mmap.PAGESIZE)


def _address(data: memoryview | np.ndarray | mmap.mmap) -> int:
    array = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    return array.ctypes.data


def view_weights(data: memoryview) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file by name, as read-only views of `data`: nothing is copied.

    Raises: Malformed for a header that is not JSON, or that states more than the file holds.
    """
    arrays = view_arrays(data, error=Malformed)
    return {name[:-1] if _is_metadata(name) else name: array for name, array in arrays.items()}

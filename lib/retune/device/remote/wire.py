"""The wire format: a JSON head, named arrays and whole blobs. Never a pickle.

Read `pack` and `unpack`. The container is safetensors: lengths are checked against the bytes that
arrived before anything is made of them, and an array is a type, a shape and numbers. A job's head
is an Envelope; a Reply tells what became of it.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import numpy as np

from retune.core.arrays import array_bytes, view_arrays
from retune.core.errors import InputError, RecordError
from retune.core.schema import from_json, to_json

WIRE = 3
"""Version of all that travels; boards and clients of another one refuse each other."""
MOST_BYTES = 1 << 30
"""The largest size of a job, unless scheduler or board are started with another one."""

_HEAD = "head"
_LEAST_BYTES = 1 << 20
_MOST_HEAD_BYTES = 64 << 20
"""As JSON takes some ten times as much memory."""
_BLOB = "blob/"

T = TypeVar("T")


class RefusedError(InputError):
    """The data received is not a job, or not one that this board takes; nothing of it was run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """The head of every job."""

    wire: int
    kind: str
    """Who on the board carries it out: `measure`, `bundle`."""
    board: str
    """Resource of the boards that it is for: `KEY/KIND`."""
    needs: tuple[str, ...] = ()
    """Digests of the blobs that it works with, whether they come with it or not."""
    body: str = ""
    """JSON that those who carry it out understand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The head of every answer."""

    state: Literal["done", "missing", "refused", "lost"]
    """`missing`: the board wants the blobs of `needs` sent along. `refused`: the board cannot
    take the job. `lost`: the board could not do it, through no fault of what it was given."""
    board: str = ""
    """Name of the board."""
    why: str = ""
    needs: tuple[str, ...] = ()
    body: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageParts:
    """What a message holds beside its head."""

    arrays: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    blobs: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """By digest, which is that of the bytes."""


def most_bytes_of(mb: float) -> int:
    """The bytes of so many MiB. Raises: InputError for a number that is none."""
    if not _LEAST_BYTES <= mb * 2**20 < 2**62:
        raise InputError(f"--most-mb {mb:g}: expected a number of MiB from 1 on")
    return int(mb * 2**20)


def pack(head: Envelope | Reply, parts: MessageParts | None = None) -> bytes:
    """The message in one piece."""
    given = parts or MessageParts()
    arrays: dict[str, np.ndarray] = {_HEAD: np.frombuffer(to_json(head).encode(), np.uint8)}
    arrays |= {
        f"{_BLOB}{name}": np.frombuffer(data, np.uint8) for name, data in given.blobs.items()
    }
    arrays |= {f"array/{name}": array for name, array in given.arrays.items()}
    return pack_arrays(arrays)


def unpack(kind: type[T], message: object, most_bytes: int = MOST_BYTES) -> tuple[T, MessageParts]:
    """The head of that kind, and the rest. Raises: RefusedError for anything else."""
    if not isinstance(message, bytes):
        raise RefusedError(f"expected a message of bytes, got {type(message).__name__}")
    if len(message) > most_bytes:
        raise RefusedError(f"expected at most {most_bytes} bytes, got {len(message)}")
    arrays = unpack_arrays(message)
    raw = arrays.pop(_HEAD, None)
    if raw is None or raw.dtype != np.uint8 or raw.size > _MOST_HEAD_BYTES:
        raise RefusedError("expected a message with a head, got none")
    head = read_json(kind, raw.tobytes())
    named: dict[str, np.ndarray] = {}
    blobs: dict[str, bytes] = {}
    for name, array in arrays.items():
        if name.startswith(_BLOB):
            data = array.tobytes()
            if digest_of(data) != name.removeprefix(_BLOB):
                raise RefusedError(f"expected a blob with digest {name[len(_BLOB) :]}, got another")
            blobs[name.removeprefix(_BLOB)] = data
        else:
            named[name.removeprefix("array/")] = array
    return head, MessageParts(arrays=named, blobs=blobs)


def read_json(kind: type[T], text: bytes | str) -> T:
    """The value that `schema.to_json` wrote. Raises: RefusedError naming what is wrong in it."""
    try:
        if isinstance(text, bytes):
            text = text.decode()
        return from_json(kind, text)
    except (RecordError, InputError) as error:
        raise RefusedError(str(error).partition("; ")[0]) from None
    except (ValueError, RecursionError, OverflowError, TypeError) as error:
        raise RefusedError(f"{kind.__name__}: expected JSON of its fields, got {error}") from None


def pack_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The arrays by name, in one piece."""
    return array_bytes(arrays)


def unpack_arrays(data: bytes) -> dict[str, np.ndarray]:
    """What `pack_arrays` was given; arrays may be views of `data`.

    Raises: RefusedError for anything else.
    """
    try:
        return view_arrays(memoryview(data), error=RecordError)
    except (RecordError, ValueError, OverflowError) as error:
        raise RefusedError(f"expected arrays in safetensors, got {error}") from None


def grouped(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The arrays under names that begin so, among those of other groups."""
    return {f"{prefix}{name}": array for name, array in arrays.items()}


def group_of(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """What `grouped` was given, out of the arrays of all groups."""
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}


def digest_of(data: bytes) -> str:
    """Equal for equal bytes only."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()

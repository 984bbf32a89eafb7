"""Element types and tensor types, with their numpy counterparts."""

from dataclasses import dataclass
from math import prod
from typing import Literal, get_args

import numpy as np

DType = Literal[
    "float32", "float64", "float16",
    "int64", "int32", "int16", "int8",
    "uint64", "uint32", "uint16", "uint8",
    "bool",
]  # fmt: skip
"""Element types that a value of a graph may have."""

DTYPES: tuple[str, ...] = get_args(DType)

UNKNOWN = -1
"""An extent that depends on the data: known when the value is made, not before."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and element type of a value; an empty shape is a scalar.

    Extents may be UNKNOWN for what a host step leaves to the caller; such a type has no size.
    """

    shape: tuple[int, ...]
    dtype: DType = "float32"

    @property
    def known(self) -> bool:
        """True if every extent is known before the network runs."""
        return UNKNOWN not in self.shape

    @property
    def elements(self) -> int:
        """Number of elements, of a type whose extents are all known."""
        assert self.known, f"{self} has no size of its own"
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size in bytes, without padding."""
        return self.elements * itemsize(self.dtype)

    def __str__(self) -> str:
        extents = ("?" if extent == UNKNOWN else str(extent) for extent in self.shape)
        return f"{self.dtype}[{', '.join(extents)}]"


def itemsize(dtype: str) -> int:
    """Bytes of one element; `bool` takes one."""
    return np.dtype(dtype).itemsize


def is_float(dtype: str) -> bool:
    """True for the floating-point types."""
    return dtype.startswith("float")


def is_unsigned(dtype: str) -> bool:
    """True for the integers without a sign; a bool is none of them."""
    return dtype.startswith("uint")

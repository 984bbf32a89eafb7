"""Element types and tensor types, with their numpy counterparts."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

DType = Literal[
    "float32", "float64", "float16",
    "int64", "int32", "int16", "int8", "int7",
    "uint64", "uint32", "uint16", "uint8",
    "bool",
]  # fmt: skip
"""Element types that a value of a graph may have.

An int7 is an int8 in memory, of -64 to 64, which is what quantizers to seven bits make. Only
constants have that type; some instructions for products of bytes ask for it.
"""

DTYPES: tuple[str, ...] = get_args(DType)

HALF, WIDE = "float16", "float32"
"""What may lie in memory, and what is computed with in its place."""

NUMPY_DTYPES: tuple[str, ...] = tuple(dtype for dtype in DTYPES if dtype != "int7")
"""Those that arrays have."""

INTEGER_LIMITS: Mapping[str, tuple[int, int]] = {
    "int7": (-(1 << 6), 1 << 6),
    "int8": (-(1 << 7), (1 << 7) - 1),
    "uint8": (0, (1 << 8) - 1),
    "int16": (-(1 << 15), (1 << 15) - 1),
    "uint16": (0, (1 << 16) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
    "uint32": (0, (1 << 32) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
    "uint64": (0, (1 << 64) - 1),
    "bool": (0, 1),
}
"""The least and the greatest value of a type."""

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


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The type of arrays that hold such elements."""
    return np.dtype("int8" if dtype == "int7" else dtype)


def itemsize(dtype: str) -> int:
    """Bytes of one element; `bool` takes one."""
    return numpy_dtype(dtype).itemsize


def is_float(dtype: str) -> bool:
    """True for the floating-point types."""
    return dtype.startswith("float")


def is_unsigned(dtype: str) -> bool:
    """True for the integers without a sign; a bool is none of them."""
    return dtype.startswith("uint")

"""Element types and tensor types, with their numpy counterparts."""

from dataclasses import dataclass
from math import prod
from typing import Literal, get_args

import numpy as np

DType = Literal["float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"]
"""Element types that a value of a graph may have."""

DTYPES: tuple[str, ...] = get_args(DType)


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and element type of a value; an empty shape is a scalar."""

    shape: tuple[int, ...]
    dtype: DType = "float32"

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size in bytes, without padding."""
        return self.elements * itemsize(self.dtype)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


def itemsize(dtype: str) -> int:
    """Bytes of one element; `bool` takes one."""
    return np.dtype(dtype).itemsize


def is_float(dtype: str) -> bool:
    """True for the floating-point types."""
    return dtype.startswith("float")

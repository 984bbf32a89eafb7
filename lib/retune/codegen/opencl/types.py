"""Names of element types in OpenCL C."""

from collections.abc import Mapping

from retune.core.dtypes import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT4,
    INT7,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT4,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    DType,
)

TYPE: Mapping[str, str] = {
    FLOAT32: "float",
    FLOAT64: "double",
    FLOAT16: "half",
    BFLOAT16: "ushort",
    INT64: "long",
    INT32: "int",
    INT16: "short",
    INT8: "char",
    INT7: "char",
    INT4: "char",
    UINT64: "ulong",
    UINT32: "uint",
    UINT16: "ushort",
    UINT8: "uchar",
    UINT4: "uchar",
    BOOL: "uchar",
    "int8x4": "int",
    "int7x4": "int",
    "uint8x4": "uint",
    "int8x8": "uint2",
    "uint8x8": "uint2",
}
"""Names of element types in memory; a bool takes one byte that is 0 or 1, bytes for dot products
are read as words of four, or two of them at once."""


def type_name(dtype: DType, lanes: int = 1) -> str:
    """`float`, `float16`, ..."""
    return TYPE[dtype] + (str(lanes) if lanes > 1 else "")

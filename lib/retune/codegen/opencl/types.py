"""Names of element types in OpenCL C."""

from collections.abc import Mapping

TYPE: Mapping[str, str] = {
    "float32": "float",
    "float64": "double",
    "float16": "half",
    "int64": "long",
    "int32": "int",
    "int16": "short",
    "int8": "char",
    "int7": "char",
    "uint64": "ulong",
    "uint32": "uint",
    "uint16": "ushort",
    "uint8": "uchar",
    "bool": "uchar",
    "int8x4": "int",
    "int7x4": "int",
    "uint8x4": "uint",
    "int8x8": "uint2",
    "uint8x8": "uint2",
}
"""Names of element types in memory; a bool takes one byte that is 0 or 1, bytes for dot products
are read as words of four, or two of them at once."""


def type_name(dtype: str, lanes: int = 1) -> str:
    """`float`, `float16`, ..."""
    return TYPE[dtype] + (str(lanes) if lanes > 1 else "")

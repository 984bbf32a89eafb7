"""Names of element types in OpenCL C."""

from collections.abc import Mapping

from retune.core.dtypes import FLOAT16, FLOAT32, FLOAT64, DType

_FLOATS: Mapping[DType, str] = {FLOAT32: "float", FLOAT64: "double", FLOAT16: "half"}
_INTEGERS = {1: "char", 2: "short", 4: "int", 8: "long"}
"""Names of signed integers by their bytes."""
_WORD_BYTES = 4


def type_name(dtype: DType, lanes: int = 1) -> str:
    """`float`, `float16`, ... in memory.

    Floats that OpenCL lacks lie there as unsigned integers, a bool as one byte that is 0 or 1.
    Elements for matrix instructions are read as words of four bytes, two or four of them at once.
    """
    return _element(dtype) + (str(lanes) if lanes > 1 else "")


def _element(dtype: DType) -> str:
    if dtype in _FLOATS:
        return _FLOATS[dtype]
    if dtype.elements > 1 and dtype.itemsize > _WORD_BYTES:
        return f"uint{dtype.itemsize // _WORD_BYTES}"
    name = _INTEGERS[dtype.itemsize]
    return name if dtype.kind == "int" else f"u{name}"

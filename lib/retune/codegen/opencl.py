"""OpenCL C as tables: how types, operators and functions are written.

Nothing here decides what to compute; `emit` does, and asks this module for the words.
"""

from collections.abc import Mapping

import numpy as np

TYPE: Mapping[str, str] = {
    "float32": "float",
    "float64": "double",
    "float16": "half",
    "int64": "long",
    "int32": "int",
    "int16": "short",
    "int8": "char",
    "uint8": "uchar",
    "bool": "uchar",
}
"""Names of element types in memory; a bool takes one byte that is 0 or 1."""

VECTOR_LANES = (2, 4, 8, 16)
"""Vector lengths that OpenCL C has (3 is left out: its memory form is another)."""

VECTOR_TYPES = frozenset({"float32", "int32"})
"""Element types whose blocks are vectorized."""

INFIX: Mapping[str, str] = {
    "add": "+", "sub": "-", "mul": "*", "div": "/",
    "lt": "<", "le": "<=", "eq": "==", "ne": "!=", "and": "&&", "or": "||",
}  # fmt: skip

FUNCTION: Mapping[str, str] = {
    "exp": "exp", "log": "log", "sqrt": "sqrt", "tanh": "tanh", "abs": "fabs",
    "floor": "floor", "ceil": "ceil", "erf": "erf", "round": "rint",
    "sin": "sin", "cos": "cos", "isnan": "isnan",
    "min": "min", "max": "max", "pow": "pow",
}  # fmt: skip


def identifier(name: str) -> str:
    """The name as a C identifier; distinct names that we generate stay distinct."""
    text = "".join(c if c.isalnum() else "_" for c in name)
    return text if text[:1].isalpha() else f"v{text}"


def type_name(dtype: str, lanes: int = 1) -> str:
    """`float`, `float16`, ..."""
    return TYPE[dtype] + (str(lanes) if lanes > 1 else "")


def literal(value: float | bool, dtype: str) -> str:
    """A literal that reads back as exactly the same value."""
    if dtype == "bool":
        return "1" if value else "0"
    if not dtype.startswith("float"):
        if dtype == "int64":
            return "LONG_MIN" if value == -(2**63) else f"{int(value)}L"
        return "INT_MIN" if value == -(2**31) and dtype == "int32" else str(int(value))
    suffix = "" if dtype == "float64" else "f"
    if np.isnan(value):
        return "NAN"
    if np.isinf(value):
        return "-INFINITY" if value < 0 else "INFINITY"
    number = float(value) if dtype == "float64" else float(np.float32(value))
    text = repr(number) if dtype == "float64" else str(np.float32(value))
    if not any(c in text for c in ".en"):
        text += ".0"
    return f"({text}{suffix})" if number < 0 else f"{text}{suffix}"


def splat(text: str, dtype: str, lanes: int) -> str:
    """The scalar in every lane."""
    return f"({type_name(dtype, lanes)})({text})" if lanes > 1 else text


def load(pointer: str, index: str, lanes: int) -> str:
    """One element, or `lanes` adjacent ones, from a pointer."""
    return f"vload{lanes}(0, {pointer} + {index})" if lanes > 1 else f"{pointer}[{index}]"


def store(pointer: str, index: str, lanes: int, value: str) -> str:
    """A statement that stores one element, or `lanes` adjacent ones."""
    if lanes > 1:
        return f"vstore{lanes}({value}, 0, {pointer} + {index});"
    return f"{pointer}[{index}] = {value};"


def signature(name: str, local: tuple[int, int, int], arguments: list[str]) -> list[str]:
    """The lines that open a kernel."""
    size = ", ".join(map(str, local))
    return [
        f"__kernel __attribute__((reqd_work_group_size({size})))",
        f"void {name}(",
        ",\n".join(f"    {a}" for a in arguments) + ")",
        "{",
    ]


def argument(name: str, dtype: str, written: bool) -> str:
    """One pointer argument; operands that are only read are const, none overlap."""
    const = "" if written else "const "
    return f"__global {const}{type_name(dtype)}* restrict {name}"

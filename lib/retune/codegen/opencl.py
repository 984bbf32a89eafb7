"""OpenCL C as tables: how types, operators and functions are written.

Nothing here decides what to compute; `emit` does, and asks this module for the words.
"""

from collections.abc import Mapping
from functools import lru_cache
from math import isinf, isnan

import numpy as np

from retune.core.dtypes import itemsize

TYPE: Mapping[str, str] = {
    "float32": "float",
    "float64": "double",
    "float16": "half",
    "int64": "long",
    "int32": "int",
    "int16": "short",
    "int8": "char",
    "uint64": "ulong",
    "uint32": "uint",
    "uint16": "ushort",
    "uint8": "uchar",
    "bool": "uchar",
    "int8x4": "int",
    "uint8x4": "uint",
}
"""Names of element types in memory; a bool takes one byte that is 0 or 1, bytes for dot products
are read as words of four."""

VECTOR_LANES = (2, 4, 8, 16)
"""Vector lengths that OpenCL C has (3 is left out: its memory form is another)."""

ADDRESS_SPACE: Mapping[str, str] = {
    "global": "__global", "constant": "__global", "local": "__local",
}  # fmt: skip
"""The qualifier of memory by a buffer's scope; registers and private arrays have none."""

VECTOR_TYPES = frozenset({"float32", "int32", "int8x4", "uint8x4"})
"""Element types whose blocks are vectorized."""

NARROW_TYPES = frozenset({"int16", "int8", "uint16", "uint8"})
"""Element types that C calculates with as `int`."""

INFIX: Mapping[str, str] = {
    "add": "+", "sub": "-", "mul": "*", "div": "/",
    "lt": "<", "le": "<=", "eq": "==", "ne": "!=", "and": "&&", "or": "||",
    "bitand": "&", "bitor": "|", "bitxor": "^", "shl": "<<", "shr": ">>",
}  # fmt: skip

FUNCTION: Mapping[str, str] = {
    "exp": "exp", "log": "log", "sqrt": "sqrt", "abs": "fabs", "fmod": "fmod",
    "fma": "fma",
    "floor": "floor", "ceil": "ceil", "erf": "erf", "round": "rint",
    "sin": "sin", "cos": "cos", "tan": "tan",
    "arcsin": "asin", "arccos": "acos", "arctan": "atan",
    "sinh": "sinh", "cosh": "cosh", "tanh": "tanh",
    "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh",
    "min": "min", "max": "max", "pow": "pow",
}  # fmt: skip

_BITS: Mapping[str, tuple[str, str, str]] = {
    "float64": ("ulong", "0x7fffffffffffffffUL", "0x7ff0000000000000UL"),
    "float32": ("uint", "0x7fffffffu", "0x7f800000u"),
    "float16": ("ushort", "(ushort)0x7fff", "(ushort)0x7c00"),
}
"""Floats as bits: their type, the mask of all but the sign, and infinity."""

_TEST: Mapping[str, str] = {"isnan": ">", "isinf": "=="}
"""Function -> how the magnitude's bits compare with those of infinity."""


_WORDS = """
    auto break case char const continue default do double else enum extern float for goto if inline
    int long register restrict return short signed sizeof static struct switch typedef union
    unsigned void volatile while bool half uchar ushort uint ulong size_t ptrdiff_t complex
    imaginary true false kernel global local constant private generic read_only write_only
    read_write uniform pipe image1d_t image2d_t image3d_t sampler_t event_t queue_t NULL NAN
    INFINITY HUGE_VALF MAXFLOAT INT_MIN INT_MAX LONG_MIN LONG_MAX fma select group get_group_id
    get_local_id get_global_id barrier CLK_LOCAL_MEM_FENCE main
"""
RESERVED = frozenset(_WORDS.split()) | frozenset(FUNCTION.values())
"""Words that OpenCL C or the generated code uses; no name of ours may be one of them."""


@lru_cache(maxsize=1024)
def identifier(name: str) -> str:
    """The name in the letters that C allows; `names.Identifiers` keeps such names apart."""
    text = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
    return text if text[:1].isalpha() else f"v{text}"


def type_name(dtype: str, lanes: int = 1) -> str:
    """`float`, `float16`, ..."""
    return TYPE[dtype] + (str(lanes) if lanes > 1 else "")


def element_bytes(dtype: str) -> int:
    """Size of an element in memory; a word of bytes has four."""
    return 4 if dtype.endswith("x4") else itemsize(dtype)


def literal(value: float | bool, dtype: str) -> str:
    """A literal that reads back as exactly the same value."""
    if dtype == "bool":
        return "1" if value else "0"
    if not dtype.startswith("float"):
        if dtype == "int64":
            return "LONG_MIN" if value == -(2**63) else f"{int(value)}L"
        if dtype in ("uint32", "uint64"):
            return f"{int(value)}{'u' if dtype == 'uint32' else 'UL'}"
        return "INT_MIN" if value == -(2**31) and dtype == "int32" else str(int(value))
    suffix = "" if dtype == "float64" else "f"
    if isnan(value):
        return "NAN"
    if isinf(value):
        return "-INFINITY" if value < 0 else "INFINITY"
    number = float(value) if dtype == "float64" else float(np.float32(value))
    text = repr(number) if dtype == "float64" else str(np.float32(value))
    if not any(c in text for c in ".en"):
        text += ".0"
    return f"({text}{suffix})" if number < 0 else f"{text}{suffix}"


def splat(text: str, dtype: str, lanes: int) -> str:
    """The scalar in every lane."""
    return f"({type_name(dtype, lanes)})({text})" if lanes > 1 else text


def exactly(text: str, dtype: str) -> str:
    """The value of an `int` expression as C holds it in that narrow type, wrapped around."""
    return f"({type_name(dtype)})({bare(text)})"


def bitcast(text: str, dtype: str, lanes: int) -> str:
    """The bits of a value as those of another type of the same size."""
    return f"as_{type_name(dtype, lanes)}({bare(text)})"


def special(function: str, text: str, dtype: str, lanes: int) -> str:
    """`isnan` or `isinf` by the bits: compilers may assume that all results are valid."""
    kind, mask, infinity = _BITS[dtype]
    bits = f"as_{kind}{lanes if lanes > 1 else ''}({bare(text)})"
    return f"(({bits} & {mask}) {_TEST[function]} {infinity})"


def load(pointer: str, index: str, lanes: int, memory: str = "") -> str:
    """One element, or `lanes` adjacent ones, from a pointer.

    `memory` is the type of the vector where it surely starts on a multiple of its size.
    """
    if memory:
        return f"*(const {memory}*)({_at(pointer, index)})"
    return f"vload{lanes}(0, {_at(pointer, index)})" if lanes > 1 else f"{pointer}[{index}]"


def store(pointer: str, index: str, lanes: int, value: str, memory: str = "") -> str:
    """A statement that stores one element, or `lanes` adjacent ones; `memory` as for `load`."""
    if memory:
        return f"*({memory}*)({_at(pointer, index)}) = {bare(value)};"
    if lanes > 1:
        return f"vstore{lanes}({bare(value)}, 0, {_at(pointer, index)});"
    return f"{pointer}[{index}] = {bare(value)};"


def load_half(pointer: str, index: str) -> str:
    """A float16 in memory as a float: devices without float16 arithmetic have that too."""
    return f"vload_half({index}, {pointer})"


def store_half(pointer: str, index: str, value: str) -> str:
    """A statement that stores a float as float16, to the nearest; on every device, too."""
    return f"vstore_half({bare(value)}, {index}, {pointer});"


def combine(reducer: str, a: str, b: str) -> str:
    """Two values of a reduction as one."""
    if reducer in ("max", "min"):
        return f"{FUNCTION[reducer]}({a}, {b})"
    return f"{a} {'+' if reducer == 'sum' else '*'} {b}"


BARRIER = "barrier(CLK_LOCAL_MEM_FENCE);"
"""A statement at which all items of a work-group wait until local memory is as they left it."""


def _at(pointer: str, index: str) -> str:
    return pointer if index == "0" else f"{pointer} + {index}"


def bare(text: str) -> str:
    """The text without the parentheses that enclose all of it."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if not depth:
            return text[1:-1] if position == len(text) - 1 else text
    return text


def group_function(kernel: str) -> str:
    """The name of the function that computes one work-group of a kernel."""
    return f"{kernel}_group"


def defines_group(kernel: str, text: str) -> bool:
    """Whether the text defines the kernel by a function of one work-group."""
    return f"static void {group_function(kernel)}(" in text


def cooperative_kernel(
    name: str, local: tuple[int, int, int], arguments: list[str], body: list[str]
) -> list[str]:
    """A kernel whose work-items form groups: one function."""
    size = ", ".join(map(str, local))
    return [
        f"__kernel __attribute__((reqd_work_group_size({size})))",
        f"void {name}(",
        ",\n".join(f"    {a}" for a in arguments) + ")",
        *_braced(body),
    ]


def solitary_kernel(
    name: str, arguments: list[str], passed: list[str], body: list[str]
) -> list[str]:
    """A kernel whose work-groups are one work-item each.

    Its body is a function of the group's number, which other kernels may call as well; `passed`
    are the names of the arguments.

    The function is not inlined: what `restrict` says of its pointers would become scopes that the
    compiler asks about for each pair of accesses (PoCL: twice the time for a convolution, and
    slower code where the body is large), and each caller would hold its body once more.
    """
    function = group_function(name)
    ids = ", ".join(f"get_group_id({dim})" for dim in range(3))
    return [
        "__attribute__((noinline))",
        f"static void {function}(",
        ",\n".join(f"    {a}" for a in (*arguments, "const int3 group")) + ")",
        *_braced(body),
        "",
        "__kernel __attribute__((reqd_work_group_size(1, 1, 1)))",
        f"void {name}(",
        ",\n".join(f"    {a}" for a in arguments) + ")",
        *_braced([f"{function}({', '.join((*passed, f'(int3)({ids})'))});"]),
    ]


def _braced(lines: list[str]) -> list[str]:
    return ["{", *(f"  {line}" for line in lines), "}"]


def argument(name: str, dtype: str, written: bool) -> str:
    """One pointer argument; operands that are only read are const, none overlap."""
    const = "" if written else "const "
    return f"__global {const}{type_name(dtype)}* restrict {name}"

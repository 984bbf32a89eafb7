"""Functions in OpenCL C that convert what is computed with to floats that it lacks, and back.

The text follows from the bits of exponent and mantissa, for one element and for vectors.
"""

from retune.codegen.opencl.types import type_name
from retune.core.dtypes import FLOAT32, DType

_INFINITY, _NAN = 0x7F800000, 0x7FC00000
"""Bits of a float32."""


def loader(dtype: DType, lanes: int) -> str:
    """What the function is called that makes float32 of so many elements."""
    return f"FROM_{dtype.upper()}_{lanes}"


def storer(dtype: DType, lanes: int) -> str:
    """The same of the function that rounds them."""
    return f"TO_{dtype.upper()}_{lanes}"


def has_range_of_float32(dtype: DType) -> bool:
    """Whether its elements are the upper bits of a float32."""
    return dtype.exponent == FLOAT32.exponent and dtype.specials == FLOAT32.specials


def loader_lines(dtype: DType, lanes: int) -> list[str]:
    """The function that makes float32 of elements, exactly; a NaN stays one."""
    n = str(lanes) if lanes > 1 else ""
    mantissa = dtype.mantissa
    shift, sign, least = FLOAT32.mantissa - mantissa, dtype.bits - 1, 1 - dtype.bias - mantissa
    match dtype.specials:
        case "ieee":
            top = ((1 << dtype.exponent) - 1) << mantissa
            special = f"size >= {top:#x}u ? (size << {shift}) | {_INFINITY:#x}u"
        case "fn":
            special = f"size == {(1 << sign) - 1:#x}u ? (uint{n})({_NAN:#x}u)"
        case "fnuz":
            special = f"bits == {1 << sign:#x}u ? (uint{n})({_NAN:#x}u)"
    return _function(
        loader(dtype, lanes),
        f"float{n}",
        type_name(dtype, lanes),
        f"const uint{n} bits = convert_uint{n}(value);",
        f"const uint{n} size = bits & {(1 << sign) - 1:#x}u;",
        f"const uint{n} normal = (size << {shift}) + {_moved(dtype):#x}u;",
        f"const uint{n} small = as_uint{n}(convert_float{n}(size) * {float(2.0**least).hex()}f);",
        f"const uint{n} number = size < {1 << mantissa:#x}u ? small : normal;",
        f"const uint{n} found = {special} : number;",
        f"return as_float{n}(found | ((bits >> {sign}) << 31));",
    )


def storer_lines(dtype: DType, lanes: int) -> list[str]:
    """The function that rounds float32 to the nearest, halves to even; a NaN stays one.

    What is too large is infinite, or a NaN where nothing is. Between the least numbers, addition of
    a float32 whose last bit weighs as much as theirs rounds.
    """
    n = str(lanes) if lanes > 1 else ""
    mantissa = dtype.mantissa
    shift, sign = FLOAT32.mantissa - mantissa, dtype.bits - 1
    last = 1 - dtype.bias - mantissa + FLOAT32.mantissa
    normal = (
        f"const uint{n} normal = (moved + {(1 << (shift - 1)) - 1:#x}u + "
        f"((moved >> {shift}) & 1u)) >> {shift};"
    )
    largest = (1 << sign) - 1
    top = ((1 << dtype.exponent) - 1) << mantissa
    signed = f"(bits >> 31) << {sign}"
    match dtype.specials:
        case "ieee":
            nan, limited = top | 1 << (mantissa - 1), f"min(number, (uint{n})({top:#x}u))"
        case "fn":
            nan, limited = largest, f"min(number, (uint{n})({largest:#x}u))"
        case "fnuz":
            nan = largest + 1
            limited = f"number > {largest:#x}u ? (uint{n})({nan:#x}u) : number"
            signed = f"(found == 0u || found == {nan:#x}u ? (uint{n})(0u) : ({signed}))"
    small = [
        f"const uint{n} small = as_uint{n}(as_float{n}(size) + {float(2.0**last).hex()}f) - "
        f"{(last + FLOAT32.bias) << FLOAT32.mantissa:#x}u;",
        f"const uint{n} number = size < {_moved(dtype) + (1 << FLOAT32.mantissa):#x}u ? small : "
        "normal;",
    ]
    if has_range_of_float32(dtype):
        small = [f"const uint{n} number = normal;"]
    return _function(
        storer(dtype, lanes),
        type_name(dtype, lanes),
        f"float{n}",
        f"const uint{n} bits = as_uint{n}(value);",
        f"const uint{n} size = bits & 0x7fffffffu;",
        f"const uint{n} moved = size - {_moved(dtype):#x}u;",
        normal,
        *small,
        f"const uint{n} finite = {limited};",
        f"const uint{n} found = size > {_INFINITY:#x}u ? (uint{n})({nan:#x}u) : finite;",
        f"return convert_{type_name(dtype, lanes)}(found | ({signed}));",
    )


def _moved(dtype: DType) -> int:
    """What the exponent in a float32 is greater by, in its place."""
    return (FLOAT32.bias - dtype.bias) << FLOAT32.mantissa


def _function(name: str, made: str, given: str, *body: str) -> list[str]:
    """Once in a program of several kernels."""
    return [
        f"#ifndef {name}",
        f"#define {name} {name.lower()}",
        f"static {made} {name}(const {given} value) {{",
        *(f"  {line}" for line in body),
        "}",
        "#endif",
        "",
    ]

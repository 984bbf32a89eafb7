"""Four-element dot products in OpenCL C: the functions `dot4_*`.

Each is chosen where the text is compiled, by what that compiler says of its device: the x86
instruction, OpenCL 3.0's integer dot product, or plain arithmetic. All are exact.
"""

from collections.abc import Iterable

from retune.codegen.kernel import Function
from retune.ir.dot import WIDTH

_MOST_CALLS = 4
"""Lanes that are worth a call each; more are plain arithmetic on vectors."""


def dot_name(dtype: str, lanes: int) -> str:
    """The name of the function for a first operand of that type; the second one is signed."""
    return f"dot4_{'us' if dtype == 'uint8x4' else 'ss'}_{lanes}"


def dot_lines(functions: Iterable[Function]) -> list[str]:
    """The lines that define the functions, each one once in a program of several kernels."""
    return [line for function in functions for line in (*_definition(function), "")]


def _definition(f: Function) -> list[str]:
    lanes = "" if f.lanes == 1 else f.lanes
    first, word = f"{'uint' if _unsigned(f) else 'int'}{lanes}", f"int{lanes}"
    name = dot_name(f.dtype, f.lanes)
    guard = name.upper()
    return [
        f"#ifndef {guard}",
        f"#define {guard}",
        f"static {word} {name}(const {first} a, const {word} b, const {word} sum) {{",
        *_chosen([*_x86(f, word), *_standard(f, word)], _plain(f, word)),
        "}",
        "#endif",
    ]


def _chosen(ways: list[tuple[str, list[str]]], plain: list[str]) -> list[str]:
    """The first way whose macros are defined, else the plain one."""
    lines: list[str] = []
    for test, body in ways:
        lines += [f"#{'elif' if lines else 'if'} {test}", *body]
    return [*lines, "#else", *plain, "#endif"] if lines else plain


_X86 = {
    16: ("defined(__AVX512VNNI__)", 512),
    8: ("defined(__AVX512VNNI__) && defined(__AVX512VL__)", 256),
    4: ("defined(__AVX512VNNI__) && defined(__AVX512VL__)", 128),
}
"""By lanes: how a compiler says that it has the instruction, and the instruction's bits."""


def _x86(f: Function, word: str) -> list[tuple[str, list[str]]]:
    if not _unsigned(f) or f.lanes not in _X86:
        return []
    test, bits = _X86[f.lanes]
    values = ", ".join(f"__builtin_astype({name}, lanes)" for name in ("sum", "a", "b"))
    body = [
        f"  typedef int lanes __attribute__((__vector_size__({4 * f.lanes})));",
        f"  return __builtin_astype(__builtin_ia32_vpdpbusd{bits}(",
        f"      {values}), {word});",
    ]
    return [(test, body)]


def _standard(f: Function, word: str) -> list[tuple[str, list[str]]]:
    """OpenCL C's own function takes one word of each."""
    if f.lanes > _MOST_CALLS:
        return []
    parts = [""] if f.lanes == 1 else [f".s{i}" for i in range(f.lanes)]
    first = "a{0}" if _unsigned(f) else "(uint)a{0}"
    call = f"dot_4x8packed_{'us' if _unsigned(f) else 'ss'}_int({first}, (uint)b{{0}})"
    calls = [call.format(part) for part in parts]
    if f.lanes == 1:
        body = [f"  return sum + {calls[0]};"]
    else:
        body = [f"  return sum + ({word})(", *(f"      {c}," for c in calls[:-1])]
        body.append(f"      {calls[-1]});")
    return [("defined(__opencl_c_integer_dot_product_input_4x8bit_packed)", body)]


def _plain(f: Function, word: str) -> list[str]:
    """Products of bytes: each byte shifted up, and down again with its sign where it has one."""
    convert = f"convert_{word}" if _unsigned(f) else ""
    products = [f"{convert}({_high('a', i)}) * ({_high('b', i)})" for i in range(WIDTH)]
    return [
        f"  return sum + {products[0]}",
        *(f"      + {p}" for p in products[1:-1]),
        f"      + {products[-1]};",
    ]


def _unsigned(f: Function) -> bool:
    return f.dtype == "uint8x4"


def _high(word: str, byte: int) -> str:
    shift = 24 - 8 * byte
    return f"({word} << {shift}) >> 24" if shift else f"{word} >> 24"

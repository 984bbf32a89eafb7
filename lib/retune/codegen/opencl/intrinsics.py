"""Intrinsics in OpenCL C: a function for each shape, such as `dot4_us_8`, with its way's body, or
macros such as `TILE8_US_1_LOAD`."""

from collections.abc import Iterable, Sequence

from retune.codegen.kernel import Function
from retune.core.dtypes import INT7, INT8, UINT8
from retune.intrinsics import TILE_STEPS, Intrinsic, Shape, Way, intrinsic, intrinsics

LANGUAGE = "OpenCL C"
"""What the texts of ways are found under."""

_WORDS = {UINT8: "uint", INT8: "int", INT7: "int"}
"""Element type -> that of its words."""


def function_name(op: str, shape: Shape) -> str:
    """The name of the function."""
    return f"{op}_{shape}"


def function_lines(functions: Iterable[Function]) -> list[str]:
    """The lines that define the functions, each one once in a program of several kernels."""
    return [line for function in functions for line in (*_definition(function), "")]


def ways_in(text: str) -> frozenset[str]:
    """The full names of the ways that a program's text defines, as they head their definitions."""
    names = {entry.full_name(way) for entry in intrinsics() for way in entry.ways[:-1]}
    return frozenset(name for name in names if f"\n// {name}\n" in text)


def macro_name(function: Function, step: str) -> str:
    """The name of a step on matrix registers."""
    return f"{function_name(function.op, function.shape).upper()}_{step}"


def _macros(f: Function, way: str, texts: Sequence[str]) -> list[str]:
    """Macros, as registers are named by literal numbers."""
    lines = [f"#define {macro_name(f, text)}" for text in texts]
    return [f"#ifndef {macro_name(f, TILE_STEPS[0])}", f"// {way}", *lines, "#endif"]


def _of_warps(f: Function, way: Way, entry: Intrinsic) -> list[str]:
    """A function that takes the places of sums, and a macro that takes them by their names.

    The words of the second operand are lanes of vectors, one vector for each of an item's words.
    """
    assert entry.warp is not None, "whoever asks has looked"
    name = function_name(f.op, f.shape)
    sums, words = ["y0", "y1"], ["a", "b0", "b1"]
    given = [*(f"int4* {y}" for y in sums), "const uint2 a", "const int4 b0", "const int4 b1"]
    passed = [*(f"&{y}" for y in sums), *words]
    inline = "__attribute__((always_inline)) " if way.exchanged else ""  # PoCL: for its barriers
    if way.exchanged:
        given += ["__local int* all", "const int item"]
        first, second = entry.warp.first, entry.warp.items
        item = f"get_local_id(0) + {first} * get_local_id(1) + {second} * get_local_id(2)"
        passed += ["exchange", item]
    return [
        f"#ifndef {name.upper()}",
        f"// {entry.full_name(way)}",
        f"static {inline}void {name}({', '.join(given)}) {{",
        *(f"  {line}" for line in way.text[LANGUAGE](f.shape)),
        "}",
        f"#define {name.upper()}({', '.join([*sums, *words])}) {name}({', '.join(passed)})",
        "#endif",
    ]


def _definition(f: Function) -> list[str]:
    entry = intrinsic(f.op)
    way = next(way for way in entry.ways if way.name == f.way)
    if entry.of_tiles:
        return _macros(f, entry.full_name(way), way.text[LANGUAGE](f.shape))
    if entry.warp is not None:
        return _of_warps(f, way, entry)
    lanes = "" if f.shape.lanes == 1 else f.shape.lanes
    name = function_name(f.op, f.shape)
    operands = zip(entry.operands, f.shape.dtypes, strict=True)
    arguments = [f"const {_WORDS[dtype]}{lanes} {operand.name}" for operand, dtype in operands]
    return [
        f"#ifndef {name.upper()}",
        f"#define {name.upper()}",
        f"// {entry.full_name(way)}",
        f"static int{lanes} {name}({', '.join(arguments)}, const int{lanes} sum) {{",
        *(f"  {line}" for line in way.text[LANGUAGE](f.shape)),
        "}",
        "#endif",
    ]

"""Functions in OpenCL C that are one instruction where compilers know it.

PoCL's `rint` of a vector is some twenty instructions, its `floor` and `ceil` are a dozen; x86 has
had one since SSE4.1, Arm since version 8, and clang a function for each since version 14. Other
compilers, and those for GPUs, whose functions are instructions already, get OpenCL's own.
"""

from collections.abc import Iterable

from retune.ir.functions import FUNCTIONS, ScalarFunction


def macro_of(function: ScalarFunction) -> str:
    """The macro that stands for one of these functions."""
    return function.name.upper()


def rounding_lines(body: Iterable[str]) -> list[str]:
    """The lines before a kernel with such a body."""
    text = "\n".join(body)
    entries = [entry for entry in FUNCTIONS.values() if entry.builtin]
    return [line for e in entries if f"{macro_of(e)}(" in text for line in _definition(e)]


def _definition(entry: ScalarFunction) -> tuple[str, ...]:
    """The definition of the macro, once in a program of several kernels."""
    macro = macro_of(entry)
    return (
        f"#ifndef {macro}",
        "#if defined(__clang__) && (defined(__SSE4_1__) || defined(__aarch64__))",
        f"#if __has_builtin({entry.builtin})",
        f"#define {macro}(x) {entry.builtin}(x)",
        "#endif",
        "#endif",
        f"#ifndef {macro}",
        f"#define {macro}(x) {entry.opencl}(x)",
        "#endif",
        "#endif",
        "",
    )

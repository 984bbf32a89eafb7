"""Rounding to whole numbers in OpenCL C, by the processor's instruction where compilers take one.

PoCL's `rint` of a vector is some twenty instructions, its `floor` and `ceil` are a dozen; x86 has
had one since SSE4.1, Arm since version 8, and clang a function for each since version 14. Other
compilers, and those for GPUs, whose functions are instructions already, get OpenCL's own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rounding:
    """One way to round."""

    macro: str
    function: str
    """OpenCL C's own."""
    builtin: str
    """Clang's."""

    @property
    def lines(self) -> tuple[str, ...]:
        """The definition of the macro, once in a program of several kernels."""
        return (
            f"#ifndef {self.macro}",
            "#if defined(__clang__) && (defined(__SSE4_1__) || defined(__aarch64__))",
            f"#if __has_builtin({self.builtin})",
            f"#define {self.macro}(x) {self.builtin}(x)",
            "#endif",
            "#endif",
            f"#ifndef {self.macro}",
            f"#define {self.macro}(x) {self.function}(x)",
            "#endif",
            "#endif",
            "",
        )


ROUNDINGS: Mapping[str, Rounding] = {
    "round": Rounding("ROUND", "rint", "__builtin_elementwise_roundeven"),
    "floor": Rounding("FLOOR", "floor", "__builtin_elementwise_floor"),
    "ceil": Rounding("CEIL", "ceil", "__builtin_elementwise_ceil"),
}
"""By the functions of expressions; `round` is to the nearest, halves to even."""


def rounding_lines(body: Iterable[str]) -> list[str]:
    """The lines before a kernel with such a body."""
    text = "\n".join(body)
    return [line for way in ROUNDINGS.values() if f"{way.macro}(" in text for line in way.lines]

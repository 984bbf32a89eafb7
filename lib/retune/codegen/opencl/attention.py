"""Attention in OpenCL C: a function for each set of types and extents that its text depends on."""

from collections.abc import Iterable

from retune.codegen.opencl.prelude import once
from retune.codegen.opencl.types import type_name
from retune.intrinsics.attention import MMA, PRELUDE, Attention, attention_lines


def attention_functions(called: Iterable[Attention], form: str) -> list[str]:
    """The lines that define the functions that a kernel calls, each once in a program.

    `form` is the kernel's `attention`.
    """
    if not form:
        return []  # a part of a larger kernel: its text is there already
    lines = list[str]()
    for a in called:
        name, types = a.name.upper(), (a.dtype, a.made, a.bias or a.dtype)
        text = attention_lines(a, [*map(type_name, types)], form)
        head = [f"#define {name}", f"// {form}"]
        lines += once(name, *head, *text)
    shared = once("ATTENTION_LANE", "#define ATTENTION_LANE ATTENTION_LANE", *PRELUDE)
    return [*(shared if lines and form == MMA else ()), *lines]

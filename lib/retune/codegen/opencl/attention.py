"""Attention in OpenCL C: a function for each set of types and extents that its text depends on."""

from retune.codegen.kernel import GroupCall, Kernel, parts
from retune.codegen.opencl.prelude import once
from retune.codegen.opencl.types import type_name
from retune.intrinsics.attention import MMA, PRELUDE, attention_lines


def attention_functions(kernel: Kernel) -> list[str]:
    """The lines that define the functions that a kernel calls, each once in a program."""
    called = dict.fromkeys(p.function for p in parts(kernel.body) if isinstance(p, GroupCall))
    if not kernel.attention:
        return []  # a part of a larger kernel: its text is there already
    lines = list[str]()
    for a in called:
        name, types = a.name.upper(), (a.dtype, a.made, a.bias or a.dtype)
        text = attention_lines(a, [*map(type_name, types)], kernel.attention)
        head = [f"#define {name}", f"// {kernel.attention}"]
        lines += once(name, *head, *text)
    shared = once("ATTENTION_LANE", "#define ATTENTION_LANE ATTENTION_LANE", *PRELUDE)
    return [*(shared if called and kernel.attention == MMA else ()), *lines]

"""Kernels in OpenCL C: what they are given, and the functions that they consist of.

A kernel is given a pointer or an image for each parameter, or one address and a structure of
distances from it, see `target.ONE_BASE`. Groups of several work-items are one function, groups of
one are a function that others may call, and a kernel that does. Read `kernel_lines`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from retune.codegen.opencl.types import type_name

if TYPE_CHECKING:
    from retune.codegen.kernel import Kernel, Parameter


def kernel_lines(kernel: "Kernel", body: list[str]) -> list[str]:
    """The functions of a kernel, given the lines of its body."""
    name, parameters = kernel.name, kernel.parameters
    arguments = [_declared(p) for p in parameters]
    if kernel.called:
        return tile_function_lines(name, arguments, body)
    given = _based_arguments(name) if kernel.based else arguments
    if kernel.single_item:
        passed = [_from_base(p) if kernel.based else p.memory.name for p in parameters]
        code = single_item_kernel(name, arguments, passed, body, given)
    else:
        pairs = zip(arguments, parameters, strict=True)
        found = [f"{a} = {_from_base(p)};" for a, p in pairs] if kernel.based else []
        code = cooperative_kernel(name, kernel.local_size, given, [*found, *body])
    return [*(_distances(name, parameters) if kernel.based else ()), *code]


def group_function(kernel: str) -> str:
    """The name of the function that computes one work-group of a kernel."""
    return f"{kernel}_group"


def callable_only(text: str) -> str:
    """The text with its kernels as functions that nothing calls: for a program that only calls
    their groups.

    A driver that hands a program out compiles each kernel of it (PoCL: half of the first load of a
    network). The preprocessor does it, so that the text stays as it was printed.
    """
    macros = {
        "__kernel": "static __attribute__((unused))",
        "reqd_work_group_size(x, y, z)": "unused",
    }
    before = [f"#define {name} {meaning}" for name, meaning in macros.items()]
    after = [f"#undef {name.partition('(')[0]}" for name in macros]
    return "\n".join([*before, text, *after])


def tile_name(kernel: str) -> str:
    """The name of the function that a part of a larger group calls as a group of the kernel."""
    return f"{kernel}_tile"


def arena_line(kernel: str, size_bytes: int) -> str:
    """The local memory that a group is to be given: host programs in C read the macro."""
    return f"#define {tile_name(kernel)}_arena {size_bytes}"


def tile_function_lines(name: str, arguments: list[str], body: list[str]) -> list[str]:
    """A function of a group's number, an item's, and local memory."""
    own = ("const int3 group", "const int item", "__local uchar* arena")
    return [
        "#ifndef TILE_FUNCTION",
        "#define TILE_FUNCTION",
        "#endif",
        "TILE_FUNCTION",
        *_function(f"static void {tile_name(name)}", [*arguments, *own], body),
    ]


def cooperative_kernel(
    name: str, local: tuple[int, int, int], arguments: list[str], body: list[str]
) -> list[str]:
    """A kernel whose work-items form groups: one function."""
    size = ", ".join(map(str, local))
    head = f"__kernel __attribute__((reqd_work_group_size({size})))"
    return [head, *_function(f"void {name}", arguments, body)]


def _distances(kernel: str, parameters: "Sequence[Parameter]") -> list[str]:
    """The structure of distances from one address, which a kernel is given by value."""
    names = ", ".join(p.memory.name for p in parameters)
    return [f"typedef struct {{ ulong {names}; }} {kernel}_at;"]


def _based_arguments(kernel: str) -> list[str]:
    return ["__global uchar* base", f"const {kernel}_at at"]


def _from_base(p: "Parameter") -> str:
    """The pointer that an argument would have been."""
    return f"({_space(p)}*)(base + at.{p.memory.name})"


def _declared(p: "Parameter") -> str:
    """An argument of its own."""
    if p.memory.image is not None:
        return f"__read_only image2d_t {p.memory.name}"
    return f"{_space(p)}* restrict {p.memory.name}"


def _space(p: "Parameter") -> str:
    """What the parameter points to; what is only read is const, none overlap."""
    return f"__global {'' if p.written else 'const '}{type_name(p.memory.dtype)}"


def single_item_kernel(
    name: str,
    arguments: list[str],
    passed: list[str],
    body: list[str],
    given: list[str] | None = None,
) -> list[str]:
    """A kernel whose work-groups are one work-item each.

    Its body is a function of the group's number, which other kernels may call as well; `passed`
    are the values of the arguments, by those of the kernel, `given`, or else its own of the same
    names.

    The function is not inlined: what `restrict` says of its pointers would become scopes that the
    compiler asks about for each pair of accesses (PoCL: twice the time for a convolution, and
    slower code where the body is large), and each caller would hold its body once more.
    """
    function = group_function(name)
    ids = ", ".join(f"get_group_id({dim})" for dim in range(3))
    call = f"{function}({', '.join((*passed, f'(int3)({ids})'))});"
    return [
        "__attribute__((noinline))",
        *_function(f"static void {function}", [*arguments, "const int3 group"], body),
        "",
        *cooperative_kernel(name, (1, 1, 1), given or arguments, [call]),
    ]


def _function(head: str, arguments: list[str], body: list[str]) -> list[str]:
    given = ",\n".join(f"    {a}" for a in arguments)
    return [f"{head}(", f"{given})", "{", *(f"  {line}" for line in body), "}"]

"""Kernels of several programs in one: equal ones are shared, different ones of a name kept apart.

Programs that are generated one by one use the same names. Here the preprocessor gives a kernel
another name, so that its text stays as it was printed.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from retune.codegen.network.persistent import Callee
from retune.codegen.opencl.kernels import group_function


def join_kernels(kernels: Sequence[tuple[Callee, str]]) -> tuple[list[Callee], list[str]]:
    """Callees of several programs and the texts that define them, made fit for one program.

    Returns a callee for each one given, under its name in the joined program, and the texts to
    compile. Callees that are equal in all, their texts too, become one callee and one text.
    """
    joined: dict[tuple[Callee, str], Callee] = {}
    texts: list[str] = []
    taken: set[str] = set()
    for callee, text in kernels:
        if (callee, text) in joined:
            continue
        name = callee.kernel
        if name in taken:
            name = _unused(name, [other for _, other in kernels], taken)
            texts.append(_renamed(text, callee.kernel, name))
        else:
            texts.append(text)
        taken.add(name)
        joined[callee, text] = replace(callee, kernel=name)
    return [joined[kernel] for kernel in kernels], texts


def _unused(name: str, texts: Sequence[str], taken: set[str]) -> str:
    """A name that no text contains: registers and loops inside a kernel have names as well."""
    fresh = (f"{name}_c{number}" for number in count(1))
    return next(n for n in fresh if n not in taken and not any(n in text for text in texts))


def _renamed(text: str, old: str, new: str) -> str:
    """The text with its kernel, and the function of one work-group, under another name."""
    names = {old: new, group_function(old): group_function(new)}
    before = [f"#define {a} {b}" for a, b in names.items()]
    after = [f"#undef {a}" for a in names]
    return "\n".join([*before, text, *after])

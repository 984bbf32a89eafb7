"""Packed constants come from memory before they are used.

A packed operand lies in the order in which its reduction reads it, so where the next reads go is
known: a fixed way ahead in the stream. The weights of a network are more than its caches hold;
each layer's come from main memory, and a core that waits for them at each vector reaches a
quarter of the memory's rate. Asked for ahead of time they arrive beside the arithmetic (measured in
turns: resnet50 0.93 of the time, resnet18 0.96, vgg19 0.96, squeezenet 0.98; mobilenet, whose
weights the last cache holds, 1.01).

Only kernels of one-item groups do this, as CPUs run them: GPUs hide the way to memory by other
items. Reads past the end of a buffer are asked for too, which is harmless: a prefetch cannot fail.
"""

from retune.codegen import opencl
from retune.codegen.addresses import Place
from retune.ir.expr import Buffer
from retune.ir.flat import elements

AHEAD_BYTES = 8192
"""How far ahead. Twice as much was slower, half as much the same (measured)."""
_LINE_BYTES = 64
_LEAST_BYTES = 1 << 16
"""Smaller constants stay in the first caches once they are there."""

_MACRO = "AHEAD"

DEFINITIONS = (
    f"#ifndef {_MACRO}",
    "#ifdef __clang__",
    f"#define {_MACRO}(address) __builtin_prefetch(address, 0, 3)",
    "#else",
    f"#define {_MACRO}(address)",
    "#endif",
    "#endif",
    "",
)
"""Lines before a kernel that uses `fetch`, once in a program of several kernels."""


def is_stream(buffer: Buffer) -> bool:
    """Whether a packed constant is worth fetching ahead of its use."""
    return elements(buffer) * opencl.element_bytes(buffer.dtype) >= _LEAST_BYTES


def fetch(pointer: str, read: Place) -> str | None:
    """A statement that fetches what lies ahead of a read; None where its line was asked for."""
    size = opencl.element_bytes(read.buffer.dtype)
    if read.offset * size % _LINE_BYTES:
        return None
    return f"{_MACRO}({pointer} + {read.index} + {AHEAD_BYTES // size});"

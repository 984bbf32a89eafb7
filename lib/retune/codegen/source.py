"""What code generation hands to a device: text, arguments, ranges, and a content key.

A ProgramSource is self-contained: building and running it needs no IR.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np

from retune.core.dtypes import itemsize
from retune.core.keys import content_key

Role = Literal["input", "constant", "output", "scratch"]


class Pack(Protocol):
    """Makes what a kernel reads, at compile time, from constants of the task."""

    def apply(self, *arrays: np.ndarray) -> np.ndarray:
        """The operand, contiguous: [BufferSpec.elements]; the arrays are BufferSpec.sources'."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelArg:
    """One argument: a `__global` pointer, or an image, see `BufferSpec.image`."""

    buffer: str
    """Name of a BufferSpec of the same program."""
    written: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSource:
    """One OpenCL kernel: its function's text and how to launch it."""

    name: str
    """Entry point; unique within its program."""
    text: str
    args: tuple[KernelArg, ...]
    global_size: tuple[int, int, int]
    local_size: tuple[int, int, int]
    flops: int
    """Arithmetic operations of one launch, counted from the tensor expression."""
    bytes: int
    """Bytes of the distinct elements read and written: the least traffic of one launch."""
    called: str = ""
    """The text of its group as a function that groups which stay call, see `codegen.resident`; ''
    where the device has no such groups, or groups are single items."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferSpec:
    """A buffer that a program's kernels read or write."""

    name: str
    dtype: str
    elements: int
    role: Role
    pack: Pack | None = None
    """For constants: applied to the arrays of `sources` before upload."""
    computed_from: tuple[str, ...] = ()
    """For constants that stages compute at compile time: the task's constants behind them."""
    image: int = 0
    """For constants that kernels read through an image: texels of a row, of four elements each; its
    elements fill rows. 0: it is an array."""

    @property
    def bytes(self) -> int:
        """Its size."""
        return self.elements * itemsize(self.dtype)

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the task's arrays that this buffer's contents are made of."""
        return self.computed_from or (self.name,)


@dataclass(frozen=True, kw_only=True)
class ProgramSource:
    """Kernels launched in order, the buffers between them, and build options."""

    kernels: tuple[KernelSource, ...]
    buffers: tuple[BufferSpec, ...]
    options: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The whole OpenCL C program."""
        return "\n".join(kernel.text for kernel in self.kernels)

    @cached_property
    def key(self) -> str:
        """Content key of text, launches and options: equal keys run the same code."""
        launches = [(k.name, k.global_size, k.local_size) for k in self.kernels]
        return content_key(self.text, launches, self.options)

    def buffer(self, name: str) -> BufferSpec:
        """The buffer of that name. Raises: KeyError."""
        for spec in self.buffers:
            if spec.name == name:
                return spec
        raise KeyError(name)

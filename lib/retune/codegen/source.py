"""The program record: kernels, their launches, and the buffers between them, as plain data.

Code generation makes it; devices, boards and bundles hold the same classes. A ProgramSource is
self-contained: building and running it needs no IR, and nothing is read from its kernels' texts.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, Protocol

import numpy as np

from retune.core.dims import SizeValues, at, is_fixed, most
from retune.core.dtypes import itemsize
from retune.core.keys import content_key

Role = Literal["input", "output", "weight", "temp", "size"]
"""What a buffer is for. A weight is a constant, packed or not; a temp lies between kernels. A size
is the value of a `core.dims.Size` of that name: one int32."""

_STREAMING = 16
"""Operations for each byte up to which a kernel waits for memory, on GPUs: an H100 does 20."""
MOST_LINKS = 32
"""Launches in a row that one kernel may run, see `network.chains`."""
GIVEN: frozenset[Role] = frozenset({"input", "weight", "size"})
"""Roles of buffers that a caller fills."""


class Pack(Protocol):
    """Makes what a kernel reads, at compile time, from constants of the task."""

    def apply(self, *arrays: np.ndarray) -> np.ndarray:
        """The operand, contiguous: as many elements as its buffer has."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelText:
    """A kernel: its text, and all that who launches it needs to know of the text."""

    name: str
    """Entry point; unique within its program."""
    text: str
    called: str = ""
    """The text of its group as a function that persistent groups call, see `network.resident`; ''
    where the device has no such groups, or groups are single items."""
    single_item: bool = False
    """Its work-groups are single work-items, and a function that other kernels may call."""
    images: tuple[int, ...] = ()
    """The numbers of its arguments that are images; the others are `__global` pointers."""
    arena_bytes: int | None = None
    """Local memory that `called` is to be given; None where the text has no such function."""
    intrinsics: tuple[str, ...] = ()
    """Full names of the implementations of intrinsics that a device must offer."""

    def renamed(self, name: str) -> "KernelText":
        """The same under another name; '' leaves it as it is.

        In its text also the names that are made of it, such as those of functions and macros.
        """
        if name in ("", self.name):
            return self
        own = re.compile(rf"\b{re.escape(self.name)}(?=\b|_(?:group|tile|tile_arena|at)\b)")
        text, called = (own.sub(name, each) for each in (self.text, self.called))
        return replace(self, name=name, text=text, called=called)


_SMALL_BYTES, _SMALL_FLOPS = 24_576, 65_536
"""Of a kernel that takes a core about a microsecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLaunch:
    """One kernel launch: which kernel, on which buffers, over which range.

    The global size and the counts of its work may be Dims, in terms of sizes.
    """

    kernel: str
    """Entry point."""
    args: tuple[str, ...]
    """Names of buffers in the order of the kernel's arguments."""
    global_size: tuple[int, ...]
    """Work-items along each axis; they may depend on sizes."""
    local_size: tuple[int, ...]
    label: str = ""
    """In a network: name of the fused group that the launch belongs to."""
    flops: int
    """Arithmetic operations of one launch, counted from the tensor expression."""
    bytes: int
    """Bytes of the distinct elements read and written: the least traffic of one launch."""
    writes: tuple[str, ...]
    """The arguments that the kernel writes."""

    @property
    def streams(self) -> bool:
        """Whether it waits for memory rather than for arithmetic, on GPUs."""
        return most(self.flops) <= _STREAMING * most(self.bytes)

    def at(self, values: SizeValues) -> "KernelLaunch":
        """The launch for these values of sizes."""
        return replace(
            self,
            global_size=tuple(at(n, values) for n in self.global_size),
            flops=at(self.flops, values),
            bytes=at(self.bytes, values),
        )

    @property
    def small(self) -> bool:
        """Whether it takes a core no longer than waiting for others to finish it, for any sizes."""
        return most(self.bytes) <= _SMALL_BYTES and most(self.flops) <= _SMALL_FLOPS

    @property
    def read(self) -> tuple[str, ...]:
        """The arguments that the kernel only reads."""
        return tuple(name for name in self.args if name not in self.writes)


Run = tuple[KernelText, KernelLaunch]
"""A launch with its kernel."""


def three(sizes: Sequence[int]) -> tuple[int, int, int]:
    """The sizes along three axes; those that are not stated are 1."""
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramBuffer:
    """A buffer that kernels read or write: its type, its logical shape and what it is for.

    Elements and shape may be Dims, in terms of sizes.
    """

    name: str
    dtype: str
    elements: int
    role: Role
    shape: tuple[int, ...] = ()
    """In a network: the logical shape. A packed weight may hold more elements than its shape says;
    nothing else.

    An output that a host step makes may have UNKNOWN extents; its elements are 0 then, as nothing
    is kept for it.
    """
    image: int = 0
    """Of a weight that kernels read through an image: texels of a row, of four elements each, which
    its elements fill. It lies in no allocation then. 0: it is an array."""

    def at(self, values: SizeValues) -> "ProgramBuffer":
        """The buffer for these values of sizes."""
        if is_fixed(self.elements) and all(map(is_fixed, self.shape)):
            return self
        shape = tuple(at(n, values) for n in self.shape)
        return replace(self, elements=at(self.elements, values), shape=shape)

    @property
    def bytes(self) -> int:
        """Size of the buffer in memory, without alignment."""
        return self.elements * itemsize(self.dtype)

    @property
    def most_bytes(self) -> int:
        """Its size for the largest sizes, or a bound above it."""
        return most(self.elements) * itemsize(self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How the contents of a weight come from the task's arrays."""

    pack: Pack | None = None
    """Applied to the arrays of `sources` before upload; None: they are its one source as it is."""
    sources: tuple[str, ...]
    """Names of the task's arrays."""


@dataclass(frozen=True, kw_only=True)
class Launched:
    """What a program and the plan of a network have in common: kernels, launches and buffers."""

    kernels: tuple[KernelText, ...]
    launches: tuple[KernelLaunch, ...]
    buffers: tuple[ProgramBuffer, ...]

    @property
    def runs(self) -> tuple[Run, ...]:
        """The launches in order, each with its kernel."""
        kernels = {kernel.name: kernel for kernel in self.kernels}
        return tuple((kernels[launch.kernel], launch) for launch in self.launches)

    @property
    def single_item(self) -> bool:
        """Whether persistent workers can run every kernel."""
        return all(kernel.single_item for kernel in self.kernels)

    def buffer(self, name: str) -> ProgramBuffer:
        """The buffer of that name. Raises: KeyError."""
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> Mapping[str, ProgramBuffer]:
        return {buffer.name: buffer for buffer in self.buffers}


@dataclass(frozen=True, kw_only=True)
class ProgramSource(Launched):
    """Kernels, their launches in order, the buffers between them, and build options."""

    options: tuple[str, ...] = ()
    packings: Mapping[str, Packing] = field(default_factory=dict[str, Packing], compare=False)
    """By name, of weights whose contents are not an array of the task of that name."""

    @property
    def text(self) -> str:
        """The whole OpenCL C program."""
        return "\n".join(kernel.text for kernel in self.kernels)

    @cached_property
    def key(self) -> str:
        """Content key of text, launches and options: equal keys run the same code."""
        launches = [
            (launch.kernel, launch.global_size, launch.local_size) for launch in self.launches
        ]
        return content_key(self.text, launches, self.options)

    def at(self, values: SizeValues) -> "ProgramSource":
        """The program for these values of its sizes: its extents and launches are integers."""
        return replace(
            self,
            launches=tuple(launch.at(values) for launch in self.launches),
            buffers=tuple(buffer.at(values) for buffer in self.buffers),
        )

    @property
    def sizes(self) -> tuple[str, ...]:
        """Names of the sizes whose values kernels read."""
        return tuple(buffer.name for buffer in self.buffers if buffer.role == "size")

    @property
    def unpacked(self) -> "ProgramSource":
        """The program without the recipes of its packed weights: plain data."""
        return replace(self, packings={})

    @property
    def flops(self) -> int:
        """Arithmetic operations of one run."""
        return sum(launch.flops for launch in self.launches)

    def packing(self, name: str) -> Packing:
        """Where the contents of that buffer come from."""
        return self.packings.get(name) or Packing(sources=(name,))

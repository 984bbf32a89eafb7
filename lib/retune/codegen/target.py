"""Targets of code generation, as plain data: how groups run, and how to compile.

Callers know the device and hand its target to `lower`; no pass looks for a device's class.
"""

from dataclasses import dataclass

from retune.codegen.opencl.renderer import OPENCL
from retune.codegen.options import BUILD_OPTIONS
from retune.codegen.printing import Renderer
from retune.core.target import MOST_DEEP_ITEMS, MOST_GROUPS
from retune.ir.stmt import Stmt, blocks, loops

ONE_BASE = "launch.one_base"
"""What a device offers where kernels reach all of its memory from one address.

They are then given that, and a structure of distances in bytes from it: NVIDIA's driver takes time
for each argument of a launch (H100's host: 7.6 us with one, 12.4 with four, 16.8 with eight).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Work-groups of one sort."""

    single_item: bool
    """Of one work-item: the group's number comes as an argument, other kernels may call it."""
    aligned_vectors: bool
    """Whether a vector that surely starts on its own size is accessed as one.

    CPUs read vectors anywhere at one speed.
    """
    prefetch: bool
    """Whether streams are fetched ahead: GPUs hide the way to memory by other items."""
    most: int | None = None
    """Groups on the second and on the third axis at most; None where a driver counts them."""
    most_deep: int | None = None
    """Items of a group on the third axis at most; None where a group has one."""


PAST_BYTES = 32 << 20
"""Of an array that does not stay in a cache. Less is in the last one of many processors when it is
read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What the kernels of a program are made for."""

    alone: Groups
    """Groups of nests that bind no loop to work-items."""
    together: Groups
    """Groups of work-items that share memory or work."""
    options: tuple[str, ...] = BUILD_OPTIONS
    renderer: Renderer = OPENCL
    """What writes them."""
    past_bytes: int = PAST_BYTES
    """Least size of arrays that are stored past the caches."""
    offers: tuple[str, ...] = ()
    """The implementations of intrinsics that are there beside those that all devices have;
    `ONE_BASE`; those of `resident.WAYS` by which groups may stay."""

    def offers_none(self, *names: str) -> bool:
        """Whether none of these is there."""
        return not any(name in self.offers for name in names)

    def groups(self, nest: Stmt) -> Groups:
        """How the groups of a nest run."""
        local = any(n.kind.startswith("local") for n in loops(nest))
        shares = local or any(b.buffer.scope == "local" for b in blocks(nest))
        return self.together if shares else self.alone


_TOGETHER = Groups(
    single_item=False,
    aligned_vectors=True,
    prefetch=False,
    most=MOST_GROUPS,
    most_deep=MOST_DEEP_ITEMS,
)

CPU = Target(
    alone=Groups(single_item=True, aligned_vectors=False, prefetch=True), together=_TOGETHER
)
GPU = Target(
    alone=Groups(single_item=True, aligned_vectors=False, prefetch=False), together=_TOGETHER
)

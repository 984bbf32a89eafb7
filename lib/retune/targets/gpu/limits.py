"""Limits of a GPU on a kernel, as conditions on the candidates of a schedule.

Read `keep_to_limits`.
"""

from math import prod

from retune.core.target import MOST_DEEP_ITEMS, MOST_GROUPS, DeviceSpec
from retune.ir.expr import Expr, const
from retune.ir.stmt import Stmt, blocks, is_compile_time, loops
from retune.schedule.binding import GROUP_AXES, ITEM_AXES
from retune.schedule.schedule import Schedule
from retune.targets.gpu.images import TEXEL, image_elements

_LINE_BYTES = 64
"""Where a buffer in local memory may start: generated kernels align them so."""


def keep_to_limits(s: Schedule, spec: DeviceSpec, *, declared: bool = False) -> None:
    """Items, groups and local memory of every kernel, and images, are within the device's limits.

    Local memory is what the driver states, or with `declared` what kernels may declare.

    Raises: ScheduleError where no candidate does.
    """
    room = spec.declared_local_bytes if declared else spec.local_memory_bytes
    for root in s.program.body.stmts:
        if is_compile_time(root):
            continue
        extents = {n.kind: n.extent for n in loops(root)}
        items = [extents.get(axis, const(1)) for axis in ITEM_AXES]
        s.require(prod(items, start=const(1)) <= spec.max_work_group, "too many items in a group")
        s.require(items[-1] <= MOST_DEEP_ITEMS, f"too many items on {ITEM_AXES[-1]}")
        s.require(_local_bytes(root) <= room, "local memory is too small")
        for axis in GROUP_AXES[1:]:
            s.require(extents.get(axis, const(1)) <= MOST_GROUPS, f"too many groups on {axis}")

    _keep_images_to_limits(s, spec)


def _keep_images_to_limits(s: Schedule, spec: DeviceSpec) -> None:
    """Every image is one that the device has."""
    for name, texels in s.program.images:
        s.require(const(texels) <= spec.image_width, f"{name}: the rows of its image are too long")
        size = image_elements(s.program, name)
        rows = (size + (TEXEL * texels - 1)) // (TEXEL * texels)
        s.require(rows <= spec.image_height, f"{name}: its image has too many rows")


def _local_bytes(root: Stmt) -> Expr:
    """Local memory of a group that runs the nest."""
    held: Expr = const(0)
    for buffer in dict.fromkeys(b.buffer for b in blocks(root) if b.buffer.scope == "local"):
        size = prod(buffer.shape, start=const(buffer.dtype.itemsize))
        held = held + (size + (_LINE_BYTES - 1)) // _LINE_BYTES * _LINE_BYTES
    return held

"""Buffers between guard bytes, which show whether a kernel wrote beyond them.

A candidate that writes beyond a buffer may compute the right outputs, and spoil whatever lies there
in its network. Read `guarded`, `unwritten` and `overrun`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from retune.device.opencl.runtime import PART_ALIGN_BYTES, Device, DeviceMemory

GUARD_BYTES = PART_ALIGN_BYTES
"""Before a buffer and, at least, behind it: a vector or a row of a tile lies in them."""
_PATTERN = 0xA5
_UNWRITTEN = 0x7B
"""As float16 6e4, as bfloat16 and float32 1e36, as float64 8e286, as int8 123."""


@dataclass(frozen=True, slots=True, eq=False)
class GuardedBuffer:
    """A buffer with the allocation that it is the middle of."""

    memory: DeviceMemory
    """What kernels are given."""
    whole: DeviceMemory
    """With the guard bytes. It lives as long as the buffer is used."""


def guarded(device: Device, array: np.ndarray) -> GuardedBuffer:
    """A buffer that holds a copy of the array, and nothing but guard bytes around it."""
    size = max(1, array.nbytes)
    content = np.full(size + 2 * GUARD_BYTES, _PATTERN, np.uint8)
    content[GUARD_BYTES : GUARD_BYTES + array.nbytes] = (
        np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    )
    whole = device.upload(content)
    return GuardedBuffer(device.part(whole, GUARD_BYTES, size), whole)


def unwritten(device: Device, size_bytes: int, old: GuardedBuffer | None = None) -> GuardedBuffer:
    """A buffer that nothing was written to, with guard bytes around it: `old` itself if it has that
    size.

    Its elements are far from what a kernel computes, and no NaN, whatever their type.
    """
    size = max(1, size_bytes)
    if old is None or old.memory.bytes != size:
        whole = device.allocate(size + 2 * GUARD_BYTES)
        old = GuardedBuffer(device.part(whole, GUARD_BYTES, size), whole)
    device.fill(old.whole, _PATTERN)
    device.fill(old.memory, _UNWRITTEN)
    return old


def padded(device: Device, size_bytes: int) -> GuardedBuffer:
    """A buffer of zeros amid others, where a kernel that is only tried may write, too."""
    size = max(1, size_bytes)
    whole = device.allocate(size + 2 * GUARD_BYTES)
    return GuardedBuffer(device.part(whole, GUARD_BYTES, size), whole)


def overrun(device: Device, buffers: Mapping[str, GuardedBuffer]) -> str:
    """Which buffers a kernel wrote beyond, and where; '' if it wrote beyond none."""
    for name, buffer in buffers.items():
        before, behind = _guards(device, buffer)
        for written, where in (
            (np.flatnonzero(before[::-1] != _PATTERN), "before its first byte"),
            (np.flatnonzero(behind != _PATTERN), "behind its last byte"),
        ):
            if len(written):
                return (
                    f"buffer {name!r} of {buffer.memory.bytes} bytes: expected no write beyond it, "
                    f"got one to {len(written)} guard bytes, the nearest {written[0] + 1} {where}"
                )
    return ""


def _guards(device: Device, buffer: GuardedBuffer) -> tuple[np.ndarray, np.ndarray]:
    """The bytes before and behind the buffer."""
    before = np.empty(GUARD_BYTES, np.uint8)
    device.read_into(buffer.whole, before)
    end = GUARD_BYTES + buffer.memory.bytes
    start = end // PART_ALIGN_BYTES * PART_ALIGN_BYTES  # where a part may begin
    rest = np.empty(buffer.whole.bytes - start, np.uint8)
    device.read_into(device.part(buffer.whole, start, rest.nbytes), rest)
    return before, rest[end - start :]

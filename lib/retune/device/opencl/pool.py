"""Constants of a candidate that is timed: as far away as they are in the network.

A network reads each of its weights once an inference. Where all of them together exceed the last
cache, every kernel gets its own from main memory. Calls of one kernel again and again would find
them in the caches, and favour schedules that are slower in their place: of 20 candidates of a 3x3
layer with 512 channels at 7x7, the winner so took 869 us in a chain of ten such layers, the winner
by the way below 667 (`benchmarks.in_place`; in calmer hours both find the same one).

So successive calls read from successive windows of one pool: the first window holds the
candidate's constants, the others random numbers, which take the same time. Where one repeat of a
measurement ends, the next one goes on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from retune.codegen.source import ProgramSource
from retune.core.dtypes import FLOAT32, TensorType
from retune.device.measure.inputs import random_array
from retune.device.opencl.runtime import Device, DeviceMemory, aligned

_CACHES = 4
"""A pool this many times the last cache is out of it, however that chooses what to keep."""
_FILLING = TensorType((1 << 18,), FLOAT32)
"""Random numbers that the pool holds over and over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """How a job's constants lie one after the other."""

    offsets: Mapping[str, int]
    """Bytes from the start, by the constant's name."""
    bytes: int
    movable: bool
    """The pool's numbers may stand for them: they are of that type. An integer could be an index,
    and what is a number in one type may be a denormal in another."""

    @classmethod
    def of(cls, job: ProgramSource) -> Self:
        """The window of the job's constants, in the order of its buffers."""
        constants = [spec for spec in job.buffers if spec.role == "weight"]
        offsets: dict[str, int] = {}
        end = 0
        for spec in constants:
            offsets[spec.name] = end
            end += aligned(spec.bytes)
        movable = all(spec.dtype == _FILLING.dtype for spec in constants)
        return cls(offsets=offsets, bytes=end, movable=movable)


class ConstantPool:
    """One allocation of a device for the constants of whichever job is timed."""

    def __init__(self, device: Device) -> None:
        """Allocates nothing yet."""
        self._device = device
        caches = max(device.spec.l2_bytes, device.spec.l3_bytes)
        self._most_bytes = _CACHES * caches
        self._buffer: DeviceMemory | None = None

    def place(
        self, window: Window, arrays: Mapping[str, np.ndarray], spread_bytes: int
    ) -> tuple[DeviceMemory, int]:
        """The pool with these arrays in its first window, and how many windows may be used.

        The windows fill `spread_bytes`, but no more than it takes to be out of the caches.
        """
        if window.movable:
            number = max(1, min(spread_bytes, self._most_bytes) // max(1, window.bytes))
            buffer = self._filled(number * window.bytes)
        else:
            number, buffer = 1, self._device.allocate(window.bytes)
        for name, offset in window.offsets.items():
            self._device.write(buffer, arrays[name], offset)
        return buffer, number

    def _filled(self, size_bytes: int) -> DeviceMemory:
        """The pool, of that size at least."""
        if self._buffer is None or self._buffer.bytes < size_bytes:
            self._buffer = None  # freed before its successor is allocated
            block = random_array(_FILLING)
            blocks = max(1, -(-size_bytes // block.nbytes))
            buffer = self._device.allocate(blocks * block.nbytes)
            for number in range(blocks):
                self._device.write(buffer, block, number * block.nbytes)
            self._buffer = buffer
        return self._buffer

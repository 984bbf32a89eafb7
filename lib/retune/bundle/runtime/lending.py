"""Large inputs and outputs of a run where the caller has them, on a device that shares memory.

Read `Lending.memories`. An input is read in the caller's own array. An output lies in memory of the
module that is the caller's as long as there is an array of it: a later run takes another one, and
comes back to it when the last such array is gone. Who keeps more outputs than there are memories
gets copies. The kernel is told where they lie for this one run; what is timed by itself uses the
module's own memory, in which the first run leaves its inputs.
"""

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from retune.bundle.runtime.allocations import Allocations
from retune.device.opencl.runtime import Device, DeviceMemory

_MOST_KEPT = 3
"""Memories of an output: the result of the last call, that of this one, and one more."""


class _Loan:
    """What all arrays of a memory refer to, so that it is gone when they are."""

    __slots__ = ("__array_interface__", "__weakref__", "_memory")

    def __init__(self, memory: DeviceMemory, interface: Mapping[str, Any]) -> None:
        """`interface` is that of the memory, which numpy takes a microsecond to state."""
        self._memory = memory
        self.__array_interface__ = interface


class OutputMemories:
    """Memories of so many bytes, each of which is lent to one caller at a time."""

    def __init__(self, device: Device, size_bytes: int) -> None:
        self._device, self._bytes = device, size_bytes
        self._kept: list[tuple[DeviceMemory, Mapping[str, Any]]] = []
        self._loans: list[weakref.ref[_Loan]] = []

    def take(self) -> DeviceMemory | None:
        """One that nobody has an array of, lent until the last array of its `host` is gone.

        None if all are lent.
        """
        number = next((n for n, loan in enumerate(self._loans) if loan() is None), len(self._loans))
        if number == _MOST_KEPT:
            return None
        if number == len(self._kept):
            made = self._device.allocate_shared(self._bytes)
            assert made.host is not None, "host and device share memory"
            self._kept.append((made, made.host.__array_interface__))
        memory, interface = self._kept[number]
        loan = _Loan(memory, interface)
        self._loans[number : number + 1] = [weakref.ref(loan)]
        return DeviceMemory(memory.handle, memory.bytes, np.asarray(loan))


class Lending:
    """What runs on some memory may use in the stead of their own."""

    def __init__(self, held: Allocations, roots: Mapping[str, str], device: Device) -> None:
        placement = held.placement
        numbers = {root: placement.memory[root].base for root in placement.lent}
        self.bases = {name: numbers[root] for name, root in roots.items() if root in numbers}
        """Numbers of the allocations of values that may lie elsewhere."""
        self._device = device
        self._sizes = placement.base_bytes
        self._memories: dict[int, OutputMemories] = {}

    def memories(
        self, inputs: Mapping[str, np.ndarray], outputs: Iterable[int]
    ) -> dict[int, DeviceMemory]:
        """By the numbers of allocations, what a run uses in their stead: the arrays of inputs,
        where kernels can read them as they are, and for outputs memory that is the caller's."""
        found: dict[int, DeviceMemory] = {}
        for name in self.bases.keys() & inputs.keys():
            if (lent := self._device.lend(inputs[name])) is not None:
                found[self.bases[name]] = lent
        for number in outputs:
            if number not in self._memories:
                self._memories[number] = OutputMemories(self._device, self._sizes[number])
            if (lent := self._memories[number].take()) is not None:
                found[number] = lent
        return found

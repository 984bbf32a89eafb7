"""The memory of a plan on a device: its allocations, with the weights at their offsets, and images
of those weights that kernels read so. Sessions have allocations for their states, and share the
others."""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Thread

import numpy as np

from retune.bundle.memory import MemoryPlan, plan_memory
from retune.bundle.plan import NetworkPlan
from retune.bundle.runtime.placement import (
    AFTER,
    BEFORE,
    INTERFACE,
    WEIGHTS,
    Placement,
    lay_out,
)
from retune.bundle.weights import forget_pages
from retune.device.opencl.runtime import Device, DeviceMemory

_BLOCK_BYTES = 1 << 22
"""Of weights that are copied at once."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Allocations:
    """Where the values of a plan lie on a device."""

    memory: MemoryPlan
    placement: Placement
    bases: Sequence[DeviceMemory]
    """The allocations in the order of their numbers; the host reads and writes the interface in
    place where the device allows it."""
    images: Mapping[str, DeviceMemory]
    """By the names of the weights that lie in no allocation."""

    def interface(self, name: str, device: Device) -> DeviceMemory:
        """The memory of an input, output, state or size, for the largest sizes."""
        found = self.placement.memory[name]
        return device.part(self.bases[found.base], found.offset, max(1, found.bytes))

    def with_states(self, device: Device) -> "Allocations":
        """The same with zeros as states, in memory of their own."""
        shared, lent = self.bases[: INTERFACE + 1], self.bases[self.placement.first_lent :]
        own = map(device.allocate_shared, self.placement.state_bytes)
        return replace(self, bases=(*shared, *own, *lent))

    @property
    def turned(self) -> "Allocations":
        """The same after a run: what was made of states is what is read of them."""
        bases = list(self.bases)
        bases[BEFORE], bases[AFTER] = bases[AFTER], bases[BEFORE]
        return replace(self, bases=bases)


@contextmanager
def allocated(
    plan: NetworkPlan, device: Device, lent: Sequence[str] = ()
) -> Generator[Allocations]:
    """Memory for every value of the plan; the weights are in it when the context ends.

    Meanwhile a thread copies them, where the host reaches the device's memory. Sizes have their
    least values. Roots that are `lent` have allocations of their own.
    """
    memory = plan_memory(plan)
    placement = lay_out(plan, memory, lent)
    bases = [
        device.allocate(size, written=number == WEIGHTS)
        for number, size in enumerate(placement.base_bytes[:INTERFACE])
    ]
    bases += map(device.allocate_shared, placement.base_bytes[INTERFACE:])
    rows = {entry.name: entry.image for entry in plan.buffers if entry.image}
    images: dict[str, DeviceMemory] = {}
    for name, array in plan.weights.items():
        if name in rows:
            images[name] = device.upload(array, rows[name])
            forget_pages(array)
    for each in plan.sizes:  # a size that is fixed has its value from here on
        value = np.array([each.size.least], np.int32)
        device.write(bases[INTERFACE], value, placement.memory[each.buffer].offset)
    placed = [(placement.memory[n].offset, a) for n, a in plan.weights.items() if n not in rows]
    with _uploaded(placed, bases[WEIGHTS], device):
        yield Allocations(memory=memory, placement=placement, bases=bases, images=images)


@contextmanager
def _uploaded(
    placed: Sequence[tuple[int, np.ndarray]], base: DeviceMemory, device: Device
) -> Generator[None]:
    """The arrays lie at their offsets when the context ends."""
    with device.mapped(base) as memory:
        if memory is None:
            for first, block in _blocks(placed):
                device.write(base, block, first)
            yield
            return
        failed = list[Exception]()

        def copy() -> None:
            try:
                for first, block in _blocks(placed):
                    memory[first : first + block.size] = block
            except Exception as error:  # noqa: BLE001 - raised below
                failed.append(error)

        thread = Thread(target=copy, name="weights", daemon=True)
        thread.start()
        try:
            yield
        finally:
            thread.join()
        if failed:
            raise failed[0]


def _blocks(placed: Iterable[tuple[int, np.ndarray]]) -> Iterator[tuple[int, np.ndarray]]:
    """The arrays' bytes in blocks with their offsets; of the file behind them, one block is in
    memory at a time."""
    for offset, array in placed:
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for first in range(0, raw.size, _BLOCK_BYTES):
            block = raw[first : first + _BLOCK_BYTES]
            yield offset + first, block
            forget_pages(block)

"""A whole network with finalists for its steps, on a device: how long does each take in it?

Read `open_finalists`, then `FinalistsRunner.times`. On CPUs with a clock that kernels can read, one
kernel runs the network, and every iteration gives the time of every slot (see
`codegen.network.in_network`). Elsewhere whole iterations are timed, and finalists are told apart by
what they do to the network's time.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np

from retune.bundle.build import FinalistsPlan
from retune.bundle.plan import made_by_hosts
from retune.bundle.runtime.allocations import Allocations, allocated
from retune.bundle.runtime.executor import queued_launches
from retune.bundle.runtime.hazards import dependencies, union
from retune.bundle.runtime.module import sample_inputs
from retune.bundle.runtime.placement import touched
from retune.bundle.runtime.rows import callees_of, steps_of
from retune.codegen.network import in_network, persistent
from retune.codegen.network.in_network import in_network_text
from retune.device.opencl.clock import clock_hz
from retune.device.opencl.persistent import can_persist
from retune.device.opencl.runtime import Device, PreparedKernel

_CALLS = 2
"""Times that an iteration runs; the last one counts: the others fill the caches."""


class FinalistsRunner(ABC):
    """Runs the network with one finalist in each slot, as often as it is asked to."""

    resolved: ClassVar[bool]
    """True: the time of each slot is known. False: only that of a whole iteration."""

    def __init__(self, plan: FinalistsPlan, memory: Allocations, device: Device) -> None:
        """The network of the plan, in that memory of the device."""
        self._plan = plan.plan
        self._memory = memory
        self._device = device
        self._slots = plan.slots

    @abstractmethod
    def times(self, choices: np.ndarray) -> np.ndarray:
        """Seconds of some iterations; `choices` says which finalist serves each slot.

        int [iterations, slots] -> float64 [iterations, slots if resolved else 1]. The slots add
        up to the time from its start to its end.
        """

    def outputs(self) -> dict[str, np.ndarray]:
        """The network's outputs of the last iteration, on `random_inputs`; not of host steps."""
        plan, roots, elsewhere = self._plan, self._plan.roots, made_by_hosts(self._plan)
        return {
            name: self._device.read(self._memory.interface(name, self._device), plan.type_of(name))
            for name in plan.outputs
            if roots[name] not in elsewhere
        }


def open_finalists(plan: FinalistsPlan, device: Device) -> FinalistsRunner:
    """The network on the device, compiled and run once, on random inputs of the largest sizes.
    Raises: BuildFailed.

    Host steps do not run: launches find zeros where one would have left its results, which are
    valid indices, and take as long for the device as any other numbers.
    """
    plan = plan.at(plan.plan.largest)
    with allocated(plan.plan, device) as memory:
        pass
    for name, array in sample_inputs(plan.plan).items():
        device.write(memory.interface(name, device), array)
    hertz = clock_hz(device) if can_persist(device) and plan.plan.single_item else None
    if hertz is None:
        return _LaunchedFinalists(plan, memory, device)
    return _PersistentFinalists(plan, memory, device, hertz)


class _PersistentFinalists(FinalistsRunner):
    """One kernel with a clock; the choice and the times lie in memory that the host shares."""

    resolved = True

    def __init__(
        self, plan: FinalistsPlan, memory: Allocations, device: Device, hertz: float
    ) -> None:
        network = plan.plan
        threads = max(1, device.spec.compute_units)
        rows = steps_of(network, memory.placement, [()] * len(network.launches))
        slots = _slots(plan, memory)
        text = in_network_text(callees_of(network), rows, slots, len(memory.bases), threads)
        options = (*network.options, persistent.BUILD_OPTION)
        program = device.build(f"{network.text}\n{text}", options=options)
        super().__init__(plan, memory, device)
        self._hertz = hertz
        self._times = device.allocate_shared(8 * (1 + len(rows)))
        self._choice = device.allocate_shared(8 * len(plan.slots))
        state = device.allocate(persistent.state_bytes(len(rows), threads))
        self._launch = device.prepare(
            program,
            in_network.NAME,
            [*memory.bases, state, self._times, self._choice],
            (persistent.workers(threads), 1, 1),
            (1, 1, 1),
        )
        self.times(np.zeros((1, len(plan.slots)), np.int64))

    def times(self, choices: np.ndarray) -> np.ndarray:
        found = np.zeros(choices.shape)
        clock = np.zeros(self._times.bytes // 8, np.int64)
        for row, chosen in zip(found, choices.tolist(), strict=True):
            ranges = [s.finalists[c] for s, c in zip(self._slots, chosen, strict=True)]
            bounds = np.array([(r.start, r.stop) for r in ranges], np.int32)
            self._device.write(self._choice, bounds)
            for _ in range(_CALLS):
                self._device.enqueue([self._launch])
            self._device.finish()
            self._device.read_into(self._times, clock)
            ends = np.maximum.accumulate([clock[0], *clock[bounds[:, 1]]])
            row[:] = np.diff(ends) / self._hertz
        return found


def _slots(plan: FinalistsPlan, memory: Allocations) -> list[in_network.Waits]:
    """What each slot waits for, whichever finalist serves it."""
    each = touched(plan.plan, memory.placement)
    joined = [union([each[i] for rows in s.finalists for i in rows]) for s in plan.slots]
    return list(dependencies(joined))


class _LaunchedFinalists(FinalistsRunner):
    """Whole iterations of ordinary launches."""

    resolved = False

    def __init__(self, plan: FinalistsPlan, memory: Allocations, device: Device) -> None:
        super().__init__(plan, memory, device)
        self._launches = queued_launches(plan.plan, memory, device)
        device.enqueue(_busy(self._launches))
        device.finish()

    def times(self, choices: np.ndarray) -> np.ndarray:
        found = np.zeros((len(choices), 1))
        for row, chosen in zip(found, choices.tolist(), strict=True):
            launches = self._iteration(chosen)
            self._device.enqueue(launches)
            row[0] = self._device.time_kernels(launches)
        return found

    def _iteration(self, chosen: Sequence[int]) -> list[PreparedKernel]:
        ranges = [s.finalists[c] for s, c in zip(self._slots, chosen, strict=True)]
        return _busy(self._launches[i] for rows in ranges for i in rows)


def _busy(launches: Iterable[PreparedKernel]) -> list[PreparedKernel]:
    """Without those that have nothing to do for these counts."""
    return [launch for launch in launches if all(launch.global_size)]

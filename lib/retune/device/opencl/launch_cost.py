"""The cost of launches where a device outruns its host: kernel times alone do not show it.

A GPU's kernels are timed behind one that holds the queue (`runtime.Device.time_queued`). In a
network the host enqueues them one after the other, and one that is short waits for the next.
"""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retune.device.opencl.runtime import Device

_LAUNCHES = 256
"""Empty kernels of a sequence: its ends are a small part of it."""
_REPEATS = 15
_TEXT = "__kernel void nothing(__global float* out) {}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCost:
    """How long a sequence of launches lasts besides its kernels, in microseconds."""

    each_us: float = 0.0
    """From one launch to the next, where kernels do nothing."""
    ends_us: float = 0.0
    """Before the first one begins, and from the end of the last one until the host knows of it."""

    def sequence_us(self, kernels_us: Iterable[float]) -> float:
        """Of kernels in order, each enqueued as soon as the one before it was.

        A kernel begins when the one before it has ended and it is enqueued itself, whichever is
        later. Without costs: the sum.
        """
        ended = 0.0
        for number, kernel in enumerate(kernels_us):
            ended = max(ended, number * self.each_us) + kernel
        return ended + self.ends_us


NO_LAUNCHES = LaunchCost()
"""Of devices whose workers stay, or that are timed as the host sees them."""


def launch_cost(device: "Device") -> LaunchCost:
    """Measured by empty kernels, one and many at once; medians of several times each."""
    if not device.spec.outruns_host:
        return NO_LAUNCHES
    program, out = device.build(_TEXT), device.allocate(4)
    launch = device.prepare(program, "nothing", [out], (1, 1, 1), (1, 1, 1))
    one, many = [launch], [launch] * _LAUNCHES
    device.time(many)
    times = [(device.time(one), device.time(many)) for _ in range(_REPEATS)]
    first, all_us = (1e6 * statistics.median(some) for some in zip(*times, strict=True))
    each = max(0.0, (all_us - first) / (_LAUNCHES - 1))
    return LaunchCost(each_us=each, ends_us=max(0.0, first - each))

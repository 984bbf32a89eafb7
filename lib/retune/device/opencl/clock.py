"""The clock that kernels can read: whether the device has one, and how fast it runs."""

import time

import numpy as np

from retune.codegen.network.in_network import CLOCK
from retune.core.dtypes import INT64, TensorType
from retune.device.opencl.runtime import (
    BuildFailed,
    Device,
    DeviceMemory,
    LaunchFailed,
    PreparedKernel,
)

_READINGS = 5
_INTERVAL_S = 0.01
"""Between two readings: long beside the microseconds that a launch takes."""
_SOURCE = f"""__kernel void read_clock(__global long* now) {{
  now[0] = {CLOCK};
}}
"""


def clock_hz(device: Device) -> float | None:
    """Ticks a second of the kernels' clock; None where there is none, or its rate is not constant.

    Each reading lies between two of the host's clock. A busy machine moves these apart, so every
    interval allows a range of rates; the rate is constant if one is in all of these ranges.
    """
    if device.spec.device_class != "cpu":
        return None
    try:
        buffer = device.allocate(8)
        launch = device.prepare(device.build(_SOURCE), "read_clock", [buffer], (1, 1, 1), (1, 1, 1))
        device.time([launch])
        readings = [_read_clocks(device, launch, buffer) for _ in range(_READINGS)]
    except (BuildFailed, LaunchFailed):
        return None
    before, ticks, after = np.array(readings).T
    elapsed = np.diff(ticks)
    low = float(np.max(elapsed / (after[1:] - before[:-1])))
    high = float(np.min(elapsed / (before[1:] - after[:-1])))
    return (low + high) / 2 if 0 < low <= high else None


def _read_clocks(
    device: Device, launch: PreparedKernel, buffer: DeviceMemory
) -> tuple[float, float, float]:
    """The clock some time after the last reading, and the host's seconds before and after it."""
    time.sleep(_INTERVAL_S)
    before = time.perf_counter()
    device.enqueue([launch])
    device.finish()
    after = time.perf_counter()
    return before, float(device.read(buffer, TensorType((1,), INT64))[0]), after

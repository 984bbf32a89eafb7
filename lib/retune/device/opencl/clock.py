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
_SPAN_S = 0.01
"""Between two readings: long beside the microseconds that a launch takes."""
_TEXT = f"""__kernel void read_clock(__global long* now) {{
  now[0] = {CLOCK};
}}
"""


def clock_hz(device: Device) -> float | None:
    """Ticks a second of the kernels' clock; None where there is none, or it keeps no pace.

    Each reading lies between two of the host's clock. A busy machine moves these apart, so every
    span allows a range of rates; the clock keeps pace if one rate is in all of them.
    """
    if device.spec.device_class != "cpu":
        return None
    try:
        buffer = device.allocate(8)
        launch = device.prepare(device.build(_TEXT), "read_clock", [buffer], (1, 1, 1), (1, 1, 1))
        device.time([launch])
        readings = [_reading(device, launch, buffer) for _ in range(_READINGS)]
    except (BuildFailed, LaunchFailed):
        return None
    before, ticks, after = np.array(readings).T
    passed = np.diff(ticks)
    low = float(np.max(passed / (after[1:] - before[:-1])))
    high = float(np.min(passed / (before[1:] - after[:-1])))
    return (low + high) / 2 if 0 < low <= high else None


def _reading(
    device: Device, launch: PreparedKernel, buffer: DeviceMemory
) -> tuple[float, float, float]:
    """The clock some time after the last reading, and the host's seconds before and after it."""
    time.sleep(_SPAN_S)
    before = time.perf_counter()
    device.enqueue([launch])
    device.finish()
    after = time.perf_counter()
    return before, float(device.read(buffer, TensorType((1,), INT64))[0]), after

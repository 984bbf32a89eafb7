"""The clock that kernels can read: whether the device has one, and how fast it runs."""

import time

import numpy as np

from retune.codegen.contest import CLOCK
from retune.core.dtypes import TensorType
from retune.device.runtime import Buffer, BuildFailed, Device, Launch, LaunchFailed

_SPAN_S = 0.02
"""Between two readings: long beside the microseconds that a launch takes."""
_AGREEMENT = 0.02
"""Two spans may differ by as much: a launch is late at times."""
_TEXT = f"""__kernel void read_clock(__global long* now) {{
  now[0] = {CLOCK};
}}
"""


def clock_hz(device: Device) -> float | None:
    """Ticks a second of the kernels' clock; None where there is none, or it keeps no pace."""
    if device.spec.device_class != "cpu":
        return None
    try:
        buffer = device.allocate(8)
        launch = device.prepare(device.build(_TEXT), "read_clock", [buffer], (1, 1, 1), (1, 1, 1))
        device.time([launch])
        readings = [_reading(device, launch, buffer) for _ in range(3)]
    except (BuildFailed, LaunchFailed):
        return None
    ticks, seconds = np.diff(np.array(readings), axis=0).T
    rates = ticks / seconds
    steady = rates.min() > 0 and rates.max() <= (1 + _AGREEMENT) * rates.min()
    return float(np.mean(rates)) if steady else None


def _reading(device: Device, launch: Launch, buffer: Buffer) -> tuple[float, float]:
    """Ticks, and the seconds at which they were read, some time after the last reading."""
    time.sleep(_SPAN_S)
    device.enqueue([launch])
    device.finish()
    now = time.perf_counter()
    return float(device.read(buffer, TensorType((1,), "int64"))[0]), now

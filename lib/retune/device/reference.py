"""The fixed reference kernel: register-only multiply-adds, timed beside every candidate.

Its time moves with the machine (clock, neighbours, heat) and with nothing else, so times taken
hours apart are comparable after division by it.
"""

import statistics

from retune.device.runtime import Device

_CHAINS = 12
"""Independent accumulators: enough to fill the pipelines, few enough to stay in registers."""
_RUNS = 5
_CPU_ITERATIONS = 160_000
_GPU_ITERATIONS = 8_000
"""Counts that make one run last about a millisecond."""
_GPU_GROUP = 128
"""Work-items of a group; two groups for each compute unit are all that its registers hold."""


class Reference:
    """The reference kernel, built for one device."""

    def __init__(self, device: Device) -> None:
        is_cpu = device.spec.device_class == "cpu"
        group = 1 if is_cpu else _GPU_GROUP
        groups = 2 * max(1, device.spec.compute_units)
        text = _text(_CPU_ITERATIONS if is_cpu else _GPU_ITERATIONS)
        program = device.build(text, options=("-cl-fast-relaxed-math",))
        data = device.random("float32", 16 * (_CHAINS + 2))
        out = device.random("float32", 16 * group * groups)
        iterations = _CPU_ITERATIONS if is_cpu else _GPU_ITERATIONS
        self.flops = 2 * 16 * _CHAINS * iterations * group * groups
        self._device = device
        self._launch = device.prepare(
            program, "reference", [data, out], (group * groups, 1, 1), (group, 1, 1)
        )
        device.time([self._launch])

    def time_us(self) -> float:
        """Median microseconds of a few runs, right now."""
        return 1e6 * statistics.median(self._device.time([self._launch]) for _ in range(_RUNS))

    def gflops(self) -> float:
        """The multiply-add ceiling of all cores right now, in 1e9 operations a second."""
        return 1e-3 * self.flops / self.time_us()


def _text(iterations: int) -> str:
    names = [f"a{chain}" for chain in range(_CHAINS)]
    loads = "\n".join(f"  float16 {name} = x[{index + 2}];" for index, name in enumerate(names))
    steps = "\n".join(f"    {name} = fma(b, w, {name});" for name in names)
    return f"""__kernel void reference(__global const float16 *x, __global float16 *y) {{
  float16 b = x[0], w = x[1];
{loads}
  for (int i = 0; i < {iterations}; i++) {{
{steps}
  }}
  y[get_global_id(0)] = {" + ".join(names)};
}}
"""

"""The calibration kernel: register-only multiply-adds, timed beside every candidate.

Its time moves with the machine (clock, neighbours, heat) and with nothing else, so times taken
hours apart are comparable after division by it.
"""

import statistics
from dataclasses import dataclass, replace

from retune.core.dtypes import FLOAT32
from retune.device.measure.contention import Took, took, undisturbed_times
from retune.device.opencl.runtime import Device

_CHAINS = 12
"""Independent accumulators: enough to fill the pipelines, few enough to stay in registers."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """How much of the kernel a class of devices runs; one run lasts about a millisecond."""

    lanes: int
    group: int
    groups_a_unit: int
    iterations: int
    runs: int
    """That its time is the median of."""


_SHAPES = {"cpu": _Shape(16, 1, 2, 160_000, 5), "gpu": _Shape(4, 256, 4, 5_000, 3)}
"""A GPU's unit gets 32 warps with 48 accumulators an item: more registers would not fit. Other
classes of devices run what a GPU runs."""


class Reference:
    """The calibration kernel, built for one device, with vectors of so many floats.

    By default they are as in all records, whose times would not compare otherwise: 16 on a CPU,
    where the accumulators fit registers of 512 bits and no others.
    """

    def __init__(self, device: Device, lanes: int | None = None) -> None:
        shape = _SHAPES.get(device.spec.device_class, _SHAPES["gpu"])
        if lanes is not None:
            iterations = shape.iterations * shape.lanes // lanes
            shape = replace(shape, lanes=lanes, iterations=iterations)
        groups = shape.groups_a_unit * max(1, device.spec.compute_units)
        items = shape.group * groups
        program = device.build(_text(shape), options=("-cl-fast-relaxed-math",))
        data = device.random(FLOAT32, shape.lanes * (_CHAINS + 2))
        out = device.random(FLOAT32, shape.lanes * items)
        self.flops = 2 * shape.lanes * _CHAINS * shape.iterations * items
        self._device = device
        self._runs = shape.runs
        self._launch = device.prepare(
            program, "reference", [data, out], (items, 1, 1), (shape.group, 1, 1)
        )
        device.time([self._launch])

    def run(self) -> None:
        """One call, done when it returns."""
        self._device.time([self._launch])

    def time_us(self) -> float:
        """Median microseconds of a few runs, right now; see `undisturbed_times`."""

        def call() -> Took:
            return took(lambda: self._device.time([self._launch]), self._device.spec)

        return 1e6 * statistics.median(undisturbed_times(call, self._runs))

    def gflops(self) -> float:
        """The multiply-add ceiling of all cores right now, in 1e9 operations a second."""
        return 1e-3 * self.flops / self.time_us()


def _text(shape: _Shape) -> str:
    kind = f"float{shape.lanes}"
    names = [f"a{chain}" for chain in range(_CHAINS)]
    loads = "\n".join(f"  {kind} {name} = x[{index + 2}];" for index, name in enumerate(names))
    steps = "\n".join(f"    {name} = fma(b, w, {name});" for name in names)
    return f"""__kernel __attribute__((reqd_work_group_size({shape.group}, 1, 1)))
void reference(__global const {kind} *x, __global {kind} *y) {{
  {kind} b = x[0], w = x[1];
{loads}
  for (int i = 0; i < {shape.iterations}; i++) {{
{steps}
  }}
  y[get_global_id(0)] = {" + ".join(names)};
}}
"""

"""Ceilings of this machine right now: multiply-adds, and copies by size.

Nothing is looked up: both are measured beside what is compared with them, since shared machines
drift. The best of a few runs counts: whatever disturbs a run makes it longer. The roofline of
Williams, Waterman, Patterson (CACM 52(4), 2009) is the smaller of the two.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Literal, Protocol

from retune.core.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT8, UINT8, DType
from retune.device.measure.reference import Reference
from retune.device.opencl.runtime import Device, PreparedKernel
from retune.targets.instructions import multiplied

_LANES = 16
_VECTOR_BYTES = 4 * _LANES
_LEAST_BYTES = 1 << 14
_MOST_BYTES = 1 << 28
_PASSED_BYTES = 1 << 26
"""Bytes that one launch moves, whatever the size of the buffers: some milliseconds."""
_RUNS = 5
_GPU_GROUP = 64


Lower = Literal[8, 16]
"""Bits of smaller values: int8, or 16-bit floats."""
_MULTIPLIED: Mapping[Lower, frozenset[DType]] = {
    8: frozenset((INT8, UINT8)), 16: frozenset((FLOAT16, BFLOAT16)),
}  # fmt: skip


class Roofline(Protocol):
    """What a device can do at best."""

    def least_s(self, flops: int, traffic: int) -> float:
        """Seconds that so much arithmetic and so many bytes take at the very least."""
        ...

    def least_lower_s(self, bits: Lower, flops: int, traffic: int) -> float:
        """The same of values of so many bits, for the arithmetic and the bytes of float32."""
        ...


class Ceilings:
    """Limits of a device, measured when first asked for and kept."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._copies: dict[int, float] = {}

    @cached_property
    def gflops(self) -> float:
        """Register-only float32 multiply-adds of all cores, 1e9 operations a second."""
        spec = self._device.spec
        lanes = max(2, min(spec.vector_bits // 32, _LANES)) if spec.device_class == "cpu" else None
        reference = Reference(self._device, lanes)
        return max(reference.gflops() for _ in range(_RUNS))

    def gbytes_per_s(self, traffic: int) -> float:
        """Bytes read and written by a copy of the same traffic, 1e9 a second.

        `traffic` counts the bytes read plus those written; what fits a cache comes from it, as it
        does in a network whose values are still there. Sizes are rounded by an eighth at most: one
        that a cache just does not hold is not to be compared with one that it holds.
        """
        size = _rounded(max(_LEAST_BYTES, min(traffic, _MOST_BYTES)))
        if size not in self._copies:
            self._copies[size] = self._measure_copy(size)
        return self._copies[size]

    def least_s(self, flops: int, traffic: int) -> float:
        """The roofline: seconds that so much arithmetic and traffic takes at the very least."""
        return max(1e-9 * flops / self.gflops, self._moved_s(traffic))

    def least_lower_s(self, bits: Lower, flops: int, traffic: int) -> float:
        """The same with a part of the bytes, and of the arithmetic where the device has
        instructions that multiply such values: with 16 bits they do two steps of a sum in the time
        of one, or more, and with 8 bits four. The bytes come from where all of them came from: that
        a layer's fit a nearer cache now does not mean that the network's do."""
        part = 32 // bits
        packed = bool(_MULTIPLIED[bits] & multiplied(self._device.spec))
        return max(
            self.least_s(flops // part if packed else flops, 0), self._moved_s(traffic) / part
        )

    def _moved_s(self, traffic: int) -> float:
        return 1e-9 * traffic / self.gbytes_per_s(traffic) if traffic else 0.0

    def _measure_copy(self, size: int) -> float:
        """One launch goes over the same buffers again and again, each core over its own part."""
        device = self._device
        items, group = self._items()
        each = max(1, size // 2 // _VECTOR_BYTES // items)
        rounds = max(1, _PASSED_BYTES // (2 * items * each * _VECTOR_BYTES))
        launch = self._copy(items, group, each, rounds)
        device.time([launch])
        seconds = min(device.time([launch]) for _ in range(_RUNS))
        return 1e-9 * 2 * items * each * rounds * _VECTOR_BYTES / seconds

    def _items(self) -> tuple[int, int]:
        units = max(1, self._device.spec.compute_units)
        if self._device.spec.device_class == "cpu":
            return 2 * units, 1
        return 32 * units * _GPU_GROUP, _GPU_GROUP

    def _copy(self, items: int, group: int, each: int, rounds: int) -> PreparedKernel:
        device = self._device
        bytes_each = 4 * _LANES * items * each
        program = device.build(_text(each, group > 1, rounds))
        x, y = device.random(FLOAT32, bytes_each // 4), device.allocate(bytes_each)
        return device.prepare(program, "copy", [x, y], (items, 1, 1), (group, 1, 1))


def _rounded(size: int) -> int:
    """The nearest number of which only the first three binary digits are not zero."""
    step = 1 << max(0, size.bit_length() - 3)
    return (size + step // 2) // step * step


def _text(each: int, interleaved: bool, rounds: int) -> str:
    """Each work-item copies `each` vectors, `rounds` times; GPUs want neighbours side by side."""
    at = "i * get_global_size(0) + me" if interleaved else f"me * {each} + i"
    return f"""__kernel void copy(__global const float{_LANES}* x, __global float{_LANES}* y) {{
  const size_t me = get_global_id(0);
  for (int round = 0; round < {rounds}; ++round) {{
    for (size_t i = 0; i < {each}; ++i) {{
      y[{at}] = x[{at}];
    }}
    mem_fence(CLK_GLOBAL_MEM_FENCE);
  }}
}}
"""

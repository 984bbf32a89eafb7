"""Whether groups of items may stay on a device: tried, as no driver says so. Read `groups_stay`."""

from collections.abc import Sequence

import numpy as np

from retune.codegen.network.persistent import Callee, CalleeLaunch
from retune.codegen.network.resident import GROUPS_A_UNIT, WAYS
from retune.core.dtypes import INT32, TensorType
from retune.device.opencl.resident import Resident
from retune.device.opencl.runtime import Device

KERNELS = """
#define PROBE(name, size)                                                                  \\
static void name(__global const int* x, __global int* y, const int3 group, const int item, \\
                 __local uchar* arena)                                                     \\
{                                                                                          \\
  __local int* row = (__local int*)arena;                                                  \\
  if (0 <= item) {                                                                         \\
    row[item] = x[((group.x * size + item) * 7 + 5) % COUNT];                              \\
  }                                                                                        \\
  barrier(CLK_LOCAL_MEM_FENCE);                                                            \\
  if (0 <= item) {                                                                         \\
    y[group.x * size + item] = 3 * row[(item + 1) % size] + 1;                             \\
  }                                                                                        \\
}
PROBE(few_tile, 24)
PROBE(many_tile, 100)
"""
"""Each element of `y` is made of one of `x` that another group wrote, fetched by another item."""

_SIZES = {"few": 24, "many": 100}
_BLOCK = 2400
"""Elements that groups of either size fill."""
_STEPS = 96
_LAUNCHES = 3
_BUFFERS = 3
"""In turns: each is read and then written again while its lines are still in caches."""


def groups_stay(device: Device, way: str, options: Sequence[str] = ()) -> bool:
    """Whether a long chain of steps, each of which reads what the last one wrote, comes out right.

    With groups side by side in one, and with items left over. A device on which groups that run do
    not all make progress may never come back from it. Raises: BuildFailed, LaunchFailed.
    """
    if WAYS[way].stated and not device.has_atomics:
        return False
    count = _BLOCK * (1 + GROUPS_A_UNIT * max(1, device.spec.compute_units) // 24)
    names = [("few", "many")[number % 2] for number in range(_STEPS)]
    tiles = [
        Callee(
            kernel=name, parameters=2, groups=(count // size, 1, 1), items=size, arena=4 * size + 64
        )
        for name, size in _SIZES.items()
    ]
    steps = [
        CalleeLaunch(
            kernel=name,
            args=((i % _BUFFERS, 0), ((i + 1) % _BUFFERS, 0)),
            waits=(i - 1,) if i else (),
            label=name,
        )
        for i, name in enumerate(names)
    ]
    text = f"#define COUNT {count}\n{KERNELS}"
    kernel = Resident(device, [text], options, tiles, steps, _BUFFERS, way=way)
    x = np.arange(count, dtype=np.int32)
    buffers = [device.upload(x)] + [device.upload(np.zeros_like(x)) for _ in range(_BUFFERS - 1)]
    device.enqueue([kernel.launch(buffers)] * _LAUNCHES)
    for name in names * _LAUNCHES:
        rows = x[(np.arange(count) * 7 + 5) % count].reshape(-1, _SIZES[name])
        x = (3 * np.roll(rows, -1, axis=1) + 1).reshape(-1).astype(np.int32)
    found = device.read(buffers[_STEPS % _BUFFERS], TensorType((count,), INT32))
    return bool(np.array_equal(found, x))

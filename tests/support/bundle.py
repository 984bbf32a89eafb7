"""What tests of bundle share with others."""

import numpy as np

from retune.bundle.plan import Alias, NetworkPlan
from retune.codegen.source import KernelLaunch, ProgramBuffer, Role
from retune.core.dtypes import FLOAT32
from retune.core.target import DeviceSpec
from tests.support.programs import kernels_of

ROWS, COLUMNS = 6, 40

ELEMENTS = ROWS * COLUMNS

ADD = """__kernel void vector_add(__global const float *restrict a,
                         __global const float *restrict b, __global float *restrict y) {
  const int i = get_global_id(0);
  vstore8(vload8(i, a) + vload8(i, b), i, y);
}
"""

SCALE = """__kernel void scale(__global const float *restrict x, __global float *restrict y) {
  const int i = get_global_id(0);
  y[i] = 3.0f * x[i];
}
"""

BOTH = """__kernel void halves(__global float *restrict low, __global const float *restrict x,
                     __global float *restrict high) {
  const int i = get_global_id(0);
  low[i] = 0.5f * x[i];
  high[i] = 1.5f * x[i];
}
"""

BIAS = np.linspace(-2, 2, ELEMENTS, dtype=np.float32)


def plan_of(spec: DeviceSpec, scale: str = SCALE) -> NetworkPlan:
    """a = x + bias; b = 3 alias(a); c = 3 b; low, high = halves(c); out = alias(high)."""
    return NetworkPlan(
        name="halves",
        model_key="0",
        kernels=kernels_of({"vector_add": ADD, "scale": scale, "halves": BOTH}),
        options=("-cl-fast-relaxed-math",),
        buffers=(
            _value("x", "input", (ROWS, COLUMNS)),
            _value("bias", "weight"),
            *(_value(name, "temp") for name in ("a", "flat", "b", "c", "wide")),
            _value("high", "output", (COLUMNS, ROWS)),
            _value("low", "output"),
        ),
        launches=(
            _launch("vector_add", ("x", "bias", "a"), ELEMENTS // 8),
            _launch("scale", ("flat", "b"), ELEMENTS, 8),
            _launch("scale", ("b", "c"), ELEMENTS),
            _launch("halves", ("low", "c", "wide"), ELEMENTS, writes=("low", "wide")),
        ),
        inputs=("x",),
        outputs=("high", "low"),
        weights={"bias": BIAS},
        device=spec,
        notes={},
        aliases=(Alias(value="flat", of="a"), Alias(value="high", of="wide")),
    )


def _value(name: str, role: Role, shape: tuple[int, ...] = (ELEMENTS,)) -> ProgramBuffer:
    return ProgramBuffer(name=name, dtype=FLOAT32, elements=ELEMENTS, role=role, shape=shape)


def _launch(
    kernel: str, args: tuple[str, ...], items: int, local: int = 1, writes: tuple[str, ...] = ()
) -> KernelLaunch:
    return KernelLaunch(
        kernel=kernel,
        args=args,
        global_size=(items, 1, 1),
        local_size=(local, 1, 1),
        label=kernel,
        flops=ELEMENTS,
        bytes=4 * ELEMENTS * len(args),
        writes=writes or args[-1:],
    )

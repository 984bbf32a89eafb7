"""What tests of conftest share with others."""

import numpy as np

from retune.bundle.plan import Alias, NetworkPlan
from retune.codegen.source import KernelLaunch, ProgramBuffer, Role
from retune.core.dtypes import FLOAT32
from retune.core.target import GENERIC_CPU
from tests.support.programs import kernels_of

ADD = """__kernel void add(__global const float *restrict a, __global const float *restrict b,
                  __global float *restrict y) {
  const int i = get_global_id(0);
  y[i] = a[i] + b[i];
}
"""

SCALE = """__kernel void scale(__global const float *restrict x, __global float *restrict y) {
  const int i = get_global_id(0);
  y[i] = 2.0f * x[i];
}
"""


def make_plan() -> NetworkPlan:
    """sum = x + bias; flat = alias(sum); twice = 2 flat; four = 2 twice; eight = alias(2 four)."""
    return NetworkPlan(
        name="demo",
        model_key="0123",
        kernels=kernels_of({"add": ADD, "scale": SCALE}),
        options=("-cl-fast-relaxed-math",),
        buffers=(
            _value("x", "input", (4, 8)),
            _value("bias", "weight", (4, 8)),
            _value("sum", "temp", (4, 8)),
            _value("flat", "temp", (32,)),
            _value("twice", "output", (32,)),
            _value("four", "temp", (32,)),
            _value("wide", "temp", (32,)),
            _value("eight", "output", (8, 4)),
        ),
        launches=(
            _launch("add", "x", "bias", "sum"),
            _launch("scale", "flat", "twice"),
            _launch("scale", "twice", "four"),
            _launch("scale", "four", "wide"),
        ),
        inputs=("x",),
        outputs=("twice", "eight"),
        weights={"bias": np.arange(32, dtype=np.float32)},
        device=GENERIC_CPU,
        notes={"origin": "hand-written"},
        aliases=(Alias(value="flat", of="sum"), Alias(value="eight", of="wide")),
    )


def _value(name: str, role: Role, shape: tuple[int, ...]) -> ProgramBuffer:
    return ProgramBuffer(name=name, dtype=FLOAT32, elements=32, role=role, shape=shape)


def _launch(kernel: str, *args: str) -> KernelLaunch:
    return KernelLaunch(
        kernel=kernel,
        args=args,
        global_size=(32, 1, 1),
        local_size=(1, 1, 1),
        label=f"group of {args[-1]}",
        flops=32,
        bytes=128 * len(args),
        writes=args[-1:],
    )

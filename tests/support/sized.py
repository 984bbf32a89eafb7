"""A network of kernels written by hand, for any batch from 0 on and any even number of steps.

    y = 2 x;  z = y w;  sums = bias + z summed over the steps
    three times: moved = sums + state;  state = moved / 2

A batch of one has a variant of its own, with other temporaries and another kernel for the sums.
"""

from collections.abc import Iterator

import numpy as np

from retune.bundle.plan import NetworkPlan, PlanLoop
from retune.bundle.sizes import PlanSize, PlanVariant
from retune.codegen.opencl.kernels import single_item_kernel
from retune.codegen.source import KernelLaunch, ProgramBuffer, Role
from retune.core.dims import Condition, Dim, Size, dim_of
from retune.core.target import DeviceSpec
from tests.support.programs import kernels_of

BATCH, STEPS = Size("batch", 0, 9), Size("steps", 2, 12, 2)
batch, steps = dim_of(BATCH), dim_of(STEPS)
IN, OUT = 8, 5
WEIGHTS = np.random.default_rng(0).standard_normal((IN, OUT)).astype(np.float32)

TEXTS: dict[str, tuple[str, str]] = {
    "twice": (
        "x, y",
        "for (int i = 0; i < 8; ++i) y[8 * group.x + i] = 2.0f * x[8 * group.x + i];",
    ),
    "product": (
        "y, w, z, batch_at, steps_at",
        """const int rows = batch_at[0] * steps_at[0];
  for (int row = 4 * group.x; row < min(rows, 4 * group.x + 4); ++row)
    for (int c = 0; c < 5; ++c) {
      float sum = 0.0f;
      for (int k = 0; k < 8; ++k) sum += y[8 * row + k] * w[5 * k + c];
      z[5 * row + c] = sum;
    }""",
    ),
    "sums": (
        "z, bias, sum, steps_at",
        """float found = bias[5 * group.y + group.x];
  for (int t = 0; t < steps_at[0]; ++t)
    found += z[5 * (group.y * steps_at[0] + t) + group.x];
  sum[5 * group.y + group.x] = found;""",
    ),
    "sums_of_one": (
        "z, bias, sum, steps_at",
        """float found = bias[group.x];
  for (int t = 0; t < steps_at[0]; ++t) found += z[5 * t + group.x];
  sum[group.x] = found;""",
    ),
    "start": ("sum, state", "for (int c = 0; c < 5; ++c) state[5 * group.x + c] = 0.0f;"),
    "move": (
        "sum, state, moved",
        "for (int c = 5 * group.x; c < 5 * group.x + 5; ++c) moved[c] = sum[c] + state[c];",
    ),
    "halved": (
        "moved, state",
        "for (int c = 5 * group.x; c < 5 * group.x + 5; ++c) state[c] = 0.5f * moved[c];",
    ),
}


def _texts() -> Iterator[tuple[str, str]]:
    for name, (names, body) in TEXTS.items():
        given = [
            f"__global const int* restrict {n}" if n.endswith("_at") else f"__global float* {n}"
            for n in names.split(", ")
        ]
        yield name, "\n".join(single_item_kernel(name, given, names.split(", "), [body]))


def _buffer(name: str, role: Role, *shape: int) -> ProgramBuffer:
    elements = 1
    for extent in shape:
        elements = elements * extent
    return ProgramBuffer(name=name, dtype="float32", elements=elements, role=role, shape=shape)


def _launch(kernel: str, args: str, *groups: int) -> KernelLaunch:
    names = tuple(args.split())
    written = tuple(name for name in names if name not in ("batch", "steps"))[-1:]
    return KernelLaunch(
        kernel=kernel,
        args=names,
        global_size=(*groups, 1, 1)[:3],
        local_size=(1, 1, 1),
        label=kernel,
        flops=batch * 40,
        bytes=batch * steps * 8,
        writes=written,
    )


def _ends(moved: str) -> tuple[KernelLaunch, ...]:
    return (
        _launch("start", "sum state", batch),
        _launch("move", f"sum state {moved}", batch),
        _launch("halved", f"{moved} state", batch),
    )


def sized_plan(spec: DeviceSpec) -> NetworkPlan:
    """The plan, for that device."""
    rows = batch * steps
    several = (
        _launch("twice", "x y", rows),
        _launch("product", "y w z batch steps", (rows + 3) // 4),
        _launch("sums", "z bias sum steps", OUT, batch),
        *_ends("moved"),
    )
    one = (
        _launch("twice", "x y1", rows),
        _launch("product", "y1 w z1 batch steps", (rows + 3) // 4),
        _launch("sums_of_one", "z1 bias sum steps", OUT),
        *_ends("moved1"),
    )
    assert isinstance(batch, Dim)
    is_one = Condition("eq", batch - 1, holds=True)  # type: ignore[arg-type]
    return NetworkPlan(
        name="sized",
        model_key="0",
        kernels=kernels_of(dict(_texts())),
        options=("-cl-fast-relaxed-math",),
        buffers=(
            _buffer("x", "input", batch, steps, IN),
            _buffer("bias", "input", batch, OUT),
            _buffer("w", "weight", IN, OUT),
            *(_buffer(name, "temp", rows * IN) for name in ("y", "y1")),
            *(_buffer(name, "temp", batch, steps, OUT) for name in ("z", "z1")),
            _buffer("sum", "output", batch, OUT),
            _buffer("state", "output", batch, OUT),
            *(_buffer(name, "temp", batch, OUT) for name in ("moved", "moved1")),
            ProgramBuffer(name="batch", dtype="int32", elements=1, role="size"),
            ProgramBuffer(name="steps", dtype="int32", elements=1, role="size"),
        ),
        launches=(*one, *several),
        inputs=("x", "bias"),
        outputs=("sum", "state"),
        weights={"w": WEIGHTS},
        device=spec,
        notes={},
        loops=(PlanLoop(first=4, end=6, times=3), PlanLoop(first=10, end=12, times=3)),
        sizes=(
            PlanSize(size=BATCH, buffer="batch", input="x", axis=0),
            PlanSize(size=STEPS, buffer="steps", input="x", axis=1),
        ),
        variants=(
            PlanVariant(conditions=(is_one,), first=0, end=6, end_host=0),
            PlanVariant(first=6, end=12, end_host=0),
        ),
    )


def expected(x: np.ndarray, bias: np.ndarray) -> dict[str, np.ndarray]:
    """What the network computes."""
    sums = bias + (2 * x @ WEIGHTS).sum(axis=1)
    state = np.zeros_like(sums)
    for _ in range(3):
        state = (sums + state) / 2
    return {"sum": sums, "state": state}

"""Kernels by number: an expression, a sketch of its space, and decisions, all from a seed.

Read `Kernel.of`. Over two thousand numbers every rule and template for expressions of these kinds
comes up, of processors and of GPUs. `agrees` runs one on a device, with the numpy meaning as judge.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from retune.codegen.lower import lower
from retune.core.dtypes import TensorType, dtype_of
from retune.core.target import GENERIC_CPU, GENERIC_GPU, DeviceSpec
from retune.device.opencl.runtime import Device
from retune.ir.merge import merge_axes
from retune.ir.stmt import Program, from_dag
from retune.ir.te import Dag
from retune.targets.devices import target_of
from retune.targets.spaces import space_of, strategy
from tests.support import dags
from tests.support.oracle import inputs_for, reference, run_source

MOST_ERROR = 1e-5
Draw = Callable[[int, int], int]
"""A whole number between two bounds."""


def _conv2d(draw: Draw) -> Dag:
    window = (1, 3, 3, 5)[draw(0, 3)]
    pad = window // 2 * draw(0, 1)
    least = window - 2 * pad
    return dags.conv2d(
        draw(1, 2), draw(max(3, least), 9), draw(max(3, least), 9), draw(1, 24), draw(1, 40),
        window, pad=pad, stride=draw(1, 2), gated=window == 1 and draw(0, 2) == 0,
    )  # fmt: skip


def _residual(draw: Draw) -> Dag:
    return dags.conv2d(1, draw(4, 9), draw(4, 9), 8 * draw(1, 3), 8 * draw(1, 4), residual=True)


def _depthwise(draw: Draw) -> Dag:
    window, sizes = (3, 5)[draw(0, 1)], (draw(1, 2), draw(5, 9), draw(5, 9), draw(1, 40))
    return dags.depthwise(*sizes, window=window, stride=draw(1, 2))


def _pool(draw: Draw) -> Dag:
    window = draw(2, 3)
    sizes = draw(1, 2), draw(4, 9), draw(4, 9), draw(1, 40)
    return dags.pool(*sizes, window, draw(1, 2), average=draw(0, 1) == 1)


EXPRESSIONS: Mapping[str, tuple[str, Callable[[Draw], Dag]]] = {
    "conv2d": ("conv2d", _conv2d),
    "residual": ("conv2d", _residual),
    "depthwise": ("conv2d", _depthwise),
    "pool": ("max_pool2d", _pool),
    "dense": ("dense", lambda draw: dags.dense(draw(1, 9), draw(1, 70), draw(1, 70))),
    "product": (
        "matmul",
        lambda d: dags.batched_product(d(1, 3), d(1, 20), d(1, 40), d(1, 40)),
    ),
    "bytes": ("dense", lambda draw: dags.byte_product(draw(1, 9), 4 * draw(1, 16), draw(1, 40))),
    "byte convolution": (
        "conv2d",
        lambda d: dags.byte_conv2d(d(3, 8), d(3, 8), 4 * d(1, 5), 4 * d(1, 8)),
    ),
    "softmax": ("softmax", lambda draw: dags.softmax(draw(1, 9), draw(1, 200))),
    "standardised": ("layer_norm", lambda draw: dags.standardised(draw(1, 9), draw(2, 200))),
    "elementwise": ("add", lambda draw: dags.elementwise(draw(1, 20), draw(1, 70))),
    "integers": ("dense", lambda draw: dags.integers(draw(1, 9), draw(1, 70))),
    "transpose": ("transpose", lambda d: dags.transpose(d(1, 20), d(1, 20), d(1, 20))),
    "sum": ("reduce_sum", lambda d: dags.total(d(1, 30), d(1, 40))),
    "maxima": ("reduce_max", lambda d: dags.reduction(d(1, 9), d(1, 300), "max", first=False)),
}
"""Name -> the operator whose templates are tried, and an expression of random sizes."""

SPECS: Mapping[str, DeviceSpec] = {
    "cpu": GENERIC_CPU,
    "cpu of 8 floats": replace(GENERIC_CPU, vector_bits=256),
    "gpu": GENERIC_GPU,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A candidate of a space."""

    name: str
    """Of the expression, and of the strategy."""
    dag: Dag
    program: Program
    error: float
    """What the strategy may be off by, as a part of the output's range."""

    @classmethod
    def of(cls, number: int) -> "Kernel":
        """The kernel of that number, always the same."""
        rng = random.Random(number)
        name = list(EXPRESSIONS)[number % len(EXPRESSIONS)]
        op, make = EXPRESSIONS[name]
        dag = merge_axes(make(rng.randint))
        kind = rng.choice(list(SPECS))
        space = space_of(from_dag(dag), op, SPECS[kind], max_error=MOST_ERROR)
        sketches = [*space.sketches, *space.more()]
        rng.shuffle(sketches)
        for sketch in sketches:
            rows = sketch.sample(1, np.random.default_rng(number))
            if len(rows):
                shown = f"{name}: {strategy(sketch.name)}"
                made = sketch.instantiate(rows[0])
                return cls(name=shown, dag=dag, program=made, error=sketch.error)
        raise AssertionError(f"kernel {number}: no sketch of {name} has a valid candidate")

    def difference(self, device: Device) -> str:
        """Where the device's outputs are not the expression's; empty if they agree."""
        inputs = inputs_for(self.dag)
        source = lower(self.program, target_of(device.spec))
        types = {t.name: TensorType(t.shape, t.dtype) for t in self.dag.outputs}  # type: ignore[arg-type]
        found = run_source(device, source, inputs, types)
        for name, want in reference(self.dag, inputs).items():
            stored = 2 * dtype_of(want).roundoff if dtype_of(want).is_small_float else 0.0
            scale = max(1.0, float(np.abs(want[np.isfinite(want)]).max(initial=0.0)))
            near = partial(np.isclose, rtol=max(1e-4, stored), equal_nan=True)
            right = near(found[name], want, atol=max(1e-5, stored, 4 * self.error) * scale)
            if not right.all():
                at = tuple(map(int, np.argwhere(~right)[0]))
                return (
                    f"{name}: {int((~right).sum())} of {right.size} differ, first at {at}: got "
                    f"{found[name][at]}, expected {want[at]}"
                )
        return ""

"""What tests of gpu warps share with others."""

import numpy as np

from retune.core.dtypes import BFLOAT16, FLOAT16, INT8, TF32, UINT8
from retune.core.target import DeviceSpec
from retune.ir.expr import Expr, Var
from retune.ir.functions import call, rounding
from retune.ir.stmt import Program, from_dag
from retune.ir.te import Dag, compute, placeholder, reduce_axis
from retune.targets.gpu.space import gpu_space
from tests.support.dags import (
    Choose,
    byte_conv2d,
    byte_product,
    half_conv2d,
    half_product,
    half_products,
    product_of_bytes,
)


def random_product(choose: Choose, spec: DeviceSpec) -> tuple[Dag, Program]:
    """A product of 16-bit floats of any size, and a program by instructions of warps for it."""
    rows, outer, dtype = 8 + choose(20), 32 + choose(34), (FLOAT16, BFLOAT16)[choose(2)]
    if choose(2):
        dag = half_product(rows, 16 * (1 + choose(3)), outer, dtype)
    else:
        turned = bool(choose(2))
        dag = half_products(1 + choose(2), rows, 1 + choose(40), outer, turned=turned, dtype=dtype)
    found = [s for s in gpu_space(from_dag(dag), spec).sketches if ".warp" in s.name]
    sketch = found[choose(len(found))]
    return dag, sketch.instantiate(sketch.sample(1, np.random.default_rng(choose(1000)))[0])


def rounded_product(rows: int, steps: int, columns: int, *, constant: bool) -> Dag:
    """A product of float32 whose operands are rounded to TF32."""
    x, k = placeholder("x", (rows, steps)), reduce_axis("k", steps)
    w = placeholder("w", (columns, steps), constant=constant)

    def product(i: Var, j: Var) -> Expr:
        return call(rounding(TF32), x[i, k]) * call(rounding(TF32), w[j, k])

    return Dag((compute("y", (rows, columns), product, [x, w], reduce=(k,)),))


SHAPES: dict[str, Dag] = {
    "window": byte_conv2d(5, 7, 64, 32),
    "strided window": byte_conv2d(9, 9, 64, 32, stride=2),
    "one tap": byte_conv2d(6, 6, 128, 64, window=1),
    "matrix": byte_product(9, 64, 64),
    "signed": byte_product(11, 128, 32, first=INT8),
    "half window": half_conv2d(5, 5, 32, 32),
    "half grouped window": half_conv2d(5, 5, 64, 64, groups=2),
    "half narrow groups": half_conv2d(5, 5, 64, 64, groups=8),
    "half shallow window": half_conv2d(9, 9, 3, 32, 5, 2),
    "half strided window": half_conv2d(9, 9, 32, 32, stride=2),
    "half windows": half_conv2d(5, 7, 64, 32, images=2),
    "half strided tap": half_conv2d(7, 9, 64, 32, 1, 2, images=3),
    "half matrix": half_product(37, 64, 64),
    "brain matrix": half_product(19, 48, 64, BFLOAT16),
    "byte scores": product_of_bytes(
        placeholder("x", (19, 50), UINT8), placeholder("w", (40, 50), INT8)
    ),
    "scores": half_products(2, 19, 32, 37, turned=True),
    "values": half_products(2, 18, 37, 32, turned=False, dtype=BFLOAT16),
    "half deep matrix": half_product(40, 128, 64),
    "deep values": half_products(1, 18, 100, 32, turned=False),
    "rounded matrix": rounded_product(19, 48, 32, constant=True),
    "rounded scores": rounded_product(18, 50, 37, constant=False),
    "tap of 24": half_conv2d(3, 9, 24, 48, window=1),
    "brain tap": half_conv2d(6, 6, 96, 96, window=1, dtype=BFLOAT16),
}

"""Attention of two heads as a tensor expression, for tests of its form and of its kernels."""

from dataclasses import replace

from retune.core.dtypes import FLOAT16, FLOAT32, TF32, DType, TensorType
from retune.core.target import GENERIC_GPU
from retune.intrinsics.attention import MMA
from retune.ir.te import Dag, placeholder, stored
from retune.ops.registry import Names, OpCall, expression_of

ATTENDING = replace(GENERIC_GPU, instructions=(MMA,))
"""A GPU that has attention as one kernel."""


def attention_dag(
    rows: int,
    keys: int,
    width: int = 16,
    values: int = 32,
    *,
    causal: int | None = None,
    bias: tuple[int, ...] = (),
    dtype: DType = FLOAT16,
) -> Dag:
    """Of two heads of two batches; products of float32 are those of TF32."""
    shapes = {"q": (2, 2, rows, width), "k": (2, 2, keys, width), "v": (2, 2, keys, values)}
    inputs = [placeholder(name, shape, dtype) for name, shape in shapes.items()]
    inputs += [placeholder("bias", bias)] if bias else []
    call = OpCall(
        op="attention",
        inputs=inputs,
        attrs={"scale": 0.25}
        | ({} if causal is None else {"causal": causal})
        | ({"operands": TF32} if dtype is FLOAT32 else {}),
        output=TensorType((2, 2, rows, values), FLOAT32),
        name=Names(),
    )
    return Dag((stored(expression_of("attention")(call), dtype),))

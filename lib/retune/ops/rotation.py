"""Rotation of pairs of elements: what rotary embeddings do to queries and keys."""

from collections.abc import Sequence

import numpy as np

from retune.core.dims import always_equal
from retune.core.dtypes import Array, TensorType
from retune.ir.expr import Expr, cast, const
from retune.ir.te import Tensor
from retune.ops.registry import Attrs, OpCall, integer, op, present
from retune.ops.shapes import broadcast_shapes, require


def _infer(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, cos, sin = (present(types, index) for index in range(3))
    axis, rank = integer(attrs, "axis"), len(data.shape)
    require(
        0 <= axis < rank
        and data.shape[axis] == 2
        and data.dtype == cos.dtype == sin.dtype
        and cos.shape == sin.shape
        and len(cos.shape) == rank
        and cos.shape[axis] == 1
        and broadcast_shapes(data.shape, cos.shape) == data.shape,
        lambda: (
            f"rotate of {data} by {cos} and {sin} along axis {axis}: expected pairs along that "
            "axis, and cosines and sines that broadcast to them and are 1 there"
        ),
    )
    return (data,)


def _rotated(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    data, cos, sin = (present(arrays, index) for index in range(3))
    axis = integer(attrs, "axis")
    first, second = np.split(data, 2, axis)
    parts = (first * cos - second * sin, second * cos + first * sin)
    return (np.concatenate(parts, axis),)


@op("rotate", kind="injective", infer=_infer, numpy=_rotated)
def rotate(c: OpCall) -> Tensor:
    """T(i...) = x[i] * cos[i] + (2 p - 1) * x[1 - p] * sin[i]; p is the index along the axis."""
    x, cos, sin = c.inputs
    axis = integer(c.attrs, "axis")

    def body(*i: Expr) -> Expr:
        part = i[axis]
        other = (*i[:axis], 1 - part, *i[axis + 1 :])
        own = tuple(
            const(0) if always_equal(n, 1) else e for e, n in zip(i, cos.shape, strict=True)
        )
        sign = cast(part * 2 - 1, c.output.dtype)
        return x[i] * cos[own] + sign * x[other] * sin[own]

    return c.stage(body)

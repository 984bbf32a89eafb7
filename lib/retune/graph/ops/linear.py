"""Matrix products: `dense` against a constant-like weight [out, in], and general `matmul`."""

from collections.abc import Sequence

import numpy as np

from retune.core.dtypes import TensorType
from retune.graph.ops.registry import Array, Attrs, op, present
from retune.graph.ops.shapes import common_shape, require


def _infer_dense(types: Sequence[TensorType | None], _: Attrs) -> tuple[TensorType, ...]:
    data, weight = present(types), present(types, 1)
    require(
        len(data.shape) == 2 and len(weight.shape) == 2 and data.shape[1] == weight.shape[1],
        lambda: f"dense of {data} with weight {weight}: expected [n, k] and [m, k]",
    )
    return (TensorType((data.shape[0], weight.shape[0]), data.dtype),)


@op("dense", kind="heavy", infer=_infer_dense)
def dense(arrays: Sequence[Array | None], _: Attrs) -> tuple[Array, ...]:
    """data [n, k] times the transpose of weight [m, k]."""
    return (np.matmul(present(arrays), present(arrays, 1).T),)


def _infer_matmul(types: Sequence[TensorType | None], _: Attrs) -> tuple[TensorType, ...]:
    left, right = present(types), present(types, 1)
    require(
        len(left.shape) >= 2 and len(right.shape) >= 2 and left.shape[-1] == right.shape[-2],
        lambda: f"matmul of {left} with {right}: expected [..., n, k] and [..., k, m]",
    )
    batch = common_shape([TensorType(left.shape[:-2]), TensorType(right.shape[:-2])])
    return (TensorType((*batch, left.shape[-2], right.shape[-1]), left.dtype),)


@op("matmul", kind="heavy", infer=_infer_matmul)
def matmul(arrays: Sequence[Array | None], _: Attrs) -> tuple[Array, ...]:
    """Matrix product over the last two dimensions; the others broadcast."""
    return (np.matmul(present(arrays), present(arrays, 1)),)

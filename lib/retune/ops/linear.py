"""Matrix products: `dense` against a constant-like weight [out, in], and general `matmul`.

Products of bytes, each operand uint8 or int8, are summed in int32.
"""

from collections.abc import Sequence

import numpy as np

from retune.core.dtypes import INT7, INT8, INT32, UINT8, DType, TensorType
from retune.ops.registry import Array, Attrs, op, present
from retune.ops.shapes import common_shape, require

BYTES = (UINT8, INT8, INT7)


def sum_type(left: TensorType, right: TensorType) -> DType:
    """The type in which products of elements of both are summed. Raises: ModelError."""
    require(
        left.dtype == right.dtype or (left.dtype in BYTES and right.dtype in BYTES),
        lambda: f"products of {left} and {right}: expected one element type, or bytes in both",
    )
    return INT32 if left.dtype in BYTES and right.dtype in BYTES else left.dtype


def summed(left: Array, right: Array) -> Array:
    """The matrix product; integers are multiplied as float64, which is exact and much faster.

    Sums of bytes stay below 2**53 in magnitude; other integers wrap, so they stay as they are.
    """
    if left.dtype.name not in BYTES or right.dtype.name not in BYTES:
        return np.matmul(left, right)
    wide = np.matmul(left.astype(np.float64), right.astype(np.float64))
    return wide.astype(np.int64).astype(np.int32)


def _infer_dense(types: Sequence[TensorType | None], _: Attrs) -> tuple[TensorType, ...]:
    data, weight = present(types), present(types, 1)
    require(
        len(data.shape) == 2 and len(weight.shape) == 2 and data.shape[1] == weight.shape[1],
        lambda: f"dense of {data} with weight {weight}: expected [n, k] and [m, k]",
    )
    return (TensorType((data.shape[0], weight.shape[0]), sum_type(data, weight)),)


@op("dense", kind="heavy", infer=_infer_dense)
def dense(arrays: Sequence[Array | None], _: Attrs) -> tuple[Array, ...]:
    """data [n, k] times the transpose of weight [m, k]."""
    return (summed(present(arrays), present(arrays, 1).T),)


def _infer_matmul(types: Sequence[TensorType | None], _: Attrs) -> tuple[TensorType, ...]:
    left, right = present(types), present(types, 1)
    require(
        len(left.shape) >= 2 and len(right.shape) >= 2 and left.shape[-1] == right.shape[-2],
        lambda: f"matmul of {left} with {right}: expected [..., n, k] and [..., k, m]",
    )
    batch = common_shape([TensorType(left.shape[:-2]), TensorType(right.shape[:-2])])
    return (TensorType((*batch, left.shape[-2], right.shape[-1]), sum_type(left, right)),)


@op("matmul", kind="heavy", infer=_infer_matmul)
def matmul(arrays: Sequence[Array | None], _: Attrs) -> tuple[Array, ...]:
    """Matrix product over the last two dimensions; the others broadcast."""
    return (summed(present(arrays), present(arrays, 1)),)

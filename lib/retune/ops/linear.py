"""Matrix products: `dense` against a constant-like weight [out, in], and general `matmul`.

Products of bytes, each operand uint8 or int8, are summed in int32.
"""

from collections.abc import Sequence

from retune.core.dtypes import INT7, INT8, INT32, UINT8, DType, TensorType
from retune.ir.expr import Expr, Load, cast, const
from retune.ir.functions import call, rounding
from retune.ir.te import Tensor, reduce_axis
from retune.ops.registry import Attrs, OpCall, is_single, op, present
from retune.ops.shapes import common_shape, require

BYTES = (UINT8, INT8, INT7)


def sum_type(left: TensorType, right: TensorType) -> DType:
    """The type in which products of elements of both are summed. Raises: ModelError."""
    require(
        left.dtype == right.dtype or (left.dtype in BYTES and right.dtype in BYTES),
        lambda: f"products of {left} and {right}: expected one element type, or bytes in both",
    )
    return INT32 if left.dtype in BYTES and right.dtype in BYTES else left.dtype


def product(a: Load, b: Load, c: OpCall) -> Expr:
    """The product of two elements in the type of the output.

    Operands are rounded to the type that the attribute `operands` names, if there is one.
    """
    dtype = c.output.dtype
    if (operands := c.attrs.get("operands")) is not None:
        rounded = rounding(DType(str(operands)))
        return call(rounded, cast(a, dtype)) * call(rounded, cast(b, dtype))
    return a * b if a.dtype == dtype else cast(a, dtype) * cast(b, dtype)


def _infer_dense(types: Sequence[TensorType | None], _: Attrs) -> tuple[TensorType, ...]:
    data, weight = present(types), present(types, 1)
    require(
        len(data.shape) == 2 and len(weight.shape) == 2 and data.shape[1] == weight.shape[1],
        lambda: f"dense of {data} with weight {weight}: expected [n, k] and [m, k]",
    )
    return (TensorType((data.shape[0], weight.shape[0]), sum_type(data, weight)),)


@op("dense", kind="heavy", infer=_infer_dense)
def dense(c: OpCall) -> Tensor:
    """T_dense(i, j) += data[i, k] * weight[j, k]."""
    data, weight = c.inputs
    k = reduce_axis("k", data.shape[1])
    return c.stage(lambda i, j: product(data[i, k], weight[j, k], c), reduce=[k])


def _infer_matmul(types: Sequence[TensorType | None], _: Attrs) -> tuple[TensorType, ...]:
    left, right = present(types), present(types, 1)
    require(
        len(left.shape) >= 2 and len(right.shape) >= 2 and left.shape[-1] == right.shape[-2],
        lambda: f"matmul of {left} with {right}: expected [..., n, k] and [..., k, m]",
    )
    batch = common_shape([TensorType(left.shape[:-2]), TensorType(right.shape[:-2])])
    return (TensorType((*batch, left.shape[-2], right.shape[-1]), sum_type(left, right)),)


@op("matmul", kind="heavy", infer=_infer_matmul)
def matmul(c: OpCall) -> Tensor:
    """T_matmul(b..., i, j) += a[b..., i, k] * w[b..., k, j]; batch extents of 1 broadcast."""
    left, right = c.inputs
    k = reduce_axis("k", left.shape[-1])
    rank = len(c.output.shape)

    def batch(tensor: Tensor, axes: Sequence[Expr]) -> list[Expr]:
        own = tensor.shape[:-2]
        first = rank - 2 - len(own)
        rows = zip(axes[first : rank - 2], own, c.output.shape[first:], strict=False)
        return [const(0) if is_single(e, whole) else a for a, e, whole in rows]

    def body(*axes: Expr) -> Expr:
        a = left[(*batch(left, axes), axes[-2], k.var)]
        return product(a, right[(*batch(right, axes), k.var, axes[-1])], c)

    return c.stage(body, reduce=[k], axes=[*(f"b{d}" for d in range(rank - 2)), "i", "j"])

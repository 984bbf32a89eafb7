"""Weights of 2, 4 or 8 bits that stay packed: `dense_blocks` multiplies, `gather_blocks` looks up.

Quantized values are packed into bytes, the first ones in the lowest bits. A row of a weight has
blocks of them, each with a scale and a zero point of its own: a quantized value q stands for
(q - zero point) * scale.
"""

from collections.abc import Sequence

import numpy as np

from retune.core.dtypes import INT32, UINT8, Array, TensorType
from retune.ir.expr import Expr, binary, cast, const, select
from retune.ir.te import Tensor, reduce_axis
from retune.ops.indexing import INDEX_TYPES
from retune.ops.registry import Attrs, OpCall, integer, op, present
from retune.ops.shapes import require

BITS = (2, 4, 8)


def _infer_dense(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, quantized, scale = (present(types, index) for index in range(3))
    zero, bits = present(types, 3), integer(attrs, "bits")
    require(
        bits in BITS
        and quantized.dtype == UINT8
        and len(quantized.shape) == 3
        and len(data.shape) == 2
        and data.shape[1] == quantized.shape[1] * quantized.shape[2] * (8 // bits)
        and scale.shape == zero.shape == quantized.shape[:2]
        and scale.dtype == data.dtype
        and zero.dtype in (UINT8, data.dtype),
        lambda: (
            f"dense_blocks of {data}, {quantized} of {bits} bits, scales {scale}, zero points "
            f"{zero}: expected [n, k], uint8 [m, blocks, bytes] of k values, and twice [m, blocks]"
        ),
    )
    return (TensorType((data.shape[0], quantized.shape[0]), data.dtype),)


def _dense(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    data, quantized, scale, zero = (present(arrays, index) for index in range(4))
    whole = unpacked(quantized, integer(attrs, "bits")).astype(data.dtype)
    weight = (whole - zero[..., None].astype(data.dtype)) * scale[..., None]
    return (data @ weight.reshape(len(quantized), -1).T,)


@op("dense_blocks", kind="heavy", infer=_infer_dense, numpy=_dense)
def dense_blocks(c: OpCall) -> Tensor:
    """T(i, j) += data[i, k] * (q(j, k) - zero[j, block]) * scale[j, block], k of a block."""
    data, quantized, scale, zero = c.inputs
    bits, dtype = integer(c.attrs, "bits"), c.output.dtype
    each = 8 // bits
    block = reduce_axis("block", quantized.shape[1])
    byte = reduce_axis("byte", quantized.shape[2])
    part = reduce_axis("part", each)

    def body(i: Expr, j: Expr) -> Expr:
        k = (block.var * quantized.shape[2] + byte.var) * each + part.var
        value = _quantized_value(quantized[j, block.var, byte.var], part.var, bits)
        less = cast(value, dtype) - cast(zero[j, block.var], dtype)
        return data[i, k] * (less * scale[j, block.var])

    return c.stage(body, reduce=[block, byte, part])


def unpacked(quantized: Array, bits: int) -> Array:
    """The quantized values as one byte each, along the last dimension."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (quantized[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return parts.reshape(*quantized.shape[:-1], -1)


def packed(quantized: Array, bits: int) -> Array:
    """The inverse of `unpacked`."""
    parts = quantized.reshape(*quantized.shape[:-1], -1, 8 // bits).astype(np.uint8)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return np.bitwise_or.reduce(parts << shifts, axis=-1)


def _infer_gather(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    quantized, indices, scale, zero = (present(types, index) for index in range(4))
    axis, along, block = (integer(attrs, key) for key in ("axis", "along", "block"))
    bits, shape = integer(attrs, "bits"), quantized.shape
    require(
        bits in BITS and quantized.dtype == UINT8 and 0 <= axis < len(shape) > along >= 0,
        lambda: f"gather_blocks of {quantized} of {bits} bits: expected uint8, and axes of it",
    )
    extents = (*shape[:-1], shape[-1] * (8 // bits))
    blocks = (*extents[:along], -(-extents[along] // block), *extents[along + 1 :])
    require(
        scale.shape == zero.shape == blocks
        and zero.dtype in (UINT8, scale.dtype)
        and indices.dtype in INDEX_TYPES,
        lambda: (
            f"gather_blocks of {quantized} with scales {scale}, zero points {zero}, indices "
            f"{indices}: expected scales and zero points {list(blocks)}, and integer indices"
        ),
    )
    return (TensorType((*extents[:axis], *indices.shape, *extents[axis + 1 :]), scale.dtype),)


def _gather(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    quantized, indices, scale, zero = (present(arrays, index) for index in range(4))
    axis, along = integer(attrs, "axis"), integer(attrs, "along")
    whole = unpacked(quantized, integer(attrs, "bits"))
    block = np.arange(whole.shape[along]) // integer(attrs, "block")
    factor = np.take(scale, block, along)
    table = (whole.astype(scale.dtype) - np.take(zero, block, along).astype(scale.dtype)) * factor
    extent = table.shape[axis]
    inside = (indices >= -extent) & (indices < extent)
    found = np.take(table, np.where(inside, indices, 0), axis)
    return (np.where(inside.reshape(*inside.shape, *(1,) * (table.ndim - 1 - axis)), found, 0),)


@op("gather_blocks", kind="injective", infer=_infer_gather, numpy=_gather)
def gather_blocks(c: OpCall) -> Tensor:
    """T(i...) = (q - zero) * scale of the slice that an index names, 0 for one outside."""
    quantized, indices, scale, zero = c.inputs
    axis, along, block, bits = (integer(c.attrs, k) for k in ("axis", "along", "block", "bits"))
    each, rank, dtype = 8 // bits, len(indices.shape), c.output.dtype
    extent = quantized.shape[axis] * (each if axis == len(quantized.shape) - 1 else 1)

    def body(*i: Expr) -> Expr:
        index = indices[i[axis : axis + rank]]
        inside = binary("and", index >= -extent, index < extent)
        front = select(index < 0, index + extent, index)
        position = cast(select(inside, front, const(0, index.dtype)), INT32)
        at = (*i[:axis], position, *i[axis + rank :])
        own = tuple(e // block if d == along else e for d, e in enumerate(at))
        value = _quantized_value(quantized[(*at[:-1], at[-1] // each)], at[-1] % each, bits)
        scaled = (cast(value, dtype) - cast(zero[own], dtype)) * scale[own]
        return select(inside, scaled, const(0.0, dtype))

    return c.stage(body)


def _quantized_value(byte: Expr, part: Expr, bits: int) -> Expr:
    """The quantized value at that position of a byte. int32"""
    shifted = binary("shr", cast(byte, INT32), part * bits)
    return binary("bitand", shifted, const((1 << bits) - 1, INT32))

"""Weights of 2, 4 or 8 bits that stay packed: `dense_blocks` multiplies, `gather_blocks` looks up.

A row of a weight has blocks of quantized values, each with a scale and a zero point of its own: a
quantized value q stands for (q - zero point) * scale. Tables have them packed into bytes, the first
ones in the lowest bits. Weights of products have them packed into int32 words, so that what one
shift and one mask leave of a word are four neighbours, one in each byte, as instructions for
products of bytes read them: with four bits, nibble 2*b + h of a word is its value 4*h + b.

Rows may be quantized to int8 as well, block by block, while a network runs: then products are of
integers, and exact inside of a block.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from retune.core.dtypes import FLOAT32, INT8, INT32, UINT8, Array, TensorType
from retune.ir.expr import Expr, Load, binary, cast, const, maximum, select
from retune.ir.functions import call
from retune.ir.te import Axis, Tensor, reduce_axis
from retune.ops.indexing import INDEX_TYPES
from retune.ops.registry import Attrs, OpCall, integer, op, present
from retune.ops.shapes import require

BITS = (2, 4, 8)
_BYTES = 4
"""Of a word."""
_MOST = 127
"""The largest quantized value of a row."""
_AT_ONCE = 1 << 17
"""Values of a weight that numpy unpacks at once: more of them leave the caches."""


def _infer_dense(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, quantized, scale = (present(types, index) for index in range(3))
    zero, bits = types[3] if len(types) > 3 else None, integer(attrs, "bits")
    require(
        bits in BITS
        and quantized.dtype == INT32
        and len(quantized.shape) == 3
        and len(data.shape) == 2
        and data.shape[1] == quantized.shape[1] * quantized.shape[2] * (32 // bits)
        and scale.shape == quantized.shape[:2]
        and scale.dtype == data.dtype
        and (zero is None or (zero.shape == scale.shape and zero.dtype in (UINT8, data.dtype)))
        and attrs.get("rows", data.dtype) in (data.dtype, INT8),
        lambda: (
            f"dense_blocks of {data}, {quantized} of {bits} bits, scales {scale}, zero points "
            f"{zero}: expected [n, k], int32 [m, blocks, words] of k values, and twice [m, blocks]"
        ),
    )
    return (TensorType((data.shape[0], quantized.shape[0]), data.dtype),)


def _dense(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    data, quantized, scale = (present(arrays, index) for index in range(3))
    zero = present(arrays, 3) if len(arrays) > 3 else np.full_like(scale, middle(attrs))
    if attrs.get("rows") == INT8:
        data = _rounded(data, scale.shape[1])
    found = np.empty((len(data), len(quantized)), data.dtype)
    count = max(1, _AT_ONCE // max(1, data.shape[1]))
    for begin in range(0, len(quantized), count):
        part = slice(begin, begin + count)
        weight = from_words(quantized[part], integer(attrs, "bits")).astype(data.dtype)
        weight -= zero[part, :, None].astype(data.dtype)
        weight *= scale[part, :, None]
        found[:, part] = data @ weight.reshape(len(weight), -1).T
    return (found,)


def _rounded(data: Array, blocks: int) -> Array:
    """The rows as they are after quantization to int8, block by block."""
    parts = data.reshape(len(data), blocks, -1)
    largest = np.abs(parts).max(-1, keepdims=True)
    factor = np.divide(_MOST, largest, out=np.zeros_like(largest), where=largest > 0)
    return (np.rint(parts * factor) * (largest * data.dtype.type(1 / _MOST))).reshape(data.shape)


def middle(attrs: Attrs) -> int:
    """The zero point of symmetric weights."""
    return 1 << (integer(attrs, "bits") - 1)


@op("dense_blocks", kind="heavy", infer=_infer_dense, numpy=_dense)
def dense_blocks(c: OpCall) -> Tensor:
    """T(i, j) += (products(i, block, j) - zero * sums(i, block)) * scale[j, block].

    Products and sums are those of the rows' elements in a block; of rows that are quantized they
    are whole numbers, and the row's own scale is a part of the scale.
    """
    _, quantized, scale, *zeros = c.inputs
    (count, blocks, _), dtype = quantized.shape, c.output.dtype
    near, steps, own = reduce_axis("k", _length(c)), _steps(c), reduce_axis("block", blocks)
    rows = _quantized_rows(c) if c.attrs.get("rows") == INT8 else _rows(c)
    extents = (c.output.shape[0], blocks)
    exact = FLOAT32 if rows.scales else dtype  # of integers far below 2**24
    total = c.stage(
        lambda i, block: cast(rows.element(i, block, near.var), exact),
        rows.inputs, stem="T_sums", shape=extents, reduce=[near],
    )  # fmt: skip

    def product(i: Expr, block: Expr, j: Expr) -> Expr:
        element = rows.element(i, block, _position(steps))
        value = _of_word(quantized[j, block, steps[0].var], steps, c)
        return element * cast(value, element.dtype)

    inputs = [*rows.inputs, quantized]
    products = c.stage(
        product, inputs, stem="T_products", shape=(*extents, count), reduce=steps
    )  # fmt: skip

    def body(i: Expr, j: Expr) -> Expr:
        at = own.var
        less = cast(products[i, at, j], dtype) - _zero(c, j, at) * cast(total[i, at], dtype)
        return less * rows.scaled(scale[j, at], i, at)

    return c.stage(body, [products, total, *rows.scales, scale, *zeros], reduce=[own])


@dataclass(frozen=True, slots=True)
class _RowBlocks:
    """Rows by blocks: elements, as a product takes them, and what they are to be multiplied by."""

    element: Callable[[Expr, Expr, Expr], Expr]
    """Of a row, its block and a position in that."""
    inputs: list[Tensor]
    """What elements are read of."""
    scaled: Callable[[Expr, Expr, Expr], Expr] = lambda scale, i, block: scale
    """A scale of the weight times that of a row's block."""
    scales: tuple[Tensor, ...] = ()


def _rows(c: OpCall) -> _RowBlocks:
    data, length = c.inputs[0], _length(c)
    return _RowBlocks(lambda i, block, k: data[i, block * length + k], [data])


def _quantized_rows(c: OpCall) -> _RowBlocks:
    """The rows in int8, block by block: the largest element is 127."""
    data, length, dtype = c.inputs[0], _length(c), c.output.dtype
    near, extents = reduce_axis("k", length), (data.shape[0], c.inputs[1].shape[1])
    largest = c.stage(
        lambda i, block: call("abs", data[i, block * length + near.var]),
        [data], stem="T_largest", shape=extents, reduce=[near], reducer="max",
    )  # fmt: skip

    def quantized(i: Expr, block: Expr, k: Expr) -> Expr:
        most = largest[i, block]
        factor = select(maximum(most, 0.0) > 0.0, const(_MOST, dtype) / most, const(0.0, dtype))
        return cast(call("round", data[i, block * length + k] * factor), INT8)

    row = c.stage(quantized, [data, largest], stem="T_quantized", shape=(*extents, length))
    return _RowBlocks(
        lambda i, block, k: cast(row[i, block, k], INT32),
        [row],
        lambda scale, i, block: scale * (1 / _MOST) * largest[i, block],
        (largest,),
    )


def _length(c: OpCall) -> int:
    """Values of a block."""
    return c.inputs[1].shape[2] * (32 // integer(c.attrs, "bits"))


def _steps(c: OpCall) -> list[Axis]:
    """Over the words of a block, and over what lies in a word: masks, and the bytes of each."""
    parts = [reduce_axis("part", 8 // integer(c.attrs, "bits")), reduce_axis("byte", _BYTES)]
    return [reduce_axis("word", c.inputs[1].shape[2]), *(p for p in parts if p.extent > 1)]


def _position(steps: Sequence[Axis]) -> Expr:
    """The number of a value in its block."""
    position: Expr = const(0)
    for axis in steps:
        position = position * axis.extent + axis.var
    return position


def _of_word(word: Load, steps: Sequence[Axis], c: OpCall) -> Expr:
    """The quantized value of a step. int32"""
    bits = integer(c.attrs, "bits")
    shift = steps[-1].var * 8
    if len(steps) > 2:
        shift = shift + steps[1].var * bits
    return binary("bitand", binary("shr", word, shift), const((1 << bits) - 1, INT32))


def _zero(c: OpCall, j: Expr, block: Expr) -> Expr:
    """The zero point of a block."""
    stored = c.inputs[3][j, block] if len(c.inputs) > 3 else const(middle(c.attrs))
    return cast(stored, c.output.dtype)


def to_words(values: Array, bits: int) -> Array:
    """Quantized values, one byte each, packed along the last dimension. int32"""
    lanes = np.ascontiguousarray(values, np.uint8).view("<u4")
    apart = lanes.reshape(*values.shape[:-1], -1, 8 // bits)
    return _joined(np.moveaxis(apart, -1, 0), bits).view("<i4")


def from_words(words: Array, bits: int) -> Array:
    """The inverse of `to_words`. uint8"""
    whole = np.ascontiguousarray(words).view("<u4")
    mask = np.uint32(0x01010101 * ((1 << bits) - 1))
    parts = np.empty((*words.shape, 8 // bits), "<u4")
    for number in range(8 // bits):
        parts[..., number] = (whole >> np.uint32(bits * number)) & mask
    return parts.view(np.uint8).reshape(*words.shape[:-1], -1)


def unpacked(quantized: Array, bits: int) -> Array:
    """The quantized values as one byte each, along the last dimension."""
    parts = np.empty((*quantized.shape, 8 // bits), np.uint8)
    for number in range(8 // bits):
        parts[..., number] = (quantized >> np.uint8(bits * number)) & np.uint8((1 << bits) - 1)
    return parts.reshape(*quantized.shape[:-1], -1)


def packed(quantized: Array, bits: int) -> Array:
    """The inverse of `unpacked`."""
    parts = quantized.reshape(*quantized.shape[:-1], -1, 8 // bits).astype(np.uint8, copy=False)
    return _joined(np.moveaxis(parts, -1, 0), bits)


def _joined(parts: Array, bits: int) -> Array:
    """Elements of values of so many bits, the lowest of which come first along the first axis.

    Part by part: numpy's reductions over so few elements take ten times as long.
    """
    found = parts[0].copy()
    for number in range(1, 8 // bits):
        found |= parts[number] << parts.dtype.type(bits * number)
    return found


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
    bits, block = integer(attrs, "bits"), integer(attrs, "block")
    if axis == quantized.ndim - 1:
        quantized, bits = unpacked(quantized, bits), 8
    extent = quantized.shape[axis]
    inside = (indices >= -extent) & (indices < extent)
    slices = np.where(inside, indices + extent * (indices < 0), 0)
    found = unpacked(np.take(quantized, slices, axis), bits)

    def of_elements(blocks: Array) -> Array:
        if along == axis:
            return np.take(blocks, slices // block, axis)
        own = np.take(blocks, slices, axis)
        at = along if along < axis else along + slices.ndim - 1
        return np.take(own, np.arange(found.shape[at]) // block, at)

    factor = of_elements(scale)
    values = (found.astype(scale.dtype) - of_elements(zero).astype(scale.dtype)) * factor
    shown = (*inside.shape, *(1,) * (values.ndim - slices.ndim - axis))
    return (np.where(inside.reshape(shown), values, 0),)


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

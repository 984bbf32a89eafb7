"""Weights of a few bits in blocks, as Olive and the GenAI builder write them.

They stay packed in the graph and in the bundle; kernels unpack them. Where a file allows it
(`accuracy_level` 4), rows are quantized too, and products are those of bytes.
"""

from math import prod

import numpy as np

from retune.core.dtypes import INT8
from retune.core.errors import ModelError
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op, positive_axis
from retune.ops.packed import BITS, packed, to_words, unpacked
from retune.proto.scope import MICROSOFT

_INT8 = 4
"""The level of accuracy at which rows may be rounded to int8."""
_LEAST = 64
"""Bits of a block, below which onnxruntime computes in floats at every level."""
_FOUR = 15
"""The largest value of four bits."""


@onnx_op("MatMulNBits", domain=MICROSOFT, limits="2, 4 or 8 bits, known while importing")
def matmul_nbits(node: OnnxNode, emit: Emitter) -> None:
    """The product with a packed weight, whose blocks have scales and zero points, plus a bias."""
    bits, block = node.integer("bits", 4), node.integer("block_size", 32)
    count, depth = node.integer("N", 0), node.integer("K", 0)
    if bits not in BITS:
        raise emit.refuse(f"a weight of {bits} bits", "quantize to 2, 4 or 8 bits")
    if node.integer("weight_prepacked", 0):
        raise emit.refuse("a weight in the layout of a GPU", "export it without prepacking")
    *outer, width = emit.shape(node.inputs[0])
    blocks = -(-depth // block)
    rows = emit.reshaped(node.inputs[0], (prod(outer), width))
    quantized = emit.contents(1, "the weight").reshape(count, blocks, block * bits // 8)
    values = unpacked(quantized, bits)
    scales = emit.contents(2, "the scales").reshape(count, blocks)
    if node.has_input(4):
        order = _order(emit.contents(4, "g_idx").reshape(-1), blocks, 32 // bits)
        values = _reordered(values, order)
        rows = _padded(emit, rows, 1)
        rows = emit.temp("gather", rows, emit.stored("order", order.reshape(-1)), axis=1)
    else:
        rows = _padded(emit, rows, blocks * block - width)
    weight = {"quantized": to_words(values, bits), "scales": scales}
    if node.has_input(3):
        weight["zeros"] = _zero_points(emit, bits, (count, blocks))
    stored = [emit.stored(label, array) for label, array in weight.items()]
    allowed = node.integer("accuracy_level", 0) == _INT8 and bits * block >= _LEAST
    whole = allowed and not node.has_input(4)
    attrs = {"rows": INT8} if whole else {}
    made = emit.temp("dense_blocks", rows, *stored, bits=bits, **attrs)
    if node.has_input(5):
        made = emit.temp("add", made, node.inputs[5], label="biased")
    emit.out("reshape", made, shape=(*outer, count))


def _order(group: np.ndarray, blocks: int, each: int) -> np.ndarray:
    """The columns of each group [blocks, most], as many as fill words of `each` values.

    Behind the columns of smaller groups stands the number of all columns. int32
    """
    most = -(-int(np.bincount(group, minlength=blocks).max()) // each) * each
    order = np.full((blocks, most), len(group), np.int32)
    for number in range(blocks):
        columns = np.flatnonzero(group == number)
        order[number, : len(columns)] = columns
    return order


def _reordered(values: np.ndarray, order: np.ndarray) -> np.ndarray:
    """The quantized values [count, blocks, each] in blocks of other columns."""
    flat = values.reshape(len(values), -1)[:, : order.max(initial=0) + 1]
    flat = np.pad(flat, ((0, 0), (0, 1)))
    return flat[:, np.minimum(order, flat.shape[1] - 1)]


def _padded(emit: Emitter, rows: str, missing: int) -> str:
    """The rows with so many zeros behind each."""
    if not missing:
        return rows
    return emit.temp("pad", rows, label="wide", pads=(0, 0, 0, missing), value=0.0)


def _zero_points(emit: Emitter, bits: int, shape: tuple[int, int]) -> np.ndarray:
    """Zero points for each block: of the scales' type, or uint8, unpacked."""
    known = emit.contents(3, "the zero points")
    if known.dtype != np.uint8:
        return known.reshape(shape)
    return np.ascontiguousarray(unpacked(known.reshape(shape[0], -1), bits)[:, : shape[1]])


@onnx_op("GatherBlockQuantized", domain=MICROSOFT, limits="integers, known while importing")
def gather_blocks(node: OnnxNode, emit: Emitter) -> None:
    """Slices of a quantized table by index, as floats; zeros where the index is outside."""
    rank, block = len(emit.shape(node.inputs[0])), node.integer("block_size", 128)
    axis = positive_axis(node.integer("gather_axis", 0), rank)
    along = positive_axis(node.integer("quantize_axis", 1), rank)
    quantized, zeros, bits = _table(node, emit, along)
    scales = emit.contents(2, "the scales")
    extents = (*quantized.shape[:-1], quantized.shape[-1] * (8 // bits))
    if scales.shape != (*extents[:along], -(-extents[along] // block), *extents[along + 1 :]):
        raise ModelError(
            f"scales {list(scales.shape)} for values {list(extents)} in blocks of {block} along "
            f"axis {along}: expected one for each block; quantize the model again"
        )
    stored = [emit.stored(*pair) for pair in (("quantized", quantized), ("scales", scales))]
    inputs = (stored[0], node.inputs[1], stored[1], emit.stored("zeros", zeros))
    emit.out("gather_blocks", *inputs, axis=axis, along=along, block=block, bits=bits)


def _table(node: OnnxNode, emit: Emitter, along: int) -> tuple[np.ndarray, np.ndarray, int]:
    """The table's packed values, the zero points of its blocks, and the bits of a value.

    Integers of four bits are bytes here, one value each, and are packed if rows are even. Bytes of
    the file are packed if the number of scales says so, or where values need more than four bits.
    """
    quantized, scales = emit.contents(0, "the table"), emit.contents(2, "the scales")
    bits, block = node.integer("bits", 4), node.integer("block_size", 128)
    zeros = emit.contents(3, "the zero points") if node.has_input(3) else None
    plain = scales.shape[along] == -(-quantized.shape[along] // block)
    if quantized.dtype == np.uint8 and (quantized.max(initial=0) > _FOUR or not plain):
        if zeros is None:
            return quantized, np.full(scales.shape, 1 << (bits - 1), np.uint8), bits
        return (
            quantized,
            np.ascontiguousarray(unpacked(zeros, bits)[..., : scales.shape[quantized.ndim - 1]]),
            bits,
        )
    lift = 8 if quantized.dtype == np.int8 else 0
    zeros = np.zeros(scales.shape, quantized.dtype) if zeros is None else zeros
    lifted, zeros = ((array + lift).astype(np.uint8) for array in (quantized, zeros))
    odd = quantized.shape[quantized.ndim - 1] % 2
    return (lifted, zeros, 8) if odd else (packed(lifted, 4), zeros, 4)

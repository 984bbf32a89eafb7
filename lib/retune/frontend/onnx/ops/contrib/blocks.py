"""Weights of a few bits in blocks, as Olive and the GenAI builder write them.

They stay packed in the graph and in the bundle; kernels unpack them.
"""

from dataclasses import dataclass

import numpy as np

from retune.core.dtypes import INT64
from retune.core.errors import ModelError
from retune.frontend.onnx.ops.indexing import from_the_front
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op, positive_axis
from retune.ops.packed import BITS, packed, unpacked
from retune.proto.scope import MICROSOFT


@onnx_op("MatMulNBits", domain=MICROSOFT, limits="2, 4 or 8 bits, known while importing")
def matmul_nbits(node: OnnxNode, emit: Emitter) -> None:
    """The product with a packed weight, whose blocks have scales and zero points, plus a bias."""
    bits, block = node.integer("bits", 4), node.integer("block_size", 32)
    count, depth = node.integer("N", 0), node.integer("K", 0)
    if bits not in BITS or node.integer("weight_prepacked", 0):
        raise emit.refuse(f"{bits} bits, or a prepacked weight", "quantize to 2, 4 or 8 bits")
    *outer, width = emit.shape(node.inputs[0])
    blocks = -(-depth // block)
    rows = emit.reshaped(node.inputs[0], (int(np.prod(outer)), width))
    codes = emit.contents(1, "the weight").reshape(count, blocks, block * bits // 8)
    scales = emit.contents(2, "the scales").reshape(count, blocks)
    if node.has_input(4):
        order = _order(emit.contents(4, "g_idx").reshape(-1), blocks, 8 // bits)
        codes = _reordered(codes, bits, order)
        rows = _padded(emit, rows, 1)
        rows = emit.temp("gather", rows, emit.stored("order", order.reshape(-1)), axis=1)
    else:
        rows = _padded(emit, rows, blocks * block - width)
    zeros = _zero_points(node, emit, bits, (count, blocks))
    weight = (("codes", codes), ("scales", scales), ("zeros", zeros))
    stored = [emit.stored(label, array) for label, array in weight]
    made = emit.temp("dense_blocks", rows, *stored, bits=bits)
    if node.has_input(5):
        made = emit.temp("add", made, node.inputs[5], label="biased")
    emit.out("reshape", made, shape=(*outer, count))


def _order(group: np.ndarray, blocks: int, each: int) -> np.ndarray:
    """The columns of each group [blocks, most], as many as fill bytes of `each` codes.

    Behind the columns of smaller groups stands the number of all columns. int32
    """
    most = -(-int(np.bincount(group, minlength=blocks).max()) // each) * each
    order = np.full((blocks, most), len(group), np.int32)
    for number in range(blocks):
        columns = np.flatnonzero(group == number)
        order[number, : len(columns)] = columns
    return order


def _reordered(codes: np.ndarray, bits: int, order: np.ndarray) -> np.ndarray:
    """The codes [count, blocks, bytes] in blocks of other columns, packed again."""
    flat = unpacked(codes, bits).reshape(len(codes), -1)[:, : order.max(initial=0) + 1]
    flat = np.pad(flat, ((0, 0), (0, 1)))
    return packed(flat[:, np.minimum(order, flat.shape[1] - 1)], bits)


def _padded(emit: Emitter, rows: str, missing: int) -> str:
    """The rows with so many zeros behind each."""
    if not missing:
        return rows
    return emit.temp("pad", rows, label="wide", pads=(0, 0, 0, missing), value=0.0)


def _zero_points(node: OnnxNode, emit: Emitter, bits: int, shape: tuple[int, int]) -> np.ndarray:
    """Zero points for each block: of the scales' type, or uint8, unpacked."""
    if not node.has_input(3):
        return np.full(shape, 1 << (bits - 1), np.uint8)
    known = emit.contents(3, "the zero points")
    if known.dtype != np.uint8:
        return known.reshape(shape)
    return np.ascontiguousarray(unpacked(known.reshape(shape[0], -1), bits)[:, : shape[1]])


@onnx_op("GatherBlockQuantized", domain=MICROSOFT, limits="integers, known while importing")
def gather_blocks(node: OnnxNode, emit: Emitter) -> None:
    """Slices of a quantized table by index, as floats; zeros where the index is outside."""
    table, rank, bits = _table(node, emit), len(emit.shape(node.inputs[0])), node.integer("bits", 4)
    axis = positive_axis(node.integer("gather_axis", 0), rank)
    along = positive_axis(node.integer("quantize_axis", 1), rank)
    indices, extent = node.inputs[1], table.extents[axis]
    if table.packed and axis == rank - 1:
        raise emit.refuse("gathering along packed codes", "gather along another axis")
    places = from_the_front(emit, indices, (extent,))
    first, last = (emit.stored("limit", np.asarray(n, np.int64)) for n in (0, extent - 1))
    places = emit.temp("minimum", emit.temp("maximum", places, first), last, label="places")
    found = emit.temp("gather", emit.stored("codes", table.codes), places, label="found", axis=axis)
    found = emit.temp("unpack", found, bits=bits) if table.packed else found
    step = emit.stored("block", np.asarray(table.block, np.int64))
    rows = emit.temp("divide", places, step, label="rows") if axis == along else places

    def spread(array: np.ndarray, label: str) -> str:
        """One element for each of the codes that are found, or one for all in a block."""
        made = emit.temp("gather", emit.stored(label, array), rows, label="own", axis=axis)
        if axis == along:
            return made
        after = along if along < axis else along + len(emit.shape(indices)) - 1
        return repeated(emit, made, after, table.block, table.extents[along])

    scale = spread(table.scales, "scales")
    dtype = emit.type(scale).dtype
    less = emit.temp(
        "subtract", emit.cast(found, dtype), emit.cast(spread(table.zeros, "zeros"), dtype)
    )
    value = emit.temp("multiply", less, scale, label="value")
    emit.out(
        "where",
        _inside(emit, indices, extent, emit.shape(value), axis),
        value,
        emit.scalar(0, value, "none"),
    )


def _inside(emit: Emitter, indices: str, extent: int, shape: tuple[int, ...], axis: int) -> str:
    """The condition that indices are inside, in front of the dimensions behind the gathered one."""
    low, high = (emit.stored("limit", np.asarray(n, np.int64)) for n in (-extent, extent - 1))
    wide = emit.cast(indices, INT64)
    least = emit.temp("greater_equal", wide, low)
    inside = emit.temp("logical_and", least, emit.temp("less_equal", wide, high))
    own = emit.shape(indices)
    return emit.reshaped(inside, (*own, *(1,) * (len(shape) - axis - len(own))))


def repeated(emit: Emitter, value: str, axis: int, count: int, extent: int) -> str:
    """Each element along an axis `count` times, cut to the extent."""
    shape = emit.shape(value)
    apart = emit.reshaped(value, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    wide = (*shape[: axis + 1], count, *shape[axis + 1 :])
    flat = (*shape[:axis], shape[axis] * count, *shape[axis + 1 :])
    made = emit.reshaped(emit.temp("broadcast_to", apart, label="wide", shape=wide), flat)
    return emit.part(made, axis, 0, extent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A quantized table: codes, with a scale and a zero point for each block along an axis."""

    codes: np.ndarray
    packed: bool
    """True: each byte has several codes along the last dimension."""
    scales: np.ndarray
    zeros: np.ndarray
    block: int
    extents: tuple[int, ...]
    """Of the codes when they are unpacked."""


def _table(node: OnnxNode, emit: Emitter) -> Table:
    """The node's table. Integers of four bits are bytes here, one code each.

    Bytes are packed if the number of scales says so, or where codes are larger than four bits.
    """
    codes, scales = emit.contents(0, "the table"), emit.contents(2, "the scales")
    bits, block = node.integer("bits", 4), node.integer("block_size", 128)
    along = positive_axis(node.integer("quantize_axis", 1), codes.ndim)
    wide = (*codes.shape[:-1], codes.shape[-1] * (8 // bits))
    fits = -(-wide[along] // block) == scales.shape[along]
    byte = codes.dtype == np.uint8 and fits and bool(codes.size)
    byte = byte and (
        bool(codes.max() > 15) or -(-codes.shape[along] // block) != scales.shape[along]
    )
    extents = wide if byte else codes.shape
    if scales.shape != (*extents[:along], -(-extents[along] // block), *extents[along + 1 :]):
        raise ModelError(
            f"scales {list(scales.shape)} for codes {list(extents)} in blocks of {block} along "
            f"axis {along}: expected one for each block; quantize the model again"
        )
    if node.has_input(3):
        zeros = emit.contents(3, "the zero points")
        zeros = unpacked(zeros, bits)[..., : scales.shape[-1]] if byte else zeros
    else:
        zeros = np.full(scales.shape, 1 << (bits - 1) if byte else 0, codes.dtype)
    return Table(
        codes=codes,
        packed=byte and bits < 8,
        scales=scales,
        zeros=np.ascontiguousarray(zeros),
        block=block,
        extents=extents,
    )

"""Operators of com.microsoft that became, or are combinations of, operators of ONNX."""

from functools import reduce
from math import log, prod

import numpy as np

from retune.core.dtypes import INT32
from retune.core.errors import ModelError
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op
from retune.proto.scope import MICROSOFT


@onnx_op("Trilu", "GatherND", "Pad", "QuantizeLinear", "DequantizeLinear", domain=MICROSOFT)
def as_onnx(node: OnnxNode, emit: Emitter) -> None:
    """As ONNX's operator of that name."""
    emit.onnx_out(node.op_type, *node.inputs, **node.attrs)


@onnx_op("GridSample", domain=MICROSOFT)
def grid_sample(node: OnnxNode, emit: Emitter) -> None:
    """As GridSample of ONNX's opset 16."""
    emit.onnx_out("GridSample", *node.inputs, opset=16, **node.attrs)


@onnx_op("SampleOp", domain=MICROSOFT)
def sample_op(node: OnnxNode, emit: Emitter) -> None:
    """The input as it is."""
    emit.same(node.inputs[0])


@onnx_op("ExpandDims", domain=MICROSOFT, limits="axis known while importing")
def expand_dims(node: OnnxNode, emit: Emitter) -> None:
    """As Unsqueeze along one axis."""
    axis = emit.stored("axis", emit.contents(1, "the axis").reshape(1).astype(np.int64))
    emit.onnx_out("Unsqueeze", node.inputs[0], axis)


@onnx_op("Range", domain=MICROSOFT, folded=True, limits="bounds known while importing")
def value_range(node: OnnxNode, emit: Emitter) -> None:
    """As Range, in steps of 1 by default."""
    step = node.inputs[2] if node.has_input(2) else emit.scalar(1, node.inputs[0], "step")
    emit.onnx_out("Range", *node.inputs[:2], step)


@onnx_op("IsAllFinite", domain=MICROSOFT)
def is_all_finite(node: OnnxNode, emit: Emitter) -> None:
    """True if no element of any input is an infinity or NaN, or only one of these if it says so."""
    found: list[str] = []
    only_nan, only_inf = node.integer("isnan_only", 0), node.integer("isinf_only", 0)
    for value in node.inputs:
        flat = emit.reshaped(value, (prod(emit.shape(value)),))
        for op, left_out in (("is_nan", only_inf), ("is_inf", only_nan)):
            if not left_out:
                odd = emit.cast(emit.temp(op, flat), INT32)
                found.append(emit.temp("reduce_max", odd, axes=(0,), keepdims=False))
    most = reduce(lambda left, right: emit.temp("maximum", left, right), found)
    emit.out("equal", most, _whole(emit, 0))


@onnx_op("Unique", domain=MICROSOFT)
def unique(node: OnnxNode, emit: Emitter) -> None:
    """As Unique of ONNX in the order of first occurrence."""
    made, indices, counts = (*node.outputs, "", "")[:3]
    emit.onnx_outs("Unique", node.inputs, (made, "", indices, counts), opset=None, sorted=0)


@onnx_op("ConvTransposeWithDynamicPads", domain=MICROSOFT, limits="pads known while importing")
def conv_transpose(node: OnnxNode, emit: Emitter) -> None:
    """As ConvTranspose whose pads are input 2."""
    attrs = dict(node.attrs)
    if node.has_input(2):
        attrs["pads"] = emit.index_list(2, "the pads")
    emit.onnx_out("ConvTranspose", *node.inputs[:2], *node.inputs[3:4], **attrs)


@onnx_op("ComplexMul", "ComplexMulConj", domain=MICROSOFT)
def complex_product(node: OnnxNode, emit: Emitter) -> None:
    """The product of complex numbers [..., 2], the right ones conjugated for ComplexMulConj."""
    (a, b), (c, d) = (
        [emit.single(value, len(emit.shape(value)) - 1, part) for part in (0, 1)]
        for value in node.inputs
    )
    if node.op_type == "ComplexMulConj":
        d = emit.temp("negative", d)
    ac, bd, ad, bc = (emit.temp("multiply", *pair) for pair in ((a, c), (b, d), (a, d), (b, c)))
    parts = emit.temp("subtract", ac, bd, label="real"), emit.temp("add", ad, bc, label="imaginary")
    emit.same(emit.stacked(parts, len(emit.shape(parts[0]))))


@onnx_op("Rfft", "Irfft", domain=MICROSOFT)
def real_transform(node: OnnxNode, emit: Emitter) -> None:
    """The one-sided transform of real signals over the last signal_ndim dimensions, or back."""
    if node.integer("normalized", 0) or not node.integer("onesided", 1):
        raise emit.refuse("a two-sided or normalized transform", "use DFT of ONNX")
    data, inverse = node.inputs[0], int(node.op_type == "Irfft")
    if not inverse:
        data = emit.reshaped(data, (*emit.shape(data), 1))
    last = len(emit.shape(data)) - 2
    outer = range(last - node.integer("signal_ndim", 1) + 1, last)
    for axis, onesided in [*((d, 0) for d in outer), (last, 1)][:: 1 if inverse else -1]:
        along = emit.stored("axis", np.asarray(axis, np.int64))
        data = emit.onnx("DFT", data, "", along, inverse=inverse, onesided=onesided)
    emit.same(emit.single(data, last + 1, 0) if inverse else data)


@onnx_op("CDist", domain=MICROSOFT, limits="metric euclidean or sqeuclidean")
def distances(node: OnnxNode, emit: Emitter) -> None:
    """The distances of all rows of a matrix from all rows of another."""
    metric = node.choice("metric", ("sqeuclidean", "euclidean"))
    (m, width), (k, _) = (emit.shape(value) for value in node.inputs)
    left = emit.reshaped(node.inputs[0], (m, 1, width))
    apart = emit.temp("subtract", left, emit.reshaped(node.inputs[1], (1, k, width)))
    square = emit.temp("multiply", apart, apart, label="square")
    if metric == "sqeuclidean":
        return emit.out("reduce_sum", square, axes=(2,), keepdims=False)
    return emit.out("sqrt", emit.temp("reduce_sum", square, axes=(2,), keepdims=False))


@onnx_op("CropAndResize", domain=MICROSOFT, limits="size known while importing")
def crop_and_resize(node: OnnxNode, emit: Emitter) -> None:
    """Boxes of images resized to one size; the first and last samples are on the boxes' edges."""
    data, boxes, batch, _ = node.inputs
    size = emit.index_list(3, "the size")
    extents, count = emit.shape(data)[2:], emit.shape(boxes)[0]
    mode = node.text("mode", "bilinear")
    inside: list[str] = []
    positions: list[str] = []
    for d in (0, 1):
        position, within = _samples(
            emit, boxes, d, (size[d], extents[d]), nearest=mode == "nearest"
        )
        sides = (size[0], 1) if d == 0 else (1, size[1])
        inside.append(emit.reshaped(within, (count, 1, *sides)))
        shaped = emit.reshaped(position, (count, *sides))
        positions.append(emit.temp("broadcast_to", shaped, shape=(count, *size)))
    grid = emit.stacked((positions[1], positions[0]), 3)
    images = emit.temp("gather", data, batch, label="images", axis=0)
    made = emit.onnx("GridSample", images, grid, opset=16, mode=mode, align_corners=1)
    outside = emit.scalar(node.number("extrapolation_value", 0.0), data, "outside")
    emit.out("where", emit.temp("logical_and", *inside, label="inside"), made, outside)


def _samples(
    emit: Emitter, boxes: str, d: int, sizes: tuple[int, int], *, nearest: bool
) -> tuple[str, str]:
    """Where the boxes [count, 4] are sampled along one side, and which samples are in the image.

    Both are [count, made]; -1 is the image's first element and 1 the last. `sizes` are how many
    samples are made and how many elements there are. Halves are rounded up for the nearest.
    """
    made, extent = sizes
    share = np.linspace(0, 1, made) if made > 1 else np.full(1, 0.5)
    begin, end = (emit.part(boxes, 1, at, 1) for at in (d, d + 2))
    stored = emit.stored("share", share.astype(emit.type(boxes).dtype))
    reach = emit.temp("multiply", emit.temp("subtract", end, begin), stored, label="reach")
    unit = emit.temp("add", begin, reach, label="unit")
    last = emit.scalar(extent - 1, boxes, "last")
    position = emit.temp("multiply", unit, last, label="position")
    least = emit.temp("greater_equal", position, emit.scalar(0, boxes, "zero"))
    inside = emit.temp("logical_and", least, emit.temp("less_equal", position, last))
    if nearest:
        whole = emit.temp("floor", emit.temp("add", position, emit.scalar(0.5, boxes, "half")))
        unit = emit.temp("divide", whole, emit.scalar(max(extent - 1, 1), boxes, "steps"))
    twice = emit.temp("add", unit, unit, label="twice")
    return emit.temp("subtract", twice, emit.scalar(1, boxes, "one")), inside


@onnx_op("WordConvEmbedding", domain=MICROSOFT)
def word_embedding(node: OnnxNode, emit: Emitter) -> None:
    """For each word, the largest of tanh(convolution) over the windows of its characters.

    Words end at the first character that is not positive; one without characters is zero.
    """
    words, kernel, bias, table = node.inputs
    (count, length), (filters, _, width, _) = emit.shape(words), emit.shape(kernel)
    none, steps = _whole(emit, 0), _whole(emit, np.arange(length))
    text = emit.temp("greater", words, none, label="text")
    ends = emit.temp("where", text, _whole(emit, length), steps)
    lengths = emit.temp("reduce_min", ends, label="lengths", axes=(1,), keepdims=True)
    windows = emit.temp("subtract", lengths, _whole(emit, width - 1), label="windows")
    windows = emit.reshaped(emit.temp("maximum", windows, _whole(emit, 1)), (count, 1, 1))
    letters = emit.temp("gather", table, words, label="letters", axis=0)
    images = emit.reshaped(letters, (count, 1, length, emit.shape(table)[1]))
    made = emit.temp("tanh", emit.onnx("Conv", images, kernel, bias))
    made = emit.reshaped(made, (count, filters, length - width + 1))
    own = emit.temp("less", emit.part(steps, 0, 0, length - width + 1), windows, label="own")
    made = emit.temp("where", own, made, emit.scalar(-1, made, "least"))
    most = emit.temp("reduce_max", made, axes=(2,), keepdims=False)
    emit.out("where", emit.temp("equal", lengths, none), emit.scalar(0, most, "zero"), most)


def _whole(emit: Emitter, values: int | np.ndarray) -> str:
    """An int32 constant."""
    return emit.stored("whole", np.asarray(values, np.int32))


@onnx_op("RelativePositionBias", domain=MICROSOFT, limits="lengths known while importing")
def relative_position_bias(node: OnnxNode, emit: Emitter) -> None:
    """The bias [1, heads, query, key] of each distance's bucket, in buckets as T5 has them.

    The table is stored by heads, whatever its shape says.
    """
    buckets, heads = emit.shape(node.inputs[0])
    query, key = (int(emit.contents(i, "a length").reshape(-1)[0]) for i in (1, 2))
    distance = np.arange(key)[None] - np.arange(query)[:, None]
    both = bool(node.integer("is_bidirectional", 0))
    found = position_buckets(distance, buckets, node.integer("max_distance", 128), both=both)
    table = emit.reshaped(node.inputs[0], (heads, buckets))
    made = emit.temp("gather", table, emit.stored("buckets", found), axis=1)
    emit.out("reshape", made, shape=(1, heads, query, key))


def position_buckets(distance: np.ndarray, count: int, most: int, *, both: bool) -> np.ndarray:
    """The bucket of each distance key - query: exact ones, then logarithmic ones up to `most`.

    With `both` the upper half of the buckets is for keys that follow. int32. Raises: ModelError.
    """
    half = count // 2 if both else count
    if half < 2 or most <= half // 2:
        raise ModelError(
            f"{count} buckets for distances up to {most}; expected at least "
            f"{4 if both else 2} buckets, and longer distances"
        )
    behind = np.where(distance > 0, half, 0) if both else 0
    size = np.abs(distance) if both else np.maximum(-distance, 0)
    exact = half // 2
    ratio = np.log(np.maximum(size, 1).astype(np.float32) / np.float32(exact)) / log(most / exact)
    large = np.minimum(exact + (ratio * (half - exact)).astype(np.int64), half - 1)
    return (behind + np.where(size < exact, size, large)).astype(np.int32)


@onnx_op("GatedRelativePositionBias", domain=MICROSOFT, limits="no token offsets")
def gated_relative_position_bias(node: OnnxNode, emit: Emitter) -> None:
    """The relative position bias times a gate that each query computes."""
    query, query_bias, position, weight, bias, scale = node.inputs[:6]
    if node.has_input(6):
        raise emit.refuse("packed tokens", "optimise the model without packing")
    batch, length, hidden = emit.shape(query)
    heads = node.integer("num_heads", 1)
    biased = emit.temp("add", query, query_bias, label="biased")
    apart = emit.reshaped(biased, (batch, length, heads, hidden // heads))
    rows = emit.temp("transpose", apart, label="heads", perm=(0, 2, 1, 3))
    gates = emit.temp("add", emit.onnx("MatMul", rows, weight), bias, label="gates")
    wide = emit.shape(gates)[-1]
    parts = emit.reshaped(gates, (batch, heads, length, 2, wide // 2))
    sums = emit.temp("sigmoid", emit.temp("reduce_sum", parts, axes=(4,), keepdims=False))
    update, reset = (emit.part(sums, 3, index, 1) for index in (0, 1))
    one, two = (emit.scalar(number, query, "number") for number in (1, 2))
    inner = emit.temp("subtract", emit.temp("multiply", reset, scale), one)
    gate = emit.temp("add", emit.temp("multiply", update, inner), two, label="gate")
    emit.out("multiply", gate, position)


@onnx_op("Inverse", domain=MICROSOFT, limits="on the host")
def inverse(node: OnnxNode, emit: Emitter) -> None:
    """The inverse of each matrix, which lies in the last two dimensions."""
    emit.host(emit.type(node.inputs[0]))

"""Values between the elements of an image: GridSample and DeformConv; regions are in `regions`.

Each of them first computes points (one coordinate for each dimension of the image), then which
elements make up the value at a point and how much of each (`taps_at`), and lets the op `sample` add
them up. All but the last is element-wise arithmetic on small arrays, and folds where the points
are constant.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from retune.core.dtypes import FLOAT32, INT32, DType
from retune.core.errors import ModelError
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op
from retune.frontend.onnx.ops.windows import (
    WindowAttributes,
    convolution_of,
    spatial_extents,
    window_of,
)
from retune.ops import Array

_OFFSETS = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}
"""Mode -> the elements that make up a value, counted from the one before the point."""
_OLD_MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""Names of modes until opset 19."""
_CUBIC = -0.75
"""The coefficient of GridSample's cubic filter."""


class Arithmetic:
    """Element-wise ops on floats, with numbers and arrays as constants of the same type."""

    def __init__(self, emit: Emitter, dtype: DType) -> None:
        self.emit = emit
        self.dtype = dtype

    def __call__(self, op: str, *operands: str | float | Array, **attrs: Any) -> str:
        """The value made by an op."""
        return self.emit.temp(op, *(self.value(item) for item in operands), **attrs)

    def value(self, item: str | float | Array) -> str:
        """The name of a value; a constant's where it is a number or an array. Masks stay masks."""
        if isinstance(item, str):
            return item
        array = np.asarray(item)
        array = array if array.dtype == np.bool_ else array.astype(self.dtype)
        return self.emit.stored("constant", array)

    def clamped(self, x: str, low: float | Array, high: float | Array) -> str:
        """x, or the nearer one of the limits."""
        return self("minimum", self("maximum", x, low), high)

    def reflected(self, x: str, low: Array, high: Array) -> str:
        """x, mirrored at the limits until it lies between them."""
        span = np.where(high > low, high - low, 1)
        away = self("abs", self("subtract", x, low))
        turns = self("floor", self("multiply", away, 1 / (2 * span)))
        within = self("subtract", away, self("multiply", turns, 2 * span))
        back = self("abs", self("subtract", within, span))
        folded = self("subtract", span + low, back)
        return folded if np.all(high > low) else self("where", high > low, folded, low)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """How a value between elements is made."""

    mode: str
    outside: str
    """What lies past the edges: zeros, border (the element at the edge), or reflection."""
    limits: tuple[Array, Array]
    """Where the image begins and ends in each dimension."""


def taps_at(
    a: Arithmetic, points: str, extents: Sequence[int], how: Filter, keep: str = ""
) -> tuple[str, str]:
    """Indices int32 and weights [batch, points, taps] for points [batch, points, dimensions].

    Indices count the last dimension of the image first. `keep`, of the points' shape, is false
    where a coordinate gives nothing at all.
    """
    emit = a.emit
    batch, count, rank = emit.shape(points)
    start = a("round" if how.mode == "nearest" else "floor", points)
    x, base = (emit.reshaped(value, (batch, count, rank, 1)) for value in (points, start))
    at = a("add", base, np.asarray(_OFFSETS[how.mode]))
    last = np.asarray(extents)[:, None] - 1
    if how.outside == "reflection":
        low, high = (limit[:, None] for limit in how.limits)
        inside = a.clamped(a.reflected(at, low, high), 0, last)
    else:
        inside = a.clamped(at, 0, last)
    weights = _weights(a, a("abs", a("subtract", x, at)), how.mode)
    if how.outside == "zeros":
        weights = emit.temp("where", a("equal", inside, at), weights, a.value(0.0))
    if keep:
        kept = emit.reshaped(keep, (batch, count, rank, 1))
        weights = emit.temp("where", kept, weights, a.value(0.0))
    strides = [prod(extents[d + 1 :]) for d in range(rank)]
    whole = a("round", inside) if how.outside == "reflection" else inside
    steps = emit.stored("strides", np.asarray(strides, np.int32)[:, None])
    indices = emit.temp("multiply", emit.cast(whole, INT32), steps)
    return _combined(emit, indices, "add"), _combined(emit, weights, "multiply")


def _weights(a: Arithmetic, distance: str, mode: str) -> str:
    """The filter of the mode at these distances from the point; that is on the nearest element."""
    if mode != "cubic":
        return a("subtract", 1.0, distance)
    square = a("multiply", distance, distance)
    steep = a("subtract", a("multiply", distance, _CUBIC + 2), _CUBIC + 3)
    near = a("add", a("multiply", steep, square), 1.0)
    inner = a("subtract", a("multiply", distance, _CUBIC), 5 * _CUBIC)
    outer = a("add", a("multiply", inner, distance), 8 * _CUBIC)
    far = a("subtract", a("multiply", outer, distance), 4 * _CUBIC)
    return a("where", a("less", distance, 1.0), near, far)


def _combined(emit: Emitter, value: str, op: str) -> str:
    """[batch, points, dimensions, taps] as [batch, points, all taps], one dimension's by the
    others'."""
    batch, count, rank, taps = emit.shape(value)
    parts: list[str] = []
    for d in range(rank):
        sides = tuple(taps if axis == d else 1 for axis in range(rank))
        parts.append(emit.reshaped(emit.part(value, 2, d, 1), (batch, count, *sides)))
    whole = reduce(lambda left, right: emit.temp(op, left, right), parts)
    return emit.reshaped(whole, (batch, count, taps**rank))


@onnx_op("GridSample", since=16)
def grid_sample(node: OnnxNode, emit: Emitter) -> None:
    """The image at the points of a grid, which counts from -1 to 1, last dimension first."""
    data, grid = node.inputs[0], node.inputs[1]
    shape, extents = emit.shape(data), emit.shape(data)[2:]
    batch, *counts, rank = emit.shape(grid)
    mode = node.text("mode", "linear")
    mode, outside = _OLD_MODES.get(mode, mode), node.text("padding_mode", "zeros")
    if mode not in _OFFSETS or outside not in ("zeros", "border", "reflection"):
        raise ModelError(
            f"expected mode {', '.join(_OFFSETS)} with padding_mode zeros, border or reflection, "
            f"got {mode!r} with {outside!r}"
        )
    if rank != len(extents) or batch != shape[0]:
        raise ModelError(
            f"a grid {list(emit.shape(grid))} over data {list(shape)}: expected {len(extents)} "
            f"coordinates in {shape[0]} grids"
        )
    a = Arithmetic(emit, emit.type(grid).dtype)
    flat = emit.reshaped(grid, (batch, prod(counts), rank))
    turned: dict[str, Any] = {
        "begins": (0, 0, rank - 1),
        "steps": (1, 1, -1),
        "extents": emit.shape(flat),
    }
    points = emit.temp("slice", flat, **turned) if rank > 1 else flat
    how = filter_of(mode, outside, extents, corners=bool(node.integer("align_corners", 0)))
    points = _to_pixels(a, points, extents, how, corners=bool(node.integer("align_corners", 0)))
    indices, weights = taps_at(a, points, extents, how)
    kind = emit.type(data).dtype
    inner = kind if kind.is_float else FLOAT32
    source = emit.reshaped(emit.cast(data, inner), (*shape[:2], prod(extents)))
    result = emit.temp("sample", source, indices, emit.cast(weights, inner), axis=2)
    emit.out("reshape", emit.cast(result, kind), shape=(*shape[:2], *counts))


def filter_of(mode: str, outside: str, extents: Sequence[int], *, corners: bool) -> Filter:
    """The filter over an image that ends in the middle of its last elements, or behind them."""
    edge = np.asarray(extents) - 1.0
    limits = (0 * edge, edge) if corners else (0 * edge - 0.5, edge + 0.5)
    return Filter(mode=mode, outside=outside, limits=limits)


def _to_pixels(
    a: Arithmetic, points: str, extents: Sequence[int], how: Filter, *, corners: bool
) -> str:
    """Coordinates that count from -1 to 1 as those of elements, and not far outside."""
    whole = np.asarray(extents)
    from_zero = a("add", points, 1.0)
    if corners:
        pixels = a("multiply", a("multiply", from_zero, 0.5), whole - 1)
    else:
        pixels = a("multiply", a("subtract", a("multiply", from_zero, whole), 1.0), 0.5)
    if how.mode == "nearest":
        pixels = a("round", pixels)
    if how.outside == "reflection":
        return a.reflected(pixels, *how.limits)
    return a.clamped(pixels, -3, whole + 2)  # farther out, filters see nothing else


@onnx_op("DeformConv", since=19)
def deform_conv(node: OnnxNode, emit: Emitter) -> None:
    """A convolution whose taps are read where offsets move them; a mask weighs each of them.

    The taps are sampled first, all positions of one tap as a row. Then it is an ordinary
    convolution with a kernel as high as there are taps.
    """
    data, kernel, offset = node.inputs[:3]
    (batch, channels, *extents), (made, depth, *taps) = emit.shape(data), emit.shape(kernel)
    spatial_extents(emit, data)
    window = window_of(node, extents, tuple(taps))
    groups, parts = node.integer("group", 1), node.integer("offset_group", 1)
    rank, counts = len(extents), emit.shape(offset)[2:]
    base = _tap_points(window.strides, window.pads, window.dilations, taps, counts)
    count = prod(taps) * prod(counts)
    stated = (batch, parts * prod(taps) * rank, *counts)
    if emit.shape(offset) != stated or channels % parts or channels != depth * groups:
        raise ModelError(
            f"offsets {list(emit.shape(offset))} and weight {list(emit.shape(kernel))} over data "
            f"{list(emit.shape(data))}: expected offsets {list(stated)}, and channels that the "
            f"{groups} groups and {parts} groups of offsets divide"
        )
    a = Arithmetic(emit, emit.type(data).dtype)
    moves = emit.reshaped(offset, (batch * parts, prod(taps), rank, prod(counts)))
    moves = emit.temp("transpose", moves, perm=(0, 1, 3, 2))
    points = a("add", emit.reshaped(moves, (batch * parts, count, rank)), base)
    points = a.clamped(points, -2, np.asarray(extents) + 1)
    how = filter_of("linear", "zeros", extents, corners=True)
    indices, weights = taps_at(a, points, extents, how)
    if node.has_input(4):
        mask = emit.reshaped(node.inputs[4], (batch * parts, count, 1))
        weights = a("multiply", weights, mask)
    source = emit.reshaped(data, (batch * parts, channels // parts, prod(extents)))
    columns = emit.temp("sample", source, indices, weights, axis=2)
    image = emit.reshaped(columns, (batch, channels, prod(taps), prod(counts)))
    column = emit.reshaped(kernel, (made, depth, prod(taps), 1))
    square = WindowAttributes(
        kernel=(prod(taps), 1), strides=(1, 1), dilations=(1, 1), pads=(0,) * 4, stated_pads=()
    )
    op, attrs = convolution_of(emit, image, column, square, groups)
    result = emit.temp(op, image, column, **attrs)
    if node.has_input(3):
        result = a("add", result, emit.reshaped(node.inputs[3], (1, made, 1, 1)))
    emit.out("reshape", result, shape=(batch, made, *counts))


def _tap_points(
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    taps: Sequence[int],
    counts: Sequence[int],
) -> Array:
    """What each tap of each position reads before it is moved. [1, taps * positions, dimensions]"""
    rank = len(taps)
    tap = np.stack(np.meshgrid(*map(np.arange, taps), indexing="ij"), -1).reshape(-1, 1, rank)
    index = np.stack(np.meshgrid(*map(np.arange, counts), indexing="ij"), -1).reshape(1, -1, rank)
    points = tap * np.asarray(dilations) + index * np.asarray(strides) - np.asarray(pads[:rank])
    return points.reshape(1, -1, rank)

"""Regions of images, each as a few cells: RoiAlign and MaxRoiPool.

RoiAlign samples a cell at some points (see `sampling`). MaxRoiPool takes the maximum over a cell's
elements, however many there are: four maxima over rectangles whose sides are powers of two, which
are computed beforehand for every position, cover any rectangle.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from retune.core.dtypes import INT32
from retune.core.errors import ModelError
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op
from retune.frontend.onnx.ops.sampling import Arithmetic, filter_of, taps_at
from retune.ops import Array


@onnx_op("RoiAlign", since=10)
def roi_align_to_corners(node: OnnxNode, emit: Emitter) -> None:
    """Until opset 15: coordinates are those of the elements' corners."""
    _roi_align(node, emit, half_pixel=False)


@onnx_op("RoiAlign", since=16)
def roi_align(node: OnnxNode, emit: Emitter) -> None:
    """Regions of an image in so many cells, each the mean or maximum of samples."""
    form = node.text("coordinate_transformation_mode", "half_pixel")
    if form not in ("half_pixel", "output_half_pixel"):
        raise ModelError(f"coordinate_transformation_mode '{form}' is not known")
    _roi_align(node, emit, half_pixel=form == "half_pixel")


def _roi_align(node: OnnxNode, emit: Emitter, *, half_pixel: bool) -> None:
    data, rois, images = node.inputs
    if node.integer("sampling_ratio", 0) <= 0 and emit.known(rois) is None:
        return emit.host()  # how many samples a cell takes depends on the region
    (_, channels, *extents), regions = emit.shape(data), emit.shape(rois)[0]
    cells = node.integer("output_height", 1), node.integer("output_width", 1)
    a, peak = Arithmetic(emit, emit.type(data).dtype), node.text("mode", "avg") == "max"
    scaled = a("multiply", rois, node.number("spatial_scale", 1.0))
    scaled = a("subtract", scaled, 0.5 if half_pixel else 0.0)
    cut: dict[str, Any] = {"steps": (1, -1), "extents": (regions, 2)}  # x and y, as y and x
    start = emit.temp("slice", scaled, begins=(0, 1), **cut)
    size = a("subtract", emit.temp("slice", scaled, begins=(0, 3), **cut), start)
    size = size if half_pixel else a("maximum", size, 1.0)
    each = a("divide", size, np.asarray(cells))
    samples, shares = _cell_samples(node, emit, each, cells, peak=peak)
    start, each = (emit.reshaped(value, (regions, 1, 2)) for value in (start, each))
    points = a("add", start, a("multiply", each, samples))
    keep = a("equal", a.clamped(points, -1, np.asarray(extents)), points)
    points = a.clamped(points, 0, np.asarray(extents) - 1)
    how = filter_of("linear", "border", extents, corners=True)
    indices, weights = taps_at(a, points, extents, how, keep)
    weights = a("multiply", weights, shares)
    first = emit.cast(images, INT32)
    size_of_one = emit.scalar(prod(extents), first, "size")
    first = emit.reshaped(emit.temp("multiply", first, size_of_one), (regions, 1, 1))
    indices = emit.temp("add", indices, first)
    result = pooled(emit, data, indices, weights, prod(cells), peak=peak)
    apart = emit.reshaped(result, (channels, regions, prod(cells)))
    moved = emit.temp("transpose", apart, perm=(1, 0, 2))
    return emit.out("reshape", moved, shape=(regions, channels, *cells))


def _cell_samples(
    node: OnnxNode, emit: Emitter, each: str, cells: Sequence[int], *, peak: bool
) -> tuple[Array, Array]:
    """Where samples lie, in cells from the region's start, and the share of each in its cell.

    [regions or 1, samples, 2] and [regions or 1, samples, 1]; the samples of a cell side by side,
    its rows first. Regions that have fewer samples than others repeat one, or give it no share.
    """
    ratio = node.integer("sampling_ratio", 0)
    if ratio > 0:
        counts = np.full((1, 2), ratio)
    else:
        known = emit.known(each)
        assert known is not None
        counts = np.ceil(known).astype(np.int64)
    most = np.maximum(counts.max(axis=0, initial=1), 1)
    grid = np.meshgrid(*map(np.arange, (*cells, *most)), indexing="ij")
    cell, sample = (np.stack(part, -1).reshape(-1, 2) for part in (grid[:2], grid[2:]))
    counts = counts[:, None, :]
    own = np.minimum(sample, np.maximum(counts - 1, 0)) if peak else sample
    indices = cell + (own + 0.5) / np.maximum(counts, 1)
    used = np.all((counts > 0) if peak else (sample < counts), axis=-1, keepdims=True)
    shares = used / (1 if peak else np.maximum(counts.prod(axis=-1, keepdims=True), 1))
    return indices, np.broadcast_to(shares, (*indices.shape[:2], 1))


def pooled(emit: Emitter, data: str, indices: str, weights: str, cells: int, *, peak: bool) -> str:
    """[1 or nothing, channels, regions * cells]: the samples of each cell, added up or the largest.

    The largest is that of the weighted elements, which are not added up before.
    """
    batch, channels, *extents = emit.shape(data)
    regions, samples, taps = emit.shape(indices)
    source = emit.reshaped(data, (batch, channels, prod(extents)))
    if batch > 1:
        source = emit.temp("transpose", source, perm=(1, 0, 2))
    source = emit.reshaped(source, (1, channels, batch * prod(extents)))
    rows, each = regions * cells, samples // cells * taps
    shape = (1, rows * each, 1) if peak else (1, rows, each)
    tables = [emit.reshaped(value, shape) for value in (indices, weights)]
    found = emit.temp("sample", source, *tables, axis=2)
    if not peak:
        return found
    found = emit.reshaped(found, (channels, rows, each))
    return emit.temp("reduce_max", found, axes=(2,), keepdims=False)


@onnx_op("MaxRoiPool")
def max_roi_pool(node: OnnxNode, emit: Emitter) -> None:
    """The largest element of each cell of a region, whose edges are rounded to elements."""
    data, rois = node.inputs
    (_, channels, *extents), regions = emit.shape(data), emit.shape(rois)[0]
    cells, a = node.ints("pooled_shape", ()), Arithmetic(emit, emit.type(data).dtype)
    cut: dict[str, Any] = {"steps": (1, -1), "extents": (regions, 2)}  # x and y, as y and x
    scaled = a("multiply", rois, node.number("spatial_scale", 1.0))
    corners = [emit.temp("slice", scaled, begins=(0, last), **cut) for last in (2, 4)]
    start, end = (_whole(a, value) for value in corners)
    i = Arithmetic(emit, INT32)
    size = i("maximum", i("add", i("subtract", end, start), 1), 1)
    cell = np.stack(np.meshgrid(*map(np.arange, cells), indexing="ij"), -1).reshape(1, -1, 2)
    size, start = (emit.reshaped(value, (regions, 1, 2)) for value in (size, start))
    count, extent = np.asarray(cells), np.asarray(extents)
    before = i("divide", i("multiply", size, cell), count)
    behind = i("divide", i("add", i("multiply", size, cell + 1), count - 1), count)
    low, high = (i.clamped(i("add", value, start), 0, extent) for value in (before, behind))
    images = emit.part(rois, 1, 0, 1)
    first = emit.reshaped(_whole(a, images), (regions, 1, 1))
    levels = [int(size).bit_length() for size in extents]
    indices, weights = _rectangles(i, low, high, extents, levels)
    indices = i("add", indices, i("multiply", first, prod(levels) * prod(extents)))
    weights = emit.cast(weights, a.dtype)
    source = _maxima(emit, data, levels)
    result = pooled(emit, source, indices, weights, prod(cells), peak=True)
    moved = emit.temp(
        "transpose", emit.reshaped(result, (channels, regions, prod(cells))), perm=(1, 0, 2)
    )
    emit.out("reshape", moved, shape=(regions, channels, *cells))


def _whole(a: Arithmetic, value: str) -> str:
    """int32: the nearest whole number, halves away from zero."""
    size = a("floor", a("add", a("abs", value), 0.5))
    signed = a("where", a("less", value, 0.0), a("negative", size), size)
    return a.emit.cast(signed, INT32)


def _rectangles(
    i: Arithmetic, low: str, high: str, extents: Sequence[int], levels: Sequence[int]
) -> tuple[str, str]:
    """The four rectangles that cover [low, high): where `_maxima` has them, and 0 for an empty one.

    Both are [regions, cells * 4, 1]; low and high are [regions, cells, 2].
    """
    emit = i.emit
    regions, cells, _ = emit.shape(low)
    size = i("subtract", high, low)
    level: str = i("multiply", size, 0)
    side = i("add", level, 1)
    for power in range(1, max(levels)):
        fits = i("greater", size, 2**power - 1)
        level, side = i("where", fits, power, level), i("where", fits, 2**power, side)
    last = i("maximum", i("subtract", high, side), 0)
    first = i("minimum", low, np.asarray(extents) - 1)
    steps = [prod(extents[d + 1 :]) for d in range(2)]
    maps = [prod(levels[d + 1 :]) * prod(extents) for d in range(2)]
    choose = np.asarray([[[y, x] for x in (0, 1)] for y in (0, 1)], np.bool_).reshape(1, 1, 4, 2)
    first, last, level, size = (
        emit.reshaped(value, (regions, cells, 1, 2)) for value in (first, last, level, size)
    )
    corner = i("multiply", i("where", choose, last, first), np.asarray(steps))
    index = i("add", corner, i("multiply", level, np.asarray(maps)))
    index = emit.temp("reduce_sum", index, axes=(3,), keepdims=False)
    some = i("minimum", emit.temp("reduce_min", size, axes=(3,), keepdims=False), 1)
    weight = i("add", i("maximum", some, 0), np.zeros((1, 1, 4)))
    shape = (regions, cells * 4, 1)
    return emit.reshaped(index, shape), emit.reshaped(weight, shape)


def _maxima(emit: Emitter, data: str, levels: Sequence[int]) -> str:
    """[batch, channels, levels y * levels x, h, w]: maxima of 2**i x 2**j elements from each on."""
    shape = emit.shape(data)
    rows = _doubled(emit, data, 2, levels[0])
    maps = [part for row in rows for part in _doubled(emit, row, 3, levels[1])]
    apart = [emit.reshaped(part, (*shape[:2], 1, *shape[2:])) for part in maps]
    joined = emit.temp("concat", *apart, axis=2)
    return emit.reshaped(joined, (*shape[:2], len(maps) * shape[2], shape[3]))


def _doubled(emit: Emitter, value: str, axis: int, levels: int) -> list[str]:
    """Maxima of 1, 2, 4, ... elements along the axis; past the end they mean nothing."""
    found = [value]
    for level in range(1, levels):
        shift = 2 ** (level - 1)
        pads = [0] * 8
        pads[axis], pads[axis + 4] = -shift, shift
        moved = emit.temp("pad", found[-1], label="moved", pads=tuple(pads), value=0.0)
        found.append(emit.temp("maximum", found[-1], moved))
    return found

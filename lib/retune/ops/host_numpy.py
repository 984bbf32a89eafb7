"""Operators of host steps in numpy: ONNX's meaning, without loops of Python over many elements.

Arguments are as ONNX names and orders them; inputs that a node leaves out are None.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from retune.ops.registry import Array

_CHUNK = 64
"""Boxes that are compared with each other at once, the bits of an integer: more compare boxes that
are gone already."""
_LONG, _FEW = 1024, 4
"""Elements of a row, and the least part of it, from which a row is searched before it is sorted."""


def non_max_suppression(
    boxes: Array,
    scores: Array,
    max_output_boxes_per_class: Array | None = None,
    iou_threshold: Array | None = None,
    score_threshold: Array | None = None,
    center_point_box: int = 0,
) -> Array:
    """Rows of (batch, class, box), the best score of each class first; of equal ones the first box.

    Shapes: boxes [batch, box, 4], scores [batch, class, box] -> int64 [row, 3].
    """
    limit = int(_first(max_output_boxes_per_class, 0))
    overlap = _first(iou_threshold, np.float32(0))
    rows: list[Array] = []
    for batch, found in enumerate(scores if limit > 0 else ()):
        least = None if score_threshold is None else _first(score_threshold, 0)
        positions = np.arange(found.size) if least is None else np.flatnonzero(found > least)
        labels, numbers = np.divmod(positions, found.shape[1])
        order = np.lexsort((-found.reshape(-1)[positions], labels))
        labels, numbers = labels[order], numbers[order]
        corners = _corners(boxes[batch, numbers], center=bool(center_point_box))
        kept = _unsuppressed(corners, labels, limit, overlap)
        rows.append(np.stack([np.full_like(kept, batch), labels[kept], numbers[kept]], axis=1))
    return np.concatenate([np.empty((0, 3), np.int64), *rows]).astype(np.int64, copy=False)


def _first(value: Array | None, default: Any) -> Any:
    """The only element of an input, a scalar or a list of one."""
    return default if value is None or not value.size else value.reshape(-1)[0]


def _corners(boxes: Array, *, center: bool) -> Array:
    """Least and greatest corner of each box: [box, 4] -> [4, box]."""
    one, other = boxes[:, :2].T, boxes[:, 2:].T
    if center:
        return np.concatenate([one - other / 2, one + other / 2])
    return np.concatenate([np.minimum(one, other), np.maximum(one, other)])


def _unsuppressed(corners: Array, labels: Array, limit: int, threshold: Any) -> Array:
    """Numbers of the first `limit` boxes of each label that overlap with none of those of this
    label that are kept before them. Shapes: [4, box], [box], in ascending order."""
    kept, own, label, start = list[int](), list[int](), -1, 0
    low, left, high, right = corners
    boxes = np.stack([*corners, (high - low) * (right - left)])
    while start < labels.size:
        some = labels[start : start + _CHUNK].tolist()
        if some[0] != label:
            own = []
        elif len(own) == limit:
            start, label = int(np.searchsorted(labels, label, "right")), -1
            continue
        end = start + len(some)
        numbers = [*own, *range(start, end)]
        near = _overlaps(boxes[:, numbers], boxes[:, start:end], threshold)
        if some[0] != some[-1]:
            near &= labels[numbers, None] == labels[start:end]
        taken = _bits(near[len(own) :])
        blocked: Array = np.any(near[: len(own)], axis=0, keepdims=True)
        (free,) = _bits(~blocked)
        while free:
            position = (free & -free).bit_length() - 1
            free ^= 1 << position
            if some[position] != label:
                own, label = [], some[position]
            if len(own) < limit:
                own.append(start + position)
                kept.append(start + position)
                free &= ~taken[position]
        start = end
    return np.array(kept, np.int64)


def _bits(rows: Array) -> list[int]:
    """The up to 64 truth values of each row as an integer; its lowest bit is the first."""
    packed = np.zeros((len(rows), 8), np.uint8)
    made = np.packbits(rows, axis=1, bitorder="little")
    packed[:, : made.shape[1]] = made
    return packed.view("<u8")[:, 0].tolist()


def _overlaps(some: Array, others: Array, threshold: Any) -> Array:
    """Whether intersection over union is above the threshold: [5, n], [5, m] -> bool [n, m].

    Boxes are corners and an area. Those without an area overlap with none.
    """
    low, left, high, right, area = some[:, :, None]
    height = np.minimum(high, others[2])
    height -= np.maximum(low, others[0])
    width = np.minimum(right, others[3])
    width -= np.maximum(left, others[1])
    common = np.maximum(height, 0, out=height)
    common *= np.maximum(width, 0, out=width)
    whole = area + others[4]
    whole -= common
    with np.errstate(divide="ignore", invalid="ignore"):
        return (common > 0) & (common / whole > threshold)


def unique(
    x: Array,
    axis: int | None = None,
    sorted: int = 1,  # noqa: A002  # ONNX's name
) -> tuple[Array, Array, Array, Array]:
    """Distinct values, where each is first, which one each value is, and how often there is each.

    Without an axis of the flattened input. Unless `sorted` in the order of their first positions.
    """
    values, first, which, counts = np.unique(x, True, True, True, axis=axis)
    which = which.reshape(-1)
    if not sorted:
        order = np.argsort(first)
        which = np.argsort(order)[which]
        values = np.take(values, order, axis=axis or 0)
        first, counts = first[order], counts[order]
    return values, first.astype(np.int64), which.astype(np.int64), counts.astype(np.int64)


def top_k(
    x: Array,
    k: Array | int,
    axis: int = -1,
    largest: int = 1,
    sorted: int = 1,  # noqa: A002  # ONNX's name
) -> tuple[Array, Array]:
    """The first `k` values along the axis and their positions, of equal ones the first."""
    del sorted  # in order is right as well where any order is
    chosen = top_positions(x, int(np.reshape(k, -1)[0]), axis, largest=bool(largest))
    return np.take_along_axis(x, chosen, axis), chosen


def top_positions(x: Array, count: int, axis: int, *, largest: bool) -> Array:
    """int64: where the first `count` elements along the axis are, of equal ones the first."""
    extent = x.shape[axis]
    if extent < _LONG or count == 0 or _FEW * count > extent:
        return _sorted_positions(x, count, axis, largest=largest)
    rows = np.moveaxis(x, axis, -1)
    found = np.empty((*rows.shape[:-1], count), np.int64)
    for row in np.ndindex(rows.shape[:-1]):
        ends = _at_the_end(rows[row], count, largest=largest)
        found[row] = ends[_sorted_positions(rows[row][ends], count, 0, largest=largest)]
    return np.moveaxis(found, -1, axis)


def _at_the_end(row: Array, count: int, *, largest: bool) -> Array:
    """Where elements are that are among the first `count`, or equal to the last one of these."""
    position = len(row) - count if largest else count - 1
    last = np.partition(row, position)[position]  # all elements, where that is no number
    return np.flatnonzero(~(row < last if largest else row > last))


def _sorted_positions(x: Array, count: int, axis: int, *, largest: bool) -> Array:
    """As `top_positions`, by the order of all elements."""
    if largest:  # backwards, so that of equal ones the first stay first: not all types have a minus
        backwards = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
        order = x.shape[axis] - 1 - np.flip(backwards, axis)
    else:
        order = np.argsort(x, axis=axis, kind="stable")
    return np.take(order, np.arange(count), axis=axis).astype(np.int64, copy=False)


def gather_elements(data: Array, indices: Array, axis: int = 0) -> Array:
    """Of each position the element whose position along the axis the index names."""
    return data[_along(indices, axis)]


def gather_nd(data: Array, indices: Array, batch_dims: int = 0) -> Array:
    """The slices of the data that the last axis of the indices names."""
    batch = np.indices(indices.shape[:batch_dims], sparse=True)
    inner = indices.ndim - 1 - batch_dims
    own = [grid.reshape(grid.shape + (1,) * inner) for grid in batch]
    return data[(*own, *np.moveaxis(indices, -1, 0))]


def scatter_elements(
    data: Array, indices: Array, updates: Array, axis: int = 0, reduction: str = "none"
) -> Array:
    """The data with elements replaced, or combined, at the positions that `gather_elements`
    reads."""
    return _scattered(data, _along(indices, axis), updates, reduction)


def scatter_nd(data: Array, indices: Array, updates: Array, reduction: str = "none") -> Array:
    """The data with slices replaced, or combined, at the positions that `gather_nd` reads."""
    return _scattered(data, tuple(np.moveaxis(indices, -1, 0)), updates, reduction)


def _along(indices: Array, axis: int) -> tuple[Array, ...]:
    """What picks one element for each index: its own position, but for the axis."""
    positions: list[Array] = list(np.indices(indices.shape, sparse=True))
    positions[axis] = indices
    return tuple(positions)


COMBINED = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
"""Reduction of a scatter -> what becomes of an element and its update."""


def _scattered(data: Array, positions: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    made = data.copy()
    if reduction in COMBINED:
        COMBINED[reduction].at(made, positions, updates)
    else:
        made[positions] = updates
    return made


def roi_align(
    x: Array,
    rois: Array,
    batch_indices: Array,
    *,
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
    half_pixel: bool = True,
) -> Array:
    """Each region of its image as a grid of bins, of samples between the pixels.

    Shapes: x [batch, channel, row, column], rois [region, 4] of (column, row) twice ->
    [region, channel, output_height, output_width].
    """
    images = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    made = np.zeros((len(rois), output_height, output_width, x.shape[1]), x.dtype)
    scaled = rois * np.asarray(spatial_scale, rois.dtype) - (0.5 if half_pixel else 0.0)
    for out, region, image in zip(made, scaled, batch_indices, strict=True):
        start, size = region[1::-1], region[3:1:-1] - region[1::-1]
        if not half_pixel:
            size = np.maximum(size, 1)
        bins = np.array([output_height, output_width])
        counts = np.full(2, sampling_ratio) if sampling_ratio > 0 else np.ceil(size / bins)
        counts = counts.astype(int)
        if counts.min() < 1:
            continue
        widths = size / bins
        rows, columns = (
            _samples(start[d], widths[d], bins[d], counts[d], x.shape[2 + d]) for d in (0, 1)
        )
        corners = [
            images[image][np.ix_(row, column)] * np.multiply.outer(above, beside)[..., None]
            for row, above in rows
            for column, beside in columns
        ]
        value = sum(corners) if mode == "avg" else np.maximum.reduce(corners)
        parts = np.reshape(value, (bins[0], counts[0], bins[1], counts[1], -1))
        out[...] = parts.mean(axis=(1, 3)) if mode == "avg" else parts.max(axis=(1, 3))
    return np.ascontiguousarray(np.moveaxis(made, -1, 1))


def _samples(
    start: Any, width: Any, bins: int, count: int, extent: int
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """The pixels before and after each sample along one axis, with their weights.

    Samples more than a pixel outside have no weight.
    """
    within = (np.arange(count) + 0.5) * width / count
    at = np.reshape(start + np.arange(bins)[:, None] * width + within, -1)
    inside = (at >= -1.0) & (at <= extent)
    at = np.clip(at, 0, extent - 1)
    low = at.astype(int)
    after = at - low
    return (low, np.where(inside, 1 - after, 0)), (
        np.minimum(low + 1, extent - 1),
        np.where(inside, after, 0),
    )


def non_zero(x: Array) -> Array:
    """Where elements are not zero: int64 [dimensions, elements]; a scalar is a list of one."""
    return np.asarray(np.nonzero(np.atleast_1d(x)), np.int64)


def spectrum(
    x: Array, axis: int, length: int | None, *, inverse: bool = False, onesided: bool = False
) -> Array:
    """The Fourier transform of signals [..., 1 or 2 components], cut or padded to the length.

    One-sided: of the spectrum only its first half is made, or, with `inverse`, given; what that
    inverse makes is real.
    """
    signal = x[..., 0] if x.shape[-1] == 1 else x[..., 0] + 1j * x[..., 1]
    axis = axis + x.ndim if axis < 0 else axis
    if inverse and onesided:
        made = np.fft.irfft(signal, length, axis)
        return made[..., None].astype(x.dtype)
    transform = np.fft.ifft if inverse else np.fft.fft
    made = transform(signal, length, axis)
    if onesided:
        made = np.take(made, np.arange(made.shape[axis] // 2 + 1), axis)
    return np.stack([made.real, made.imag], -1).astype(x.dtype)


def n_gram_counts(
    x: Array,
    pool: Sequence[Any],
    starts: Sequence[int],
    columns: Sequence[int],
    lengths: Sequence[int],
    skips: int,
) -> Array:
    """How often each n-gram of the pool is in each row of x, at every distance up to skips + 1.

    The n-grams of n items lie in the pool from `starts[n - 1]` on; `columns` are the outputs of all
    n-grams. Shapes: x [row, item] or [item] -> float32 [row, column] or [column].
    """
    found: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    number = 0
    for n, (start, end) in enumerate(pairwise([*starts, len(pool)]), start=1):
        for position in range(start, end, n):
            found[tuple(pool[position : position + n])].append(columns[number])
            number += 1
    rows = np.atleast_2d(x)
    made = np.zeros((len(rows), max(columns, default=-1) + 1), np.float32)
    for counts, row in zip(made, rows.tolist(), strict=True):
        for n in lengths:
            for distance in range(1, skips + 2 if n > 1 else 2):
                span = distance * (n - 1)
                for position in range(len(row) - span):
                    counts[
                        found.get(tuple(row[position : position + span + 1 : distance]), [])
                    ] += 1
    return made.reshape(*x.shape[:-1], -1)

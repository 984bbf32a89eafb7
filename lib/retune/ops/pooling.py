"""Pooling over two and three spatial dimensions.

Attributes: kernel, strides, dilations, layout, pads (begins..., ends...; what ceil_mode adds is
in the ends, so extents always round down) and, for averages, `counted`: how far around the data
the padding counts as elements of a window (all zeros: the divisor is the data inside the window).
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from retune.core.dtypes import INT32, TensorType
from retune.ops.registry import Array, Attrs, ints, op, present
from retune.ops.shapes import channels, data_shape, require, spatial, window_extent
from retune.ops.windows import from_channels_first, pad_spatial, to_channels_first, windows


def _infer_pool(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, layout = present(types), str(attrs["layout"])
    kernel, strides, pads = ints(attrs, "kernel"), ints(attrs, "strides"), ints(attrs, "pads")
    dilations, rank = ints(attrs, "dilations"), len(kernel)
    extents = tuple(
        window_extent(extent, kernel[d], strides[d], dilations[d], pads[d] + pads[d + rank])
        for d, extent in enumerate(spatial(data.shape, layout))
    )
    require(
        all(extent > 0 for extent in extents),
        lambda: (
            f"pooling of {data} with a {'x'.join(map(str, kernel))} window and pads {pads}: "
            f"the window is larger than the padded data"
        ),
    )
    count = channels(data.shape, layout)
    return (TensorType(data_shape(data.shape[0], count, extents, layout), data.dtype),)


def _infer_global(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, layout = present(types), str(attrs["layout"])
    extents = [1] * (len(data.shape) - 2)
    count = channels(data.shape, layout)
    return (TensorType(data_shape(data.shape[0], count, extents, layout), data.dtype),)


@op("max_pool2d", kind="reduction", infer=_infer_pool)
def max_pool2d(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The largest element of each window; padding never wins."""
    layout = str(attrs["layout"])
    data = to_channels_first(present(arrays), layout)
    lowest = -np.inf if dtype_of(data).is_float else np.iinfo(data.dtype).min
    padded = pad_spatial(data, ints(attrs, "pads"), lowest)
    view = windows(padded, ints(attrs, "kernel"), ints(attrs, "strides"), ints(attrs, "dilations"))
    return (from_channels_first(_over_taps(view, attrs, np.maximum), layout),)


@op("avg_pool2d", kind="reduction", infer=_infer_pool)
def avg_pool2d(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The mean of each window over the elements that count."""
    layout, pads, counted = str(attrs["layout"]), ints(attrs, "pads"), ints(attrs, "counted")
    data = to_channels_first(present(arrays), layout)
    steps = ints(attrs, "kernel"), ints(attrs, "strides"), ints(attrs, "dilations")
    total = _over_taps(windows(pad_spatial(data, pads), *steps), attrs, np.add)
    ones = pad_spatial(np.ones((1, 1, *data.shape[2:]), data.dtype), counted, 1.0)
    rest = tuple(p - c for p, c in zip(pads, counted, strict=True))
    divisor = _over_taps(windows(pad_spatial(ones, rest), *steps), attrs, np.add)
    mean = (total / np.maximum(divisor, 1)).astype(data.dtype, copy=False)
    return (from_channels_first(mean, layout),)


op("max_pool3d", kind="reduction", infer=_infer_pool)(max_pool2d)
op("avg_pool3d", kind="reduction", infer=_infer_pool)(avg_pool2d)


def _infer_index(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    (pooled,) = _infer_pool(types[:1], attrs)
    top = present(types, 1)
    require(
        pooled == top,
        lambda: f"positions of the maxima of {present(types)}: expected {pooled}, got {top}",
    )
    return (TensorType(pooled.shape, INT32),)


@op("max_pool2d_index", kind="reduction", infer=_infer_index)
def max_pool2d_index(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """Where in its channel the first element of each window lies that equals the window's maximum.

    Inputs: the data, and the maxima of its windows. Positions count the last dimension first.
    """
    layout, pads = str(attrs["layout"]), ints(attrs, "pads")
    data, top = (to_channels_first(present(arrays, index), layout) for index in range(2))
    steps = ints(attrs, "kernel"), ints(attrs, "strides"), ints(attrs, "dilations")
    none = np.iinfo(np.int32).max
    numbers = np.arange(prod(data.shape[2:]), dtype=np.int32).reshape(1, 1, *data.shape[2:])
    places = windows(pad_spatial(numbers, pads, none), *steps)
    rank = len(steps[0])
    same = windows(pad_spatial(data, pads), *steps) == np.expand_dims(
        top, tuple(range(2, 2 + rank))
    )
    found = _over_taps(np.where(same, places, none), attrs, np.minimum)
    return (from_channels_first(found, layout),)


op("max_pool3d_index", kind="reduction", infer=_infer_index)(max_pool2d_index)


def _over_taps(view: Array, attrs: Attrs, combine: np.ufunc) -> Array:
    kernel = ints(attrs, "kernel")
    taps = [view[(slice(None), slice(None), *tap)] for tap in np.ndindex(*kernel)]
    total = taps[0].copy()
    for tap in taps[1:]:
        combine(total, tap, out=total)
    return total


@op("global_avg_pool", kind="reduction", infer=_infer_global)
def global_avg_pool(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The mean over all spatial positions, extents kept as 1."""
    data = present(arrays)
    return (data.mean(axis=_spatial_axes(data, attrs), keepdims=True, dtype=data.dtype),)


@op("global_max_pool", kind="reduction", infer=_infer_global)
def global_max_pool(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The largest element over all spatial positions, extents kept as 1."""
    data = present(arrays)
    return (data.max(axis=_spatial_axes(data, attrs), keepdims=True),)


def _spatial_axes(data: Array, attrs: Attrs) -> tuple[int, ...]:
    first = 2 if str(attrs["layout"]).startswith("NC") else 1
    return tuple(range(first, first + data.ndim - 2))

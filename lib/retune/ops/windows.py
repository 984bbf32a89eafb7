"""Sliding windows over the spatial dimensions of channels-first arrays, without copies."""

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided

from retune.ops.registry import Array
from retune.ops.shapes import CHANNELS_LAST, window_extent


def to_channels_first(data: Array, layout: str) -> Array:
    """The array as [N, C, spatial...]."""
    return np.moveaxis(data, -1, 1) if layout in CHANNELS_LAST else data


def from_channels_first(data: Array, layout: str) -> Array:
    """The inverse of `to_channels_first`, contiguous."""
    return np.ascontiguousarray(np.moveaxis(data, 1, -1)) if layout in CHANNELS_LAST else data


def pad_spatial(data: Array, pads: Sequence[int], value: float = 0.0) -> Array:
    """[N, C, spatial...] padded by `pads` = (begins..., ends...); negative pads crop."""
    rank = len(pads) // 2
    begins, ends = pads[:rank], pads[rank:]
    crop = tuple(
        slice(max(0, -b), extent - max(0, -e))
        for b, e, extent in zip(begins, ends, data.shape[2:], strict=True)
    )
    data = data[(slice(None), slice(None), *crop)]
    widths = [(0, 0), (0, 0)]
    widths += [(max(0, b), max(0, e)) for b, e in zip(begins, ends, strict=True)]
    if not any(low or high for low, high in widths):
        return np.ascontiguousarray(data)
    return np.pad(data, widths, constant_values=value)


def windows(
    data: Array, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Array:
    """A view [N, C, kernel..., positions...] of a contiguous padded array."""
    extents = [
        window_extent(extent, k, s, d, 0)
        for extent, k, s, d in zip(data.shape[2:], kernel, strides, dilations, strict=True)
    ]
    steps = data.strides[2:]
    taps = [step * d for step, d in zip(steps, dilations, strict=True)]
    moves = [step * s for step, s in zip(steps, strides, strict=True)]
    return as_strided(
        data,
        shape=(*data.shape[:2], *kernel, *extents),
        strides=(*data.strides[:2], *taps, *moves),
        writeable=False,
    )

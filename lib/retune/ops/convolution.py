"""Convolutions over two and three spatial dimensions.

Attributes: strides, dilations (one each dimension), pads (begins..., ends...), groups, layout.
Kernels: [O, I/groups, taps...] for channels-first data, [taps..., I/groups, O] for channels-last.
`depthwise_conv2d` is the case groups == channels > 1: its channels-last kernel is [KH, KW, C, M];
output channel c*M+m reads input channel c. Bytes are summed in int32; the border around them is
`border`, which is their zero point: 0 where the attribute is left out.

`conv_transpose` is channels-first, with the kernel of the convolution that it is of zeros between
the data, its taps reversed: [O, I/groups, taps...]; pads are what is cut off its result.
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from retune.core.dtypes import TensorType
from retune.ops.linear import BYTES, sum_type, summed
from retune.ops.registry import Array, Attrs, integer, ints, op, present
from retune.ops.shapes import (
    CHANNELS_LAST,
    channels,
    data_shape,
    require,
    spatial,
    window_extent,
)
from retune.ops.windows import from_channels_first, pad_spatial, to_channels_first, windows


def _infer_conv(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, kernel = present(types), present(types, 1)
    layout, groups = str(attrs["layout"]), integer(attrs, "groups")
    last = layout in CHANNELS_LAST
    taps = kernel.shape[:-2] if last else kernel.shape[2:]
    depth, made = kernel.shape[-2:] if last else (kernel.shape[1], kernel.shape[0])
    count = channels(data.shape, layout)
    require(
        len(kernel.shape) == len(data.shape),
        lambda: f"convolution of {data} with kernel {kernel}: expected equal ranks",
    )
    require(
        depth * groups == count and made % groups == 0,
        lambda: (
            f"convolution of {data} with kernel {kernel} in {groups} groups: expected a kernel "
            f"over {count / groups:g} channels and outputs divisible by the groups"
        ),
    )
    return (_convolved(data, kernel, taps, made, attrs),)


def _infer_depthwise(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, kernel = present(types), present(types, 1)
    layout = str(attrs["layout"])
    last = layout in CHANNELS_LAST
    count = channels(data.shape, layout)
    made = kernel.shape[-1] * kernel.shape[-2] if last else kernel.shape[0]
    own = kernel.shape[-2] if last else count
    require(
        own == count and made % count == 0,
        lambda: f"depthwise convolution of {data} with kernel {kernel}: expected {count} channels",
    )
    taps = kernel.shape[:-2] if last else kernel.shape[2:]
    return (_convolved(data, kernel, taps, made, attrs),)


def border(attrs: Attrs) -> int:
    """What lies around the data."""
    return integer(attrs, "border") if "border" in attrs else 0


def _convolved(
    data: TensorType, kernel: TensorType, taps: Sequence[int], made: int, attrs: Attrs
) -> TensorType:
    layout, pads = str(attrs["layout"]), ints(attrs, "pads")
    strides, dilations = ints(attrs, "strides"), ints(attrs, "dilations")
    rank = len(taps)
    extents = tuple(
        window_extent(extent, taps[d], strides[d], dilations[d], pads[d] + pads[d + rank])
        for d, extent in enumerate(spatial(data.shape, layout))
    )
    require(
        all(extent > 0 for extent in extents),
        lambda: (
            f"convolution of {data} with a {'x'.join(map(str, taps))} kernel and pads {pads}: "
            f"the kernel is larger than the padded data"
        ),
    )
    shape = data_shape(data.shape[0], made, extents, layout)
    return TensorType(shape, sum_type(data, kernel))


@op("conv2d", kind="heavy", infer=_infer_conv)
def conv2d(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """Convolution (cross-correlation) in groups, by im2col and a matrix product."""
    layout = str(attrs["layout"])
    data = to_channels_first(present(arrays), layout)
    kernel = present(arrays, 1)
    if layout in CHANNELS_LAST:
        kernel = np.moveaxis(kernel, (-1, -2), (0, 1))
    return (from_channels_first(_im2col(data, kernel, attrs), layout),)


op("conv3d", kind="heavy", infer=_infer_conv)(conv2d)


def _im2col(data: Array, kernel: Array, attrs: Attrs) -> Array:
    groups, strides = integer(attrs, "groups"), ints(attrs, "strides")
    taps = kernel.shape[2:]
    padded = pad_spatial(data, ints(attrs, "pads"), border(attrs))
    view = windows(padded, taps, strides, ints(attrs, "dilations"))
    batch, made = data.shape[0], kernel.shape[0]
    extents = view.shape[2 + len(taps) :]
    depth = kernel.shape[1] * prod(taps)
    columns = view.reshape(batch, groups, depth, prod(extents))
    rows = np.ascontiguousarray(kernel).reshape(groups, made // groups, depth)
    return summed(rows, columns).reshape(batch, made, *extents)


@op("depthwise_conv2d", kind="heavy", infer=_infer_depthwise)
def depthwise_conv2d(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """Each channel convolved with its own M kernels, tap by tap."""
    layout = str(attrs["layout"])
    data = to_channels_first(present(arrays), layout)
    kernel = present(arrays, 1)
    count = data.shape[1]
    if layout in CHANNELS_LAST:
        kernel = np.moveaxis(kernel, (-2, -1), (0, 1))
    else:
        kernel = kernel.reshape(count, -1, *kernel.shape[2:])
    padded = pad_spatial(data, ints(attrs, "pads"), border(attrs))
    taps = kernel.shape[2:]
    view = windows(padded, taps, ints(attrs, "strides"), ints(attrs, "dilations"))
    multiple = kernel.shape[1]
    dtype = np.int32 if {data.dtype.name, kernel.dtype.name} <= {*BYTES} else data.dtype
    kernel = kernel.astype(dtype)
    total = np.zeros((data.shape[0], count, multiple, *view.shape[4:]), dtype)
    for tap in np.ndindex(*taps):
        weight = kernel[(slice(None), slice(None), *tap)][:, :, None, None]
        total += view[(slice(None), slice(None), *tap)][:, :, None] * weight
    flat = total.reshape(data.shape[0], count * multiple, *view.shape[4:])
    return (from_channels_first(flat, layout),)


def _infer_transposed(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, kernel = present(types), present(types, 1)
    layout, groups = str(attrs["layout"]), integer(attrs, "groups")
    require(
        layout not in CHANNELS_LAST and len(kernel.shape) == len(data.shape),
        lambda: (
            f"conv_transpose of {data} ({layout}) with kernel {kernel}: expected equal ranks, "
            "and channels first"
        ),
    )
    made, depth, *_ = kernel.shape
    require(
        depth * groups == data.shape[1] and made % groups == 0,
        lambda: (
            f"conv_transpose of {data} with kernel {kernel} in {groups} groups: expected a "
            f"kernel over {data.shape[1] / groups:g} channels and outputs divisible by the groups"
        ),
    )
    extents = transposed_extents(data.shape[2:], kernel.shape[2:], attrs)
    require(
        min(extents) > 0,
        lambda: (
            f"conv_transpose of {data} with kernel {kernel}: pads {attrs['pads']} leave {extents}"
        ),
    )
    return (TensorType((data.shape[0], made, *extents), sum_type(data, kernel)),)


def transposed_extents(
    extents: Sequence[int], taps: Sequence[int], attrs: Attrs
) -> tuple[int, ...]:
    """Those of a transposed convolution's result."""
    strides, dilations = ints(attrs, "strides"), ints(attrs, "dilations")
    pads, rank = ints(attrs, "pads"), len(taps)
    return tuple(
        (e - 1) * strides[d] + (taps[d] - 1) * dilations[d] + 1 - pads[d] - pads[d + rank]
        for d, e in enumerate(extents)
    )


@op("conv_transpose", kind="heavy", infer=_infer_transposed)
def conv_transpose(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The transpose of a convolution in groups: each element adds to all that its window sees.

    Between the data, as around them, lies `border`.
    """
    data, kernel, groups = present(arrays), present(arrays, 1), integer(attrs, "groups")
    whole_numbers, zero = data.dtype.name in BYTES, border(attrs)
    strides, dilations = ints(attrs, "strides"), ints(attrs, "dilations")
    (batch, inner, *extents), (made, depth, *taps) = data.shape, kernel.shape
    wide = np.dtype(np.float64) if whole_numbers else data.dtype  # exact below 2**53
    rows = kernel.reshape(groups, made // groups, depth, prod(taps)).transpose(0, 1, 3, 2)
    rows = rows.reshape(groups, -1, depth).astype(wide)
    flat = data.reshape(batch, groups, inner // groups, prod(extents)).astype(wide)
    each = np.matmul(rows, flat - wide.type(zero)).reshape(batch, made, *taps, *extents)
    free = {**attrs, "pads": (0,) * (2 * len(taps))}
    whole = np.zeros((batch, made, *transposed_extents(extents, taps, free)), each.dtype)
    for tap in np.ndindex(*taps):
        places = (
            slice(t * d, t * d + (e - 1) * s + 1, s)
            for t, d, e, s in zip(tap, dilations, extents, strides, strict=True)
        )
        whole[(slice(None), slice(None), *places)] += each[(slice(None), slice(None), *tap)]
    result = pad_spatial(whole, tuple(-pad for pad in ints(attrs, "pads")))
    if not whole_numbers:
        return (result,)
    sides = [1] * len(taps)
    around = zero * kernel.reshape(made, -1).astype(np.float64).sum(axis=1).reshape(-1, *sides)
    return ((result + around).astype(np.int64).astype(np.int32),)

"""Convolutions and matrix products as sums over reduce axes.

Data with pads is copied to a stage `PaddedInput` first; without pads there is no such stage.
"""

from collections.abc import Sequence

from retune.ir.expr import Expr, Load, all_of, cast, const, equal, select
from retune.ir.te import Axis, Tensor, compute, reduce_axis
from retune.ops.convolution import border
from retune.ops.registry import integer, ints
from retune.ops.shapes import CHANNELS_LAST, channels
from retune.ops.tensors.registry import Names, OpCall, tensors_of

SPATIAL = {1: "x", 2: "yx", 3: "zyx"}
"""Letters of the spatial axes, by their number."""


def padded(
    data: Tensor, pads: Sequence[int], name: Names, value: float = 0.0, stem: str = "PaddedInput"
) -> Tensor:
    """The data with a border; pads = (begins..., ends...) over all dimensions, negative crop.

    The data itself if there is nothing to pad.
    """
    rank = len(data.shape)
    begins, ends = pads[:rank], pads[rank:]
    if not any(pads):
        return data
    shape = [b + e + n for b, e, n in zip(begins, ends, data.shape, strict=True)]

    def body(*i: Expr) -> Expr:
        tests: list[Expr] = []
        for axis, begin, end, extent in zip(i, begins, ends, data.shape, strict=True):
            if begin > 0:
                tests.append(axis >= begin)
            if end > 0:
                tests.append(axis < begin + extent)
        inside = data[tuple(axis - begin for axis, begin in zip(i, begins, strict=True))]
        return select(all_of(*tests), inside, const(value, data.dtype))

    return compute(name(stem), shape, body, [data])


def spatial_pads(pads: Sequence[int], layout: str) -> tuple[int, ...]:
    """Pads of the spatial dimensions as pads of all."""
    half = len(pads) // 2
    begins, ends = pads[:half], pads[half:]
    if layout in CHANNELS_LAST:
        return (0, *begins, 0, 0, *ends, 0)
    return (0, 0, *begins, 0, 0, *ends)


def data_axes(count: int, layout: str, channel: str = "ff") -> list[str]:
    """Names of a data tensor's axes: nn, yy, xx, ff, or nn, ff, yy, xx."""
    places = [2 * letter for letter in SPATIAL[count]]
    return ["nn", *places, channel] if layout in CHANNELS_LAST else ["nn", channel, *places]


def window_axes(kernel: Sequence[int]) -> tuple[list[Axis], list[Expr]]:
    """Reduce axes ry, rx over the taps, and each tap's number; a single tap needs no axis."""
    axes = [
        reduce_axis(f"r{letter}", extent)
        for letter, extent in zip(SPATIAL[len(kernel)], kernel, strict=True)
    ]
    taps: list[Expr] = [const(0) if a.extent == 1 else a.var for a in axes]
    return [a for a in axes if a.extent > 1], taps


def split_axes(i: Sequence[Expr], layout: str) -> tuple[Expr, list[Expr], Expr]:
    """Batch, positions and channel of a data index."""
    if layout in CHANNELS_LAST:
        return i[0], list(i[1:-1]), i[-1]
    return i[0], list(i[2:]), i[1]


def data_index(batch: Expr, places: Sequence[Expr], channel: Expr, layout: str) -> tuple[Expr, ...]:
    """The index of a data tensor in that layout; the inverse of `split_axes`."""
    if layout in CHANNELS_LAST:
        return (batch, *places, channel)
    return (batch, channel, *places)


def window_places(c: OpCall, places: Sequence[Expr], taps: Sequence[Expr]) -> list[Expr]:
    """The positions in the padded data that the taps of a window read."""
    strides, dilations = ints(c.attrs, "strides"), ints(c.attrs, "dilations")
    return [
        place * s + tap * d
        for place, tap, s, d in zip(places, taps, strides, dilations, strict=True)
    ]


def product(a: Load, b: Load, c: OpCall) -> Expr:
    """The product of two elements in the type of the output."""
    dtype = c.output.dtype
    return a * b if a.dtype == dtype else cast(a, dtype) * cast(b, dtype)


@tensors_of("conv2d", "conv3d")
def conv(c: OpCall) -> Tensor:
    """conv2d_nhwc(nn, yy, xx, ff) += data[nn, yy + ry, xx + rx, rc] * w[ry, rx, rc, ff]."""
    data, weight = c.inputs
    layout, groups = str(c.attrs["layout"]), integer(c.attrs, "groups")
    last = layout in CHANNELS_LAST
    taps_shape = weight.shape[:-2] if last else weight.shape[2:]
    depth = weight.shape[-2] if last else weight.shape[1]
    made = channels(c.output.shape, layout) // groups
    source = padded(data, spatial_pads(ints(c.attrs, "pads"), layout), c.name, border(c.attrs))
    reduced, taps = window_axes(taps_shape)
    rc = reduce_axis("rc", depth)
    order = [*reduced, rc] if last else [rc, *reduced]

    def body(*i: Expr) -> Expr:
        batch, places, channel = split_axes(i, layout)
        own = rc.var if groups == 1 else channel // made * depth + rc.var
        at = data_index(batch, window_places(c, places, taps), own, layout)
        tap = (*taps, rc.var, channel) if last else (channel, rc.var, *taps)
        return product(source[at], weight[tap], c)

    return compute(
        c.name(f"{c.op}_{layout.lower()}"),
        c.output.shape,
        body,
        [source, weight],
        reduce=order,
        axes=data_axes(len(taps), layout),
    )


@tensors_of("depthwise_conv2d")
def depthwise(c: OpCall) -> Tensor:
    """depthwise_conv2d(nn, yy, xx, cc) += data[nn, yy + ry, xx + rx, cc] * w[ry, rx, cc, 0]."""
    data, weight = c.inputs
    layout = str(c.attrs["layout"])
    last = layout in CHANNELS_LAST
    taps_shape = weight.shape[:-2] if last else weight.shape[2:]
    multiple = channels(c.output.shape, layout) // channels(data.shape, layout)
    source = padded(data, spatial_pads(ints(c.attrs, "pads"), layout), c.name, border(c.attrs))
    reduced, taps = window_axes(taps_shape)
    reduced = reduced or [reduce_axis("ry", 1)]

    def body(*i: Expr) -> Expr:
        batch, places, channel = split_axes(i, layout)
        own = channel // multiple
        at = data_index(batch, window_places(c, places, taps), own, layout)
        tap = (*taps, own, channel % multiple) if last else (channel, const(0), *taps)
        return product(source[at], weight[tap], c)

    return compute(
        c.name(f"depthwise_conv2d_{layout.lower()}"),
        c.output.shape,
        body,
        [source, weight],
        reduce=reduced,
        axes=data_axes(len(taps), layout, "cc"),
    )


@tensors_of("conv_transpose")
def conv_transpose(c: OpCall) -> Tensor:
    """conv_transpose(nn, ff, yy, xx) += SpreadInput[nn, rc, yy + ry, xx + rx] * w[ff, rc, ...].

    The window is turned around, over data with zeros between them. Networks have this op no more
    when they are cut into kernels.
    """
    data, weight = c.inputs
    groups, dilations = integer(c.attrs, "groups"), ints(c.attrs, "dilations")
    (made, depth, *sizes), pads = weight.shape, ints(c.attrs, "pads")
    around = [(size - 1) * d for size, d in zip(sizes, dilations, strict=True)] * 2
    wide = [own - pad for own, pad in zip(around, pads, strict=True)]
    source = _spread(c, data, wide)
    rc = reduce_axis("rc", depth)
    reduced, taps = window_axes(sizes)

    def body(*i: Expr) -> Expr:
        batch, channel, *places = i
        own = rc.var if groups == 1 else channel // (made // groups) * depth + rc.var
        at = [p + t * d for p, t, d in zip(places, taps, dilations, strict=True)]
        back = [size - 1 - t for size, t in zip(sizes, taps, strict=True)]
        return product(source[(batch, own, *at)], weight[(channel, rc.var, *back)], c)

    axes = data_axes(len(sizes), "NCHW")
    used = [source, weight]
    return compute(
        c.name("conv_transpose"), c.output.shape, body, used, reduce=[rc, *reduced], axes=axes
    )


def _spread(c: OpCall, data: Tensor, wide: Sequence[int]) -> Tensor:
    """The data a stride apart, with so much around them (begins..., ends...)."""
    strides, extents = ints(c.attrs, "strides"), data.shape[2:]
    whole = [(e - 1) * s + 1 for e, s in zip(extents, strides, strict=True)]
    begins, ends = wide[: len(whole)], wide[len(whole) :]
    shape = [b + n + e for b, n, e in zip(begins, whole, ends, strict=True)]

    def body(*i: Expr) -> Expr:
        batch, channel, *places = i
        inside = [place - begin for place, begin in zip(places, begins, strict=True)]
        tests: list[Expr] = []
        for at, size, stride in zip(inside, whole, strides, strict=True):
            tests += [at >= 0, at < size]
            tests += [equal(at % stride, 0)] if stride > 1 else []
        read = [at // stride for at, stride in zip(inside, strides, strict=True)]
        between = const(border(c.attrs), data.dtype)
        return select(all_of(*tests), data[(batch, channel, *read)], between)

    return compute(c.name("SpreadInput"), (*data.shape[:2], *shape), body, [data])


@tensors_of("dense")
def dense(c: OpCall) -> Tensor:
    """T_dense(i, j) += data[i, k] * weight[j, k]."""
    data, weight = c.inputs
    k = reduce_axis("k", data.shape[1])
    return compute(
        c.name("T_dense"),
        c.output.shape,
        lambda i, j: product(data[i, k], weight[j, k], c),
        [data, weight],
        reduce=[k],
    )


@tensors_of("matmul")
def matmul(c: OpCall) -> Tensor:
    """T_matmul(b..., i, j) += a[b..., i, k] * w[b..., k, j]; batch extents of 1 broadcast."""
    left, right = c.inputs
    k = reduce_axis("k", left.shape[-1])
    rank = len(c.output.shape)

    def batch(tensor: Tensor, axes: Sequence[Expr]) -> list[Expr]:
        own = tensor.shape[:-2]
        outer = axes[rank - 2 - len(own) : rank - 2]
        return [const(0) if e == 1 else a for a, e in zip(outer, own, strict=True)]

    def body(*axes: Expr) -> Expr:
        a = left[(*batch(left, axes), axes[-2], k.var)]
        return product(a, right[(*batch(right, axes), k.var, axes[-1])], c)

    return compute(
        c.name("T_matmul"),
        c.output.shape,
        body,
        [left, right],
        reduce=[k],
        axes=[*(f"b{d}" for d in range(rank - 2)), "i", "j"],
    )

"""Convolutions over two and three spatial dimensions.

Attributes: strides, dilations (one each dimension), pads (begins..., ends...), groups, layout.
Kernels: [O, I/groups, taps...] for channels-first data, [taps..., I/groups, O] for channels-last.
`depthwise_conv2d` is the case groups == channels > 1: its channels-last kernel is [KH, KW, C, M];
output channel c*M+m reads input channel c. Bytes are summed in int32; the border around them is
`border`, which is their zero point: 0 where the attribute is left out. Data with pads is copied to
a stage `PaddedInput` first.

`conv_transpose` is channels-first, with the kernel of the convolution that it is of zeros between
the data, its taps reversed: [O, I/groups, taps...]; pads are what is cut off its result.
"""

from collections.abc import Sequence

from retune.core.dims import is_fixed, least
from retune.core.dtypes import TensorType
from retune.ir.expr import Expr, all_of, const, equal, select
from retune.ir.te import Axis, Tensor, compute, reduce_axis
from retune.ops.linear import product, sum_type
from retune.ops.registry import Attrs, Names, OpCall, integer, ints, op, present
from retune.ops.shapes import (
    CHANNELS_LAST,
    channels,
    data_shape,
    require,
    spatial,
    window_extent,
)

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


def windowed(
    data: TensorType, taps: Sequence[int], attrs: Attrs, what: str, window: str
) -> tuple[int, ...]:
    """Spatial extents of what windows of so many taps make. Raises: ModelError, which says what."""
    strides, dilations, pads = (ints(attrs, key) for key in ("strides", "dilations", "pads"))
    rank = len(taps)
    extents = tuple(
        window_extent(extent, taps[d], strides[d], dilations[d], pads[d] + pads[d + rank])
        for d, extent in enumerate(spatial(data.shape, str(attrs["layout"])))
    )
    require(
        all(_is_there(extent) for extent in extents),
        lambda: (
            f"{what} of {data} with a {'x'.join(map(str, taps))} {window} and pads {pads}: "
            f"the {window} is larger than the padded data"
        ),
    )
    return extents


def _is_there(extent: int) -> bool:
    """Whether a window fits: of data that may have no elements at all, one need not."""
    return (not is_fixed(extent) and least(extent) >= 0) or extent > 0


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
    extents = windowed(data, taps, attrs, "convolution", "kernel")
    shape = data_shape(data.shape[0], made, extents, str(attrs["layout"]))
    return TensorType(shape, sum_type(data, kernel))


@op("conv2d", "conv3d", kind="heavy", infer=_infer_conv)
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

    stem, axes = f"{c.op}_{layout.lower()}", data_axes(len(taps), layout)
    return c.stage(body, [source, weight], stem=stem, reduce=order, axes=axes)


@op("depthwise_conv2d", kind="heavy", infer=_infer_depthwise)
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

    stem, axes = f"{c.op}_{layout.lower()}", data_axes(len(taps), layout, "cc")
    return c.stage(body, [source, weight], stem=stem, reduce=reduced, axes=axes)


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
        all(_is_there(extent) for extent in extents),
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
def conv_transpose(c: OpCall) -> Tensor:
    """conv_transpose(nn, ff, yy, xx) += SpreadInput[nn, rc, yy + ry, xx + rx] * w[ff, rc, ...].

    Each element adds to all that its window sees: the window is turned around, over data with
    `border` between and around them. Graph passes take the op apart before it is cut into kernels.
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
    return c.stage(body, [source, weight], stem=c.op, reduce=[rc, *reduced], axes=axes)


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

    return c.stage(body, [data], stem="SpreadInput", shape=(*data.shape[:2], *shape))

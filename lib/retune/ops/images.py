"""Elements read at other positions: repeated, continued past edges, resampled, sampled, unpacked.

Read `resample` first. The kind of these ops is that of reductions, for what it says of fusion:
element-wise ops that follow are computed together with them. Indices are int32 and inside of the
data.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod

from retune.core.dtypes import FLOAT32, INT32, TensorType
from retune.ir.expr import Expr, Load, as_expr, cast, const, maximum, minimum, select
from retune.ir.functions import call
from retune.ir.te import Tensor, reduce_axis
from retune.ops.convolution import data_axes, data_index, split_axes
from retune.ops.registry import Attrs, OpCall, integer, ints, is_single, number, op, present
from retune.ops.shapes import channels, data_shape, require, spatial

_WRITTEN_TAPS = 16
"""Taps that are written out: then the op runs at memory speed, with what precedes and follows. More
of them are a reduction."""


def _infer_repeat(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, repeats = present(types), ints(attrs, "repeats")
    require(
        len(repeats) == len(data.shape) and min(repeats, default=1) > 0,
        lambda: f"repeat of {data} {repeats} times: expected a positive number each dimension",
    )
    made = tuple(extent * times for extent, times in zip(data.shape, repeats, strict=True))
    return (TensorType(made, data.dtype),)


@op("repeat", kind="reduction", infer=_infer_repeat)
def repeat(c: OpCall) -> Tensor:
    """T_repeat(i...) = x[i // repeats...]."""
    (x,) = c.inputs
    repeats = ints(c.attrs, "repeats")
    return c.stage(lambda *i: x[tuple(a // times for a, times in zip(i, repeats, strict=True))])


def _infer_extend(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, pads, mode = present(types), ints(attrs, "pads"), str(attrs["mode"])
    rank = len(data.shape)
    for d, extent in enumerate(data.shape):
        widths = (pads[d], pads[d + rank])
        reach = extent_reach(extent, mode) if any(widths) else 0
        require(
            all(width >= 0 and (reach is None or width <= reach) for width in widths),
            lambda d=d, reach=reach: (
                f"extend ({mode}) of {data} by {pads}: expected at most {reach} elements on each "
                f"side of dimension {d}, and none cropped"
            ),
        )
    shape = tuple(extent + pads[d] + pads[d + rank] for d, extent in enumerate(data.shape))
    return (TensorType(shape, data.dtype),)


def extent_reach(extent: int, mode: str) -> int | None:
    """How far `extend` goes past an edge of so many elements; None: as far as one likes."""
    if mode == "edge":
        return None if extent else 0
    return max(0, extent - 1) if mode == "reflect" else extent


@op("extend", kind="reduction", infer=_infer_extend)
def extend(c: OpCall) -> Tensor:
    """T_extend(i...) = x[i - begins, folded back into the data...]."""
    (x,) = c.inputs
    rank, pads, mode = len(x.shape), ints(c.attrs, "pads"), str(c.attrs["mode"])

    def body(*i: Expr) -> Expr:
        return x[
            tuple(_folded(i[d], pads[d], pads[d + rank], x.shape[d], mode) for d in range(rank))
        ]

    return c.stage(body)


def _folded(axis: Expr, begin: int, end: int, extent: int, mode: str) -> Expr:
    """The element of the data that an element of its continuation shows."""
    inside, last = axis - begin, extent - 1
    before, behind = {
        "edge": (const(0), as_expr(last)),
        "reflect": (as_expr(begin) - axis, as_expr(2 * last + begin) - axis),
        "wrap": (inside + extent, inside - extent),
    }[mode]
    index = inside
    if end:
        index = select(axis < begin + extent, index, behind)
    if begin:
        index = select(axis >= begin, index, before)
    return index


def _infer_resample(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, axes = present(types), ints(attrs, "axes")
    shape = list(data.shape)
    for position, axis in enumerate(axes):
        indices, weights = present(types, 1 + 2 * position), present(types, 2 + 2 * position)
        _check_tables(data, indices, weights)
        require(
            len(indices.shape) == 2,
            lambda indices=indices: (
                f"resample of {data}: expected indices [n, taps], got {indices}"
            ),
        )
        shape[axis] = ints(attrs, "results")[position] if "results" in attrs else indices.shape[0]
    return (TensorType(tuple(shape), data.dtype),)


def _check_tables(data: TensorType, indices: TensorType, weights: TensorType) -> None:
    fits = indices.dtype == INT32 and weights.dtype == data.dtype
    require(
        fits and indices.shape == weights.shape,
        lambda: (
            f"sampling {data}: expected indices of type int32 and as many weights of type "
            f"{data.dtype}, got {indices} and {weights}"
        ),
    )


@op("resample", kind="reduction", infer=_infer_resample)
def resample(c: OpCall) -> Tensor:
    """T_resample(.., i, ..) = sum over k of x[.., indices[i, k], ..] * weights[i, k], each axis.

    With `results`, so many along each axis: the tables are those of more, and indices behind the
    last element are that one.
    """
    value = c.inputs[0]
    for position, axis in enumerate(ints(c.attrs, "axes")):
        indices, weights = c.inputs[1 + 2 * position], c.inputs[2 + 2 * position]
        value = _along(c, value, axis, indices, weights)
    return value


def _along(c: OpCall, x: Tensor, axis: int, indices: Tensor, weights: Tensor) -> Tensor:
    made, taps = c.output.shape[axis], indices.shape[1]
    shape = (*x.shape[:axis], made, *x.shape[axis + 1 :])

    def tap(i: Sequence[Expr], k: Expr) -> Expr:
        index = _index(indices[i[axis], k], x.shape[axis], taps)
        if "results" in c.attrs:
            index = minimum(index, x.shape[axis] - 1)
        return x[(*i[:axis], index, *i[axis + 1 :])] * weights[i[axis], k]

    return _summed(c, shape, taps, tap, [x, indices, weights])


def _infer_resized(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, axis = present(types), integer(attrs, "axis")
    require(
        attrs["mode"] == "nearest" or (attrs["mode"] == "linear" and data.dtype.is_float),
        lambda: (
            f"resize_along of {data}, mode '{attrs['mode']}': expected nearest, or linear floats"
        ),
    )
    shape = (*data.shape[:axis], integer(attrs, "made"), *data.shape[axis + 1 :])
    return (TensorType(shape, data.dtype),)


@op("resize_along", kind="reduction", infer=_infer_resized)
def resize_along(c: OpCall) -> Tensor:
    """T_resize_along(.., i, ..) = x at the coordinate of i, or between the elements beside it.

    Attributes: axis, `made` elements, mode, and coordinates and rounding as ONNX calls them; the
    scale, or 0 for that of the extents. Coordinates are computed in float32 as the network runs.
    """
    (x,), axis = c.inputs, integer(c.attrs, "axis")
    extent = x.shape[axis]

    def at(i: Sequence[Expr], coordinate: Expr) -> Expr:
        inside = minimum(maximum(cast(coordinate, INT32), 0), as_expr(extent) - 1)
        return x[(*i[:axis], inside, *i[axis + 1 :])]

    def body(*i: Expr) -> Expr:
        coordinate = _coordinate(c, cast(i[axis], FLOAT32), extent)
        if c.attrs["mode"] == "nearest":
            return at(i, _rounded(c, coordinate, extent))
        below = call("floor", coordinate)
        share = cast(coordinate - below, x.dtype.compute)
        return at(i, below) * (1.0 - share) + at(i, below + 1.0) * share

    return c.stage(body)


def _coordinate(c: OpCall, i: Expr, extent: int) -> Expr:
    """The coordinate in the data of result i."""
    made, mode, scale = integer(c.attrs, "made"), c.attrs["coordinates"], number(c.attrs, "scale")
    if mode == "align_corners":
        last, steps = (maximum(as_expr(n) - 1, 0) for n in (extent, made))
        return call("quotient", i * cast(last, FLOAT32), cast(maximum(steps, 1), FLOAT32))
    shifted = i if mode == "asymmetric" else i + 0.5
    if scale:
        coordinate = call("quotient", shifted, const(scale, FLOAT32))
    else:
        whole, parts = (cast(as_expr(n), FLOAT32) for n in (extent, made))
        coordinate = call("quotient", shifted * whole, parts)
    return coordinate if mode in ("asymmetric", "tf_half_pixel_for_nn") else coordinate - 0.5


def _rounded(c: OpCall, coordinate: Expr, extent: int) -> Expr:
    match c.attrs["rounding"]:
        case "round_prefer_floor":
            return call("ceil", coordinate - 0.5)
        case "round_prefer_ceil":
            return call("floor", coordinate + 0.5)
        case "floor":
            return call("floor", coordinate)
        case "ceil":
            return call("ceil", coordinate)
        case _:
            return call("ceil" if integer(c.attrs, "made") < extent else "floor", coordinate)


def _infer_sample(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, indices, weights = (present(types, index) for index in range(3))
    axis = integer(attrs, "axis")
    _check_tables(data, indices, weights)
    require(
        len(data.shape) == 3 and len(indices.shape) == 3 and indices.shape[0] in (data.shape[0], 1),
        lambda: (
            f"sample of {data}: expected three dimensions, and indices [batch or 1, points, taps]; "
            f"got {indices}"
        ),
    )
    shape = tuple(indices.shape[1] if d == axis else e for d, e in enumerate(data.shape))
    return (TensorType(shape, data.dtype),)


@op("sample", kind="reduction", infer=_infer_sample)
def sample(c: OpCall) -> Tensor:
    """T_sample(n, p, c) = sum over k of x[n, indices[n, p, k], c] * weights[n, p, k]."""
    x, indices, weights = c.inputs
    axis, taps = integer(c.attrs, "axis"), indices.shape[2]

    def tap(i: Sequence[Expr], k: Expr) -> Expr:
        row = const(0) if is_single(indices.shape[0], x.shape[0]) else i[0]
        index = _index(indices[row, i[axis], k], x.shape[axis], taps)
        at = (*i[:axis], index, *i[axis + 1 :])
        return x[at] * weights[row, i[axis], k]

    return _summed(c, c.output.shape, taps, tap, c.inputs)


def _index(index: Load, extent: int, taps: int) -> Expr:
    """The index; inside of the data whatever it holds, where tuning may fill it at random."""
    return index if taps <= _WRITTEN_TAPS else minimum(maximum(index, 0), extent - 1)


def _summed(
    c: OpCall,
    shape: Sequence[int],
    taps: int,
    tap: Callable[[Sequence[Expr], Expr], Expr],
    inputs: Sequence[Tensor],
) -> Tensor:
    """The sum of `tap(axes, k)` over k: written out, or as a reduction where it is long."""
    if taps > _WRITTEN_TAPS:
        k = reduce_axis("k", taps)
        return c.stage(lambda *i: tap(i, k.var), inputs, shape=shape, reduce=[k])

    def body(*i: Expr) -> Expr:
        return reduce(lambda total, term: total + term, (tap(i, const(k)) for k in range(taps)))

    return c.stage(body, inputs, shape=shape)


def _infer_unpack(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, layout = present(types), str(attrs["layout"])
    blocks, groups = ints(attrs, "blocks"), integer(attrs, "groups")
    begins, extents = ints(attrs, "begins"), ints(attrs, "extents")
    packed = channels(data.shape, layout)
    made = packed // prod(blocks)
    within = all(
        begin >= 0 and begin + count <= extent * block
        for begin, count, extent, block in zip(
            begins, extents, spatial(data.shape, layout), blocks, strict=True
        )
    )
    require(
        packed == made * prod(blocks) and made % groups == 0 and within,
        lambda: (
            f"depth_to_space of {data} ({layout}) in {groups} groups and blocks {blocks}, from "
            f"{begins} to {extents}: the shapes do not fit"
        ),
    )
    return (TensorType(data_shape(data.shape[0], made, extents, layout), data.dtype),)


@op("depth_to_space", kind="reduction", infer=_infer_unpack)
def depth_to_space(c: OpCall) -> Tensor:
    """T_depth_to_space(nn, yy, xx, cc) = x[nn, y // by, x // bx, the channel of y % by, x % bx]."""
    (x,) = c.inputs
    layout, blocks = str(c.attrs["layout"]), ints(c.attrs, "blocks")
    groups, begins = integer(c.attrs, "groups"), ints(c.attrs, "begins")
    each = channels(c.output.shape, layout) // groups

    def body(*i: Expr) -> Expr:
        batch, positions, channel = split_axes(i, layout)
        within: Expr = const(0)
        for position, begin, block in zip(positions, begins, blocks, strict=True):
            within = within * block + (position + begin) % block
        group = channel // each if groups > 1 else const(0)
        own = channel % each if groups > 1 else channel
        packed = group * (prod(blocks) * each) + within * each + own
        whole = [(p + b) // s for p, b, s in zip(positions, begins, blocks, strict=True)]
        return x[data_index(batch, whole, packed, layout)]

    axes = data_axes(len(blocks), layout, "cc")
    return c.stage(body, axes=axes)

"""Pooling over two and three spatial dimensions.

Attributes: kernel, strides, dilations, layout, pads (begins..., ends...; what ceil_mode adds is
in the ends, so extents always round down) and, for averages, `counted`: how far around the data
the padding counts as elements of a window (all zeros: the divisor is the data inside the window).
"""

from collections.abc import Callable, Sequence
from math import prod

from retune.core.dtypes import INT32, TensorType
from retune.ir.expr import Expr, all_of, as_expr, cast, ceildiv, const, maximum, minimum, select
from retune.ir.stmt import identity
from retune.ir.te import Axis, Reducer, Tensor, reduce_axis
from retune.ops.convolution import (
    CHANNELS_LAST,
    SPATIAL,
    data_axes,
    data_index,
    padded,
    spatial_pads,
    split_axes,
    window_axes,
    window_places,
    windowed,
)
from retune.ops.reduction import is_extreme, partial_sums
from retune.ops.registry import Attrs, OpCall, ints, op, present, share_of
from retune.ops.shapes import channels, data_shape, require, spatial


def _infer_pool(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, layout = present(types), str(attrs["layout"])
    extents = windowed(data, ints(attrs, "kernel"), attrs, "pooling", "window")
    count = channels(data.shape, layout)
    return (TensorType(data_shape(data.shape[0], count, extents, layout), data.dtype),)


def _infer_global(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, layout = present(types), str(attrs["layout"])
    extents = [1] * (len(data.shape) - 2)
    count = channels(data.shape, layout)
    return (TensorType(data_shape(data.shape[0], count, extents, layout), data.dtype),)


@op("max_pool2d", "max_pool3d", kind="reduction", infer=_infer_pool)
def max_pool(c: OpCall) -> Tensor:
    """max_pool2d(nn, yy, xx, cc) max= data[nn, yy + ry, xx + rx, cc]."""
    # The start value of the maximum, so that lowering can leave padding out.
    return _window(c, c.op, "max", identity("max", c.output.dtype).value)


@op("avg_pool2d", "avg_pool3d", kind="reduction", infer=_infer_pool)
def avg_pool(c: OpCall) -> Tensor:
    """pool_sum(...) += data[...]; avg_pool2d(...) = pool_sum[...] / elements that count."""
    total = _window(c, "pool_sum", "sum", 0.0)
    layout = str(c.attrs["layout"])
    pads, counted = ints(c.attrs, "pads"), ints(c.attrs, "counted")
    whole = prod(ints(c.attrs, "kernel"))

    def body(*i: Expr) -> Expr:
        if pads == counted:
            return total[i] * (1.0 / whole)
        return total[i] / cast(_count(c, split_axes(i, layout)[1]), c.output.dtype)

    axes = data_axes(len(ints(c.attrs, "kernel")), layout, "cc")
    return c.stage(body, [total], stem=c.op, axes=axes)


def _count(c: OpCall, places: list[Expr]) -> Expr:
    """Taps of the window at `places` that lie on the data or on padding that counts."""
    kernel, pads, counted = (ints(c.attrs, key) for key in ("kernel", "pads", "counted"))
    strides, dilations = ints(c.attrs, "strides"), ints(c.attrs, "dilations")
    extents = spatial(c.inputs[0].shape, str(c.attrs["layout"]))
    rank = len(kernel)
    total: Expr = const(1)
    for d, place in enumerate(places):
        start = place * strides[d] - pads[d]
        first = maximum(ceildiv(as_expr(-counted[d]) - start, dilations[d]), 0)
        end = as_expr(extents[d] + counted[d + rank])
        last = minimum(ceildiv(end - start, dilations[d]), kernel[d])
        total = total * (last - first)
    return maximum(total, 1)


def _window(c: OpCall, stem: str, reducer: Reducer, border: float) -> Tensor:
    layout = str(c.attrs["layout"])
    kernel = ints(c.attrs, "kernel")
    pads = spatial_pads(ints(c.attrs, "pads"), layout)
    source = padded(c.inputs[0], pads, c.name, border)
    reduced, taps = window_axes(kernel)

    def body(*i: Expr) -> Expr:
        batch, places, channel = split_axes(i, layout)
        return source[data_index(batch, window_places(c, places, taps), channel, layout)]

    return _reduced(c, stem, body, [source], reduced, reducer)


def _reduced(
    c: OpCall,
    stem: str,
    body: Callable[..., Expr],
    inputs: Sequence[Tensor],
    over: Sequence[Axis],
    reducer: Reducer,
) -> Tensor:
    """A stage of the output's shape that combines the body over a window; one tap has an axis."""
    axes = data_axes(len(c.output.shape) - 2, str(c.attrs["layout"]), "cc")
    taps = over or [reduce_axis("ry", 1)]
    return c.stage(body, inputs, stem=stem, reduce=taps, reducer=reducer, axes=axes)


def _infer_index(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    (pooled,) = _infer_pool(types[:1], attrs)
    top = present(types, 1)
    require(
        pooled == top,
        lambda: f"positions of the maxima of {present(types)}: expected {pooled}, got {top}",
    )
    return (TensorType(pooled.shape, INT32),)


@op("max_pool2d_index", "max_pool3d_index", kind="reduction", infer=_infer_index)
def max_pool_index(c: OpCall) -> Tensor:
    """The position in its channel of the first element of each window that is the maximum.

    Inputs: the data, and the maxima of its windows. Positions count the last dimension first.
    max_pool2d_index(nn, yy, xx, cc) min= position of data[..] where it is top[nn, yy, xx, cc]."""
    data, top = c.inputs
    layout, kernel, pads = str(c.attrs["layout"]), ints(c.attrs, "kernel"), ints(c.attrs, "pads")
    extents, rank = spatial(data.shape, layout), len(kernel)
    source = padded(data, spatial_pads(pads, layout), c.name)
    reduced, taps = window_axes(kernel)

    def body(*i: Expr) -> Expr:
        batch, places, channel = split_axes(i, layout)
        at = window_places(c, places, taps)
        tests = [is_extreme(source[data_index(batch, at, channel, layout)], top[i])]
        flat: Expr = const(0)
        for d, extent in enumerate(extents):
            own = at[d] - pads[d]
            tests += [own >= 0] if pads[d] > 0 else []
            tests += [own < extent] if pads[d + rank] > 0 else []
            flat = flat * extent + own
        return select(all_of(*tests), flat, identity("min", c.output.dtype))

    return _reduced(c, c.op, body, [source, top], reduced, "min")


@op("global_avg_pool", kind="reduction", infer=_infer_global)
def global_avg_pool(c: OpCall) -> Tensor:
    """pool_sum(...) += data[nn, ry, rx, cc]; global_avg_pool(...) = pool_sum[...] / positions."""
    (data,), layout = c.inputs, str(c.attrs["layout"])
    positions = prod(spatial(data.shape, layout))
    first = 1 if layout in CHANNELS_LAST else 2
    over = range(first, first + len(spatial(data.shape, layout)))
    total = _whole(c, partial_sums(c, data, over), "pool_sum", "sum")
    axes = data_axes(len(c.output.shape) - 2, str(c.attrs["layout"]), "cc")
    share = share_of(positions, c.output.dtype)
    return c.stage(lambda *i: total[i] * share, [total], stem=c.op, axes=axes)


@op("global_max_pool", kind="reduction", infer=_infer_global)
def global_max_pool(c: OpCall) -> Tensor:
    """global_max_pool(nn, 0, 0, cc) max= data[nn, ry, rx, cc]."""
    return _whole(c, c.inputs[0], c.op, "max")


def _whole(c: OpCall, data: Tensor, stem: str, reducer: Reducer) -> Tensor:
    layout = str(c.attrs["layout"])
    extents = spatial(data.shape, layout)
    letters = SPATIAL[len(extents)]
    over = [reduce_axis(f"r{letter}", e) for letter, e in zip(letters, extents, strict=True)]

    def body(*i: Expr) -> Expr:
        batch, _, channel = split_axes(i, layout)
        return data[data_index(batch, [axis.var for axis in over], channel, layout)]

    return _reduced(c, stem, body, [data], over, reducer)

"""Pooling: a reduction over the window, then for averages the division by what counts."""

from math import prod

from retune.ir.expr import Expr, all_of, ceildiv, const, equal, maximum, minimum, select
from retune.ir.expr import cast as cast_expr
from retune.ir.stmt import identity
from retune.ir.te import Reducer, Tensor, compute, reduce_axis
from retune.ops.registry import ints
from retune.ops.shapes import spatial
from retune.ops.tensors.convolution import (
    SPATIAL,
    data_axes,
    data_index,
    padded,
    spatial_pads,
    split_axes,
    window_axes,
    window_places,
)
from retune.ops.tensors.registry import OpCall, tensors_of


@tensors_of("max_pool2d", "max_pool3d")
def max_pool(c: OpCall) -> Tensor:
    """max_pool2d(nn, yy, xx, cc) max= data[nn, yy + ry, xx + rx, cc]."""
    # The start value of the maximum, so that lowering can leave padding out.
    return _window(c, c.op, "max", identity("max", c.output.dtype).value)


@tensors_of("avg_pool2d", "avg_pool3d")
def avg_pool(c: OpCall) -> Tensor:
    """pool_sum(...) += data[...]; avg_pool2d(...) = pool_sum[...] / elements that count."""
    total = _window(c, "pool_sum", "sum", 0.0)
    layout = str(c.attrs["layout"])
    pads, counted = ints(c.attrs, "pads"), ints(c.attrs, "counted")
    whole = prod(ints(c.attrs, "kernel"))

    def body(*i: Expr) -> Expr:
        if pads == counted:
            return total[i] * (1.0 / whole)
        return total[i] / cast_expr(_count(c, split_axes(i, layout)[1]), c.output.dtype)

    axes = data_axes(len(ints(c.attrs, "kernel")), layout, "cc")
    return compute(c.name(c.op), c.output.shape, body, [total], axes=axes)


def _count(c: OpCall, places: list[Expr]) -> Expr:
    """Taps of the window at `places` that lie on the data or on padding that counts."""
    kernel, pads, counted = (ints(c.attrs, key) for key in ("kernel", "pads", "counted"))
    strides, dilations = ints(c.attrs, "strides"), ints(c.attrs, "dilations")
    extents = spatial(c.inputs[0].shape, str(c.attrs["layout"]))
    rank = len(kernel)
    total: Expr = const(1)
    for d, place in enumerate(places):
        start = place * strides[d] - pads[d]
        first = maximum(ceildiv(const(-counted[d]) - start, dilations[d]), 0)
        end = const(extents[d] + counted[d + rank])
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

    return compute(
        c.name(stem),
        c.output.shape,
        body,
        [source],
        reduce=reduced or [reduce_axis("ry", 1)],
        reducer=reducer,
        axes=data_axes(len(kernel), layout, "cc"),
    )


@tensors_of("max_pool2d_index", "max_pool3d_index")
def max_pool_index(c: OpCall) -> Tensor:
    """max_pool2d_index(nn, yy, xx, cc) min= place of data[..] where it is top[nn, yy, xx, cc]."""
    data, top = c.inputs
    layout, kernel, pads = str(c.attrs["layout"]), ints(c.attrs, "kernel"), ints(c.attrs, "pads")
    extents, rank = spatial(data.shape, layout), len(kernel)
    source = padded(data, spatial_pads(pads, layout), c.name)
    reduced, taps = window_axes(kernel)

    def body(*i: Expr) -> Expr:
        batch, places, channel = split_axes(i, layout)
        at = window_places(c, places, taps)
        tests = [equal(source[data_index(batch, at, channel, layout)], top[i])]
        flat: Expr = const(0)
        for d, extent in enumerate(extents):
            own = at[d] - pads[d]
            tests += [own >= 0] if pads[d] > 0 else []
            tests += [own < extent] if pads[d + rank] > 0 else []
            flat = flat * extent + own
        return select(all_of(*tests), flat, identity("min", c.output.dtype))

    return compute(
        c.name(c.op),
        c.output.shape,
        body,
        [source, top],
        reduce=reduced or [reduce_axis("ry", 1)],
        reducer="min",
        axes=data_axes(rank, layout, "cc"),
    )


@tensors_of("global_avg_pool")
def global_avg_pool(c: OpCall) -> Tensor:
    """pool_sum(...) += data[nn, ry, rx, cc]; global_avg_pool(...) = pool_sum[...] / positions."""
    total = _whole(c, "pool_sum", "sum")
    positions = prod(spatial(c.inputs[0].shape, str(c.attrs["layout"])))
    axes = data_axes(len(c.output.shape) - 2, str(c.attrs["layout"]), "cc")
    return compute(
        c.name(c.op), c.output.shape, lambda *i: total[i] * (1.0 / positions), [total], axes=axes
    )


@tensors_of("global_max_pool")
def global_max_pool(c: OpCall) -> Tensor:
    """global_max_pool(nn, 0, 0, cc) max= data[nn, ry, rx, cc]."""
    return _whole(c, c.op, "max")


def _whole(c: OpCall, stem: str, reducer: Reducer) -> Tensor:
    (data,) = c.inputs
    layout = str(c.attrs["layout"])
    extents = spatial(data.shape, layout)
    letters = SPATIAL[len(extents)]
    over = [reduce_axis(f"r{letter}", e) for letter, e in zip(letters, extents, strict=True)]

    def body(*i: Expr) -> Expr:
        batch, _, channel = split_axes(i, layout)
        return data[data_index(batch, [axis.var for axis in over], channel, layout)]

    return compute(
        c.name(stem),
        c.output.shape,
        body,
        [data],
        reduce=over,
        reducer=reducer,
        axes=data_axes(len(extents), layout, "cc"),
    )

"""Elements read at other places, as index expressions; see `graph.ops.images`."""

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod

from retune.ir.expr import Expr, Load, const, maximum, minimum, select
from retune.ir.te import Tensor, compute, reduce_axis
from retune.ops.registry import integer, ints
from retune.ops.shapes import channels
from retune.ops.tensors.convolution import data_axes, data_index, split_axes
from retune.ops.tensors.registry import OpCall, tensors_of

_WRITTEN_TAPS = 16
"""Taps that are written out: then the op runs at memory speed, with what precedes and follows. More
of them are a reduction."""


@tensors_of("repeat")
def repeat(c: OpCall) -> Tensor:
    """T_repeat(i...) = x[i // repeats...]."""
    (x,) = c.inputs
    repeats = ints(c.attrs, "repeats")
    return compute(
        c.name("T_repeat"),
        c.output.shape,
        lambda *i: x[tuple(a // times for a, times in zip(i, repeats, strict=True))],
        [x],
    )


@tensors_of("extend")
def extend(c: OpCall) -> Tensor:
    """T_extend(i...) = x[i - begins, folded back into the data...]."""
    (x,) = c.inputs
    rank, pads, mode = len(x.shape), ints(c.attrs, "pads"), str(c.attrs["mode"])

    def body(*i: Expr) -> Expr:
        return x[
            tuple(_folded(i[d], pads[d], pads[d + rank], x.shape[d], mode) for d in range(rank))
        ]

    return compute(c.name("T_extend"), c.output.shape, body, [x])


def _folded(axis: Expr, begin: int, end: int, extent: int, mode: str) -> Expr:
    """The element of the data that an element of its continuation shows."""
    inside, last = axis - begin, extent - 1
    before, behind = {
        "edge": (const(0), const(last)),
        "reflect": (const(begin) - axis, const(2 * last + begin) - axis),
        "wrap": (inside + extent, inside - extent),
    }[mode]
    place = inside
    if end:
        place = select(axis < begin + extent, place, behind)
    if begin:
        place = select(axis >= begin, place, before)
    return place


@tensors_of("resample")
def resample(c: OpCall) -> Tensor:
    """T_resample(.., i, ..) = sum over k of x[.., places[i, k], ..] * weights[i, k], each axis."""
    value = c.inputs[0]
    for position, axis in enumerate(ints(c.attrs, "axes")):
        places, weights = c.inputs[1 + 2 * position], c.inputs[2 + 2 * position]
        value = _along(c, value, axis, places, weights)
    return value


def _along(c: OpCall, x: Tensor, axis: int, places: Tensor, weights: Tensor) -> Tensor:
    made, taps = places.shape
    shape = (*x.shape[:axis], made, *x.shape[axis + 1 :])

    def tap(i: Sequence[Expr], k: Expr) -> Expr:
        place = _place(places[i[axis], k], x.shape[axis], taps)
        return x[(*i[:axis], place, *i[axis + 1 :])] * weights[i[axis], k]

    return _summed(c.name("T_resample"), shape, taps, tap, [x, places, weights])


@tensors_of("sample")
def sample(c: OpCall) -> Tensor:
    """T_sample(n, p, c) = sum over k of x[n, places[n, p, k], c] * weights[n, p, k]."""
    x, places, weights = c.inputs
    axis, taps = integer(c.attrs, "axis"), places.shape[2]

    def tap(i: Sequence[Expr], k: Expr) -> Expr:
        row = const(0) if places.shape[0] == 1 else i[0]
        place = _place(places[row, i[axis], k], x.shape[axis], taps)
        at = (*i[:axis], place, *i[axis + 1 :])
        return x[at] * weights[row, i[axis], k]

    return _summed(c.name("T_sample"), c.output.shape, taps, tap, c.inputs)


def _place(place: Load, extent: int, taps: int) -> Expr:
    """The place; inside of the data whatever it holds, where tuning may fill it at random."""
    return place if taps <= _WRITTEN_TAPS else minimum(maximum(place, 0), extent - 1)


def _summed(
    name: str,
    shape: Sequence[int],
    taps: int,
    tap: Callable[[Sequence[Expr], Expr], Expr],
    inputs: Sequence[Tensor],
) -> Tensor:
    """The sum of `tap(axes, k)` over k: written out, or as a reduction where it is long."""
    if taps > _WRITTEN_TAPS:
        k = reduce_axis("k", taps)
        return compute(name, shape, lambda *i: tap(i, k.var), inputs, reduce=[k])

    def body(*i: Expr) -> Expr:
        return reduce(lambda total, term: total + term, (tap(i, const(k)) for k in range(taps)))

    return compute(name, shape, body, inputs)


@tensors_of("depth_to_space")
def depth_to_space(c: OpCall) -> Tensor:
    """T_depth_to_space(nn, yy, xx, cc) = x[nn, y // by, x // bx, the channel of y % by, x % bx]."""
    (x,) = c.inputs
    layout, blocks = str(c.attrs["layout"]), ints(c.attrs, "blocks")
    groups, begins = integer(c.attrs, "groups"), ints(c.attrs, "begins")
    each = channels(c.output.shape, layout) // groups

    def body(*i: Expr) -> Expr:
        batch, places, channel = split_axes(i, layout)
        within: Expr = const(0)
        for place, begin, block in zip(places, begins, blocks, strict=True):
            within = within * block + (place + begin) % block
        group = channel // each if groups > 1 else const(0)
        own = channel % each if groups > 1 else channel
        packed = group * (prod(blocks) * each) + within * each + own
        whole = [(p + b) // s for p, b, s in zip(places, begins, blocks, strict=True)]
        return x[data_index(batch, whole, packed, layout)]

    axes = data_axes(len(blocks), layout, "cc")
    return compute(c.name("T_depth_to_space"), c.output.shape, body, [x], axes=axes)

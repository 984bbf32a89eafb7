"""Normalisation: softmax over one axis, local response over channels, own and batch statistics."""

from collections.abc import Callable, Sequence
from math import prod

from retune.core.dtypes import TensorType
from retune.ir.expr import Expr, const, power
from retune.ir.functions import call
from retune.ir.te import Reducer, Tensor, reduce_axis
from retune.ops.convolution import padded
from retune.ops.registry import Attrs, OpCall, integer, ints, number, op, present, share_of
from retune.ops.shapes import require, same_type


@op("softmax", kind="reduction", infer=same_type)
def softmax(c: OpCall) -> Tensor:
    """exp(x - max) / sum over `axis`, in stages; NaN where all of it is -inf."""
    (data,) = c.inputs
    power_of, total, axis = _exponentials(c, data)
    return c.stage(
        lambda *i: power_of[i] / total[_without(i, axis)], [power_of, total], stem="T_softmax_norm"
    )


@op("log_softmax", kind="reduction", infer=same_type)
def log_softmax(c: OpCall) -> Tensor:
    """x - max - log(sum of exp(x - max)) over `axis`, in stages; NaN where all of it is -inf."""
    (data,) = c.inputs
    axis = integer(c.attrs, "axis")
    top = _along(c, "T_softmax_max", data, axis, "max")
    shifted = c.stage(
        lambda *i: data[i] - top[_without(i, axis)], [data, top], stem="T_softmax_shift"
    )
    power_of = c.stage(lambda *i: call("exp", shifted[i]), [shifted], stem="T_softmax_exp")
    total = _along(c, "T_softmax_sum", power_of, axis, "sum")
    return c.stage(
        lambda *i: shifted[i] - call("log", total[_without(i, axis)]),
        [shifted, total],
        stem="T_log_softmax",
    )


def _exponentials(c: OpCall, data: Tensor) -> tuple[Tensor, Tensor, int]:
    axis = integer(c.attrs, "axis")
    top = _along(c, "T_softmax_max", data, axis, "max")
    power_of = c.stage(
        lambda *i: call("exp", data[i] - top[_without(i, axis)]), [data, top], stem="T_softmax_exp"
    )
    return power_of, _along(c, "T_softmax_sum", power_of, axis, "sum"), axis


def _along(c: OpCall, stem: str, data: Tensor, axis: int, reducer: Reducer) -> Tensor:
    """The reduction along one axis, which is dropped (a single axis is kept as extent 1)."""
    k = reduce_axis("k", data.shape[axis])
    shape = (*data.shape[:axis], *data.shape[axis + 1 :]) or (1,)

    def body(*i: Expr) -> Expr:
        own = i if len(data.shape) > 1 else ()
        return data[(*own[:axis], k.var, *own[axis:])]

    return c.stage(body, [data], stem=stem, shape=shape, reduce=[k], reducer=reducer)


def _without(i: Sequence[Expr], axis: int) -> tuple[Expr, ...]:
    return (*i[:axis], *i[axis + 1 :]) or (const(0),)


@op("standardise", kind="reduction", infer=same_type)
def standardise(c: OpCall) -> Tensor:
    """(x - mean) / sqrt(mean of squares + epsilon) over `axes`; the mean only if `centred`.

    Distances from the first element are averaged, which are exact around a large mean.
    """
    (data,), axes = c.inputs, ints(c.attrs, "axes")
    epsilon = number(c.attrs, "epsilon")
    share = share_of(prod(data.shape[d] for d in axes), data.dtype.compute)
    inputs, total = [data], None

    def first(i: tuple[Expr, ...]) -> Expr:
        return data[tuple(const(0) if d in axes else a for d, a in enumerate(i))]

    if c.attrs["centred"]:
        total = _statistic(c, "T_standardise_sum", lambda i: data[i] - first(i), inputs)
        inputs = [data, total]

    def distance(i: tuple[Expr, ...]) -> Expr:
        return data[i] if total is None else data[i] - (first(i) + c.read(total, i) * share)

    def squared(i: tuple[Expr, ...]) -> Expr:
        return distance(i) * distance(i)

    squares = _statistic(c, "T_standardise_squares", squared, inputs)

    def body(*i: Expr) -> Expr:
        variance = c.read(squares, i) * share + epsilon
        return distance(i) * (1.0 / call("sqrt", variance))

    return c.stage(body, [*inputs, squares])


def _statistic(
    c: OpCall, stem: str, element: Callable[[tuple[Expr, ...]], Expr], inputs: Sequence[Tensor]
) -> Tensor:
    """The sum over the op's axes, which stay as extents of 1, of an expression of the indices."""
    shape = inputs[0].shape
    over = {d: reduce_axis(f"k{d}", shape[d]) for d in ints(c.attrs, "axes")}

    def body(*i: Expr) -> Expr:
        return element(tuple(over[d].var if d in over else a for d, a in enumerate(i)))

    kept = tuple(1 if d in over else extent for d, extent in enumerate(shape))
    return c.stage(body, inputs, stem=stem, shape=kept, reduce=list(over.values()))


@op("lrn", kind="reduction", infer=same_type)
def lrn(c: OpCall) -> Tensor:
    """x / (bias + alpha / size * sum of squares of `size` neighbours along `axis`) ** beta."""
    (data,) = c.inputs
    axis, size = integer(c.attrs, "axis"), integer(c.attrs, "size")
    before, rank = (size - 1) // 2, len(data.shape)
    pads = [0] * (2 * rank)
    pads[axis], pads[axis + rank] = before, size - 1 - before
    squares = c.stage(lambda *i: data[i] * data[i], [data], stem="lrn_square")
    around = padded(squares, pads, c.name)
    k = reduce_axis("k", size)
    total = c.stage(
        lambda *i: around[tuple(a + k.var if d == axis else a for d, a in enumerate(i))],
        [around],
        stem="lrn_sum",
        reduce=[k],
    )
    alpha, beta, bias = (number(c.attrs, key) for key in ("alpha", "beta", "bias"))

    def body(*i: Expr) -> Expr:
        scale = total[i] * (alpha / size) + bias
        return data[i] / _positive_power(scale, beta)

    return c.stage(body, [data, total], stem="lrn")


def _positive_power(base: Expr, exponent: float) -> Expr:
    """`base ** exponent` of a positive base; the usual three quarters need no logarithm."""
    if exponent == 0.75:
        half = call("sqrt", base)
        return half * call("sqrt", half)
    return power(base, const(exponent, base.dtype))


def _infer_batch_norm(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data = present(types)
    channels = data.shape[integer(attrs, "axis")]
    for index in range(1, 5):
        entry = present(types, index)
        require(
            entry.shape == (channels,),
            lambda entry=entry: (
                f"batch_norm of {data}: expected statistics [{channels}], got {entry}"
            ),
        )
    return (data,)


@op("batch_norm", kind="broadcast", infer=_infer_batch_norm)
def batch_norm(c: OpCall) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias; inputs x, scale, bias, mean, var."""
    x, scale, bias, mean, variance = c.inputs
    axis, epsilon = integer(c.attrs, "axis"), number(c.attrs, "epsilon")

    def body(*i: Expr) -> Expr:
        channel = i[axis]
        normal = (x[i] - mean[channel]) / call("sqrt", variance[channel] + epsilon)
        return normal * scale[channel] + bias[channel]

    return c.stage(body)

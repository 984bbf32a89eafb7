"""Softmax, standardisation and local response normalisation, as stages."""

from collections.abc import Callable, Sequence
from math import prod

from retune.ir.expr import Expr, const, power
from retune.ir.functions import call
from retune.ir.te import Reducer, Tensor, compute, reduce_axis
from retune.ops.registry import integer, ints, number
from retune.ops.tensors.convolution import padded
from retune.ops.tensors.registry import OpCall, read, tensors_of


@tensors_of("softmax")
def softmax(c: OpCall) -> Tensor:
    """Stages max, exp, sum and division along the axis."""
    (data,) = c.inputs
    power_of, total, axis = _exponentials(c, data)
    return compute(
        c.name("T_softmax_norm"),
        data.shape,
        lambda *i: power_of[i] / total[_without(i, axis)],
        [power_of, total],
    )


@tensors_of("log_softmax")
def log_softmax(c: OpCall) -> Tensor:
    """Stages max, exp, sum and (x - max) - log(sum)."""
    (data,) = c.inputs
    axis = integer(c.attrs, "axis")
    top = _along(c, "T_softmax_max", data, axis, "max")
    shifted = compute(
        c.name("T_softmax_shift"),
        data.shape,
        lambda *i: data[i] - top[_without(i, axis)],
        [data, top],
    )
    power_of = compute(
        c.name("T_softmax_exp"), data.shape, lambda *i: call("exp", shifted[i]), [shifted]
    )
    total = _along(c, "T_softmax_sum", power_of, axis, "sum")
    return compute(
        c.name("T_log_softmax"),
        data.shape,
        lambda *i: shifted[i] - call("log", total[_without(i, axis)]),
        [shifted, total],
    )


def _exponentials(c: OpCall, data: Tensor) -> tuple[Tensor, Tensor, int]:
    axis = integer(c.attrs, "axis")
    top = _along(c, "T_softmax_max", data, axis, "max")
    power_of = compute(
        c.name("T_softmax_exp"),
        data.shape,
        lambda *i: call("exp", data[i] - top[_without(i, axis)]),
        [data, top],
    )
    return power_of, _along(c, "T_softmax_sum", power_of, axis, "sum"), axis


def _along(c: OpCall, stem: str, data: Tensor, axis: int, reducer: Reducer) -> Tensor:
    """The reduction along one axis, which is dropped (a single axis is kept as extent 1)."""
    k = reduce_axis("k", data.shape[axis])
    shape = (*data.shape[:axis], *data.shape[axis + 1 :]) or (1,)

    def body(*i: Expr) -> Expr:
        own = i if len(data.shape) > 1 else ()
        return data[(*own[:axis], k.var, *own[axis:])]

    return compute(c.name(stem), shape, body, [data], reduce=[k], reducer=reducer)


def _without(i: Sequence[Expr], axis: int) -> tuple[Expr, ...]:
    return (*i[:axis], *i[axis + 1 :]) or (const(0),)


@tensors_of("standardise")
def standardise(c: OpCall) -> Tensor:
    """Stages sum, sum of squared distances from the mean, and their quotient."""
    (data,) = c.inputs
    epsilon = number(c.attrs, "epsilon")
    share = 1.0 / prod(data.shape[d] for d in ints(c.attrs, "axes"))
    inputs, total = [data], None
    if c.attrs["centred"]:
        total = _statistic(c, "T_standardise_sum", lambda i: data[i], inputs)
        inputs = [data, total]

    def distance(i: tuple[Expr, ...]) -> Expr:
        return data[i] if total is None else data[i] - read(total, i, data.shape) * share

    def squared(i: tuple[Expr, ...]) -> Expr:
        return distance(i) * distance(i)

    squares = _statistic(c, "T_standardise_squares", squared, inputs)

    def body(*i: Expr) -> Expr:
        variance = read(squares, i, data.shape) * share + epsilon
        return distance(i) * (1.0 / call("sqrt", variance))

    return compute(c.name("T_standardise"), data.shape, body, [*inputs, squares])


def _statistic(
    c: OpCall, stem: str, element: Callable[[tuple[Expr, ...]], Expr], inputs: Sequence[Tensor]
) -> Tensor:
    """The sum over the op's axes, which stay as extents of 1, of an expression of the indices."""
    shape = inputs[0].shape
    over = {d: reduce_axis(f"k{d}", shape[d]) for d in ints(c.attrs, "axes")}

    def body(*i: Expr) -> Expr:
        return element(tuple(over[d].var if d in over else a for d, a in enumerate(i)))

    kept = tuple(1 if d in over else extent for d, extent in enumerate(shape))
    return compute(c.name(stem), kept, body, inputs, reduce=list(over.values()))


@tensors_of("lrn")
def lrn(c: OpCall) -> Tensor:
    """Stages squares (padded along the channels), their sum over neighbours, and the quotient."""
    (data,) = c.inputs
    axis, size = integer(c.attrs, "axis"), integer(c.attrs, "size")
    before, rank = (size - 1) // 2, len(data.shape)
    pads = [0] * (2 * rank)
    pads[axis], pads[axis + rank] = before, size - 1 - before
    squares = compute(c.name("lrn_square"), data.shape, lambda *i: data[i] * data[i], [data])
    around = padded(squares, pads, c.name)
    k = reduce_axis("k", size)
    total = compute(
        c.name("lrn_sum"),
        data.shape,
        lambda *i: around[tuple(a + k.var if d == axis else a for d, a in enumerate(i))],
        [around],
        reduce=[k],
    )
    alpha, beta, bias = (number(c.attrs, key) for key in ("alpha", "beta", "bias"))

    def body(*i: Expr) -> Expr:
        scale = total[i] * (alpha / size) + bias
        return data[i] / _positive_power(scale, beta)

    return compute(c.name("lrn"), data.shape, body, [data, total])


def _positive_power(base: Expr, exponent: float) -> Expr:
    """`base ** exponent` of a positive base; the usual three quarters need no logarithm."""
    if exponent == 0.75:
        half = call("sqrt", base)
        return half * call("sqrt", half)
    return power(base, const(exponent, base.dtype))

"""Reductions over axes, and what is found or added up along one axis."""

from collections.abc import Callable, Mapping, Sequence
from math import prod

from retune.core.dtypes import BOOL, INT32, INT64
from retune.ir.expr import Expr, binary, cast, const, equal, select
from retune.ir.te import Axis, Reducer, Tensor, compute, reduce_axis
from retune.ops.registry import integer, ints
from retune.ops.tensors.elementwise import divide
from retune.ops.tensors.registry import OpCall, tensors_of

_REDUCERS: dict[str, Reducer] = {
    "reduce_mean": "sum",
    "reduce_sum": "sum",
    "reduce_prod": "prod",
    "reduce_max": "max",
    "reduce_min": "min",
}


@tensors_of(*_REDUCERS)
def reduce(c: OpCall) -> Tensor:
    """T_reduce(i...) combines x over the axes; a mean divides afterwards, truth is 0 or 1."""
    (data,) = c.inputs
    mean, truth = c.op == "reduce_mean", data.dtype == BOOL
    over = ints(c.attrs, "axes")
    stem = "reduce_total" if mean or truth else f"T_{c.op}"
    number = INT32 if truth else c.output.dtype
    total = _over(c, stem, data, over, _REDUCERS[c.op], lambda x, _k, _i: cast(x, number))
    if not mean and not truth:
        return total
    count = prod(data.shape[d] for d in over)

    def body(*i: Expr) -> Expr:
        if truth:
            return binary("ne", total[i], 0)
        whole = not data.dtype.is_float
        return divide(total[i], const(count, data.dtype)) if whole else total[i] * (1.0 / count)

    return compute(c.name(f"T_{c.op}"), c.output.shape, body, [total])


Step = Callable[[Expr, Expr, tuple[Expr, ...]], Expr]
"""From an element, its index along the (last) axis and the output's indices to what combines."""


def _over(
    c: OpCall,
    stem: str,
    data: Tensor,
    over: Sequence[int],
    reducer: Reducer,
    step: Step,
    others: Sequence[Tensor] = (),
) -> Tensor:
    """A stage of the output's shape that combines `step` of the elements over the axes."""
    axes = {d: reduce_axis(f"k{d}", data.shape[d]) for d in over}
    keep = bool(c.attrs["keepdims"])

    def body(*i: Expr) -> Expr:
        last = axes[over[-1]].var if over else const(0)
        return step(data[_element(i, axes, len(data.shape), keep=keep)], last, i)

    return compute(
        c.name(stem),
        c.output.shape,
        body,
        [data, *others],
        reduce=list(axes.values()),
        reducer=reducer,
    )


def _element(
    i: Sequence[Expr], axes: Mapping[int, Axis], rank: int, *, keep: bool
) -> tuple[Expr, ...]:
    """The indices of the data, from those of the output and of the reduced axes."""
    left = iter(i)
    index: list[Expr] = []
    for d in range(rank):
        if d not in axes:
            index.append(next(left))
            continue
        index.append(axes[d].var)
        if keep:
            next(left)
    return tuple(index)


@tensors_of("argmax", "argmin")
def extreme(c: OpCall) -> Tensor:
    """Stages: the extreme value, the first (or last) place that has it, and that as int64."""
    (data,) = c.inputs
    axis, last = integer(c.attrs, "axis"), bool(c.attrs["last"])
    best = _over(
        c, "T_best", data, [axis], "max" if c.op == "argmax" else "min", lambda x, _k, _i: x
    )
    elsewhere = 0 if last else data.shape[axis] - 1
    place = _over(
        c,
        "T_place",
        data,
        [axis],
        "max" if last else "min",
        lambda x, k, i: select(equal(x, best[i]), k, elsewhere),
        [best],
    )
    return compute(c.name(f"T_{c.op}"), c.output.shape, lambda *i: cast(place[i], INT64), [place])


@tensors_of("top_indices")
def top_indices(c: OpCall) -> Tensor:
    """Stages: how many elements come before each one, and who has as many before it."""
    (data,) = c.inputs
    axis, largest = integer(c.attrs, "axis"), bool(c.attrs["largest"])
    other, element = reduce_axis("j", data.shape[axis]), reduce_axis("j", data.shape[axis])

    def before(*i: Expr) -> Expr:
        own, rival = data[i], data[_at(i, axis, other.var)]
        better = own < rival if largest else rival < own
        as_good = own <= rival if largest else rival <= own
        return cast(select(other.var < i[axis], as_good, better), INT32)

    rank = compute(c.name("T_rank"), data.shape, before, [data], reduce=[other])

    def holder(*i: Expr) -> Expr:
        return select(equal(rank[_at(i, axis, element.var)], i[axis]), element.var, 0)

    place = compute(
        c.name("T_place"), c.output.shape, holder, [rank], reduce=[element], reducer="max"
    )
    return compute(
        c.name("T_top_indices"), c.output.shape, lambda *i: cast(place[i], INT64), [place]
    )


def _at(i: Sequence[Expr], axis: int, index: Expr) -> tuple[Expr, ...]:
    """The indices with another one along the axis."""
    return (*i[:axis], index, *i[axis + 1 :])


_RUNNING: dict[str, tuple[Reducer, int]] = {
    "cumulative_sum": ("sum", 0),
    "cumulative_product": ("prod", 1),
}
"""Op -> how elements combine, and what changes nothing."""


@tensors_of(*_RUNNING)
def cumulative(c: OpCall) -> Tensor:
    """T_cumulative(i...) combines x over the axis where the element counts for i."""
    (data,) = c.inputs
    axis = integer(c.attrs, "axis")
    reducer, neutral = _RUNNING[c.op]
    k = reduce_axis("k", data.shape[axis])

    def body(*i: Expr) -> Expr:
        first, then = (i[axis], k.var) if c.attrs["reverse"] else (k.var, i[axis])
        counts = first < then if c.attrs["exclusive"] else first <= then
        return select(counts, data[_at(i, axis, k.var)], const(neutral, data.dtype))

    return compute(c.name(f"T_{c.op}"), data.shape, body, [data], reduce=[k], reducer=reducer)

"""Reductions over axes, and what is found or added up along one axis.

Attributes of reductions: axes (ascending, not negative), keepdims. Sums of bytes are taken, and
made, in int32; a mean of integers is exact, and rounded toward zero. Attributes of ops along one
axis: `axis`, not negative. A NaN is the largest element and the smallest one, as in numpy, and the
last one of those in order.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from retune.core.dims import always_equal, is_fixed, most
from retune.core.dtypes import BOOL, INT32, INT64, Array, TensorType, dtype_of
from retune.ir.expr import Expr, all_of, as_expr, binary, cast, const, either, equal, select
from retune.ir.functions import call
from retune.ir.stmt import identity
from retune.ir.te import Axis, Reducer, Tensor, reduce_axis
from retune.ops.host_numpy import top_positions
from retune.ops.linear import BYTES
from retune.ops.registry import Attrs, OpCall, integer, ints, op, present, share_of
from retune.ops.shapes import require, same_type

_REDUCERS: dict[str, Reducer] = {
    "reduce_mean": "sum",
    "reduce_sum": "sum",
    "reduce_prod": "prod",
    "reduce_max": "max",
    "reduce_min": "min",
}


def _infer(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, axes = present(types), ints(attrs, "axes")
    if attrs["keepdims"]:
        shape = tuple(1 if d in axes else extent for d, extent in enumerate(data.shape))
    else:
        shape = tuple(extent for d, extent in enumerate(data.shape) if d not in axes)
    return (TensorType(shape, data.dtype),)


def _infer_sum(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    (made,) = _infer(types, attrs)
    return (TensorType(made.shape, INT32 if made.dtype in BYTES else made.dtype),)


def reduce(c: OpCall) -> Tensor:
    """T_reduce(i...) combines x over the axes. A mean divides afterwards; booleans are 0 or 1."""
    (data,) = c.inputs
    mean, truth = c.op == "reduce_mean", data.dtype == BOOL
    if mean and data.dtype.is_integer:
        return _integer_mean(c)
    over = ints(c.attrs, "axes")
    if _REDUCERS[c.op] == "sum":
        data = partial_sums(c, data, over)
    stem = "reduce_total" if mean or truth else f"T_{c.op}"
    number = INT32 if truth else c.output.dtype
    total = _over(c, stem, data, over, _REDUCERS[c.op], lambda x, _k, _i: cast(x, number))
    if not mean and not truth:
        return total
    count = prod(c.inputs[0].shape[d] for d in over)

    def body(*i: Expr) -> Expr:
        if truth:  # the maximum of no elements is the least integer, which is false, too
            return binary("lt", 0, total[i]) if c.op == "reduce_max" else binary("ne", total[i], 0)
        return total[i] * share_of(count, c.output.dtype)

    return c.stage(body, [total])


def partial_sums(c: OpCall, data: Tensor, over: Sequence[int]) -> Tensor:
    """Sums instead of floats, where one sum over the axes takes many: those that are left are few.

    One axis keeps as many elements as there are parts, which neighbours take turns to be of; the
    others keep one. However a schedule orders additions, a sum is exact to its last bits then: one
    of four million elements, one after the other, lost four digits.
    """
    longest = [most(extent) for extent in data.shape]
    if not data.dtype.is_float or prod(longest[d] for d in over) <= _MOST_ADDED:
        return data
    axis = over[-1] if longest[over[-1]] >= _LEAST_PARTS else max(over, key=longest.__getitem__)
    extent = data.shape[axis]
    whole = longest[axis] <= _MOST_ADDED and len(over) > 1
    parts = extent if whole else _parts(longest[axis])
    steps = 1 if whole else -(-extent // parts)
    extents = {d: steps if d == axis else data.shape[d] for d in over}
    axes = {d: reduce_axis(f"k{d}", n) for d, n in extents.items() if not always_equal(n, 1)}

    def body(*i: Expr) -> Expr:
        index = [axes[d].var if d in axes else a for d, a in enumerate(i)]
        position = index[axis] * parts + i[axis] if axis in axes else i[axis]
        index[axis] = position
        element = data[tuple(index)]
        inside = always_equal(parts * steps, extent)
        return element if inside else select(position < extent, element, 0.0)

    shape = [parts if d == axis else 1 if d in axes else e for d, e in enumerate(data.shape)]
    return c.stage(body, [data], stem="T_partial_sums", shape=shape, reduce=list(axes.values()))


def _parts(extent: int) -> int:
    """As many as vectors have lanes, at least, and so that each takes few elements, equally many of
    them if there is such a number of parts that vectors divide."""
    least = -(-extent // (_LEAST_PARTS * _PART)) * _LEAST_PARTS
    first = -(-extent // (_PART * _LANES)) * _LANES
    numbers = range(max(first, _LEAST_PARTS), 2 * least, _LANES)
    return next((n for n in numbers if extent % n == 0), least)


_MOST_ADDED = 4096
"""Elements of a sum that is not taken by parts, at most: 2e-6 of it is lost."""
_PART, _LEAST_PARTS = 1024, 64
"""Elements of a part of one axis, at most, and parts of it, at least."""
_LANES = 8
"""Vectors of so many parts, at least, are whole."""


def _integer_mean(c: OpCall) -> Tensor:
    """The exact mean: int64 holds sums of all other types, of its own those of parts of elements.

    Quotients and remainders by the count are summed apart: neither sum exceeds int64.
    """
    (data,), over = c.inputs, ints(c.attrs, "axes")
    wide = data.dtype if data.dtype.itemsize == INT64.itemsize else INT64
    number = prod(data.shape[d] for d in over)
    count = const(number, wide) if is_fixed(number) else cast(as_expr(number), wide)

    def total(stem: str, part: Callable[[Expr], Expr]) -> Tensor:
        return _over(c, stem, data, over, "sum", lambda x, _k, _i: part(cast(x, wide)))

    if wide is not data.dtype:
        whole = total("reduce_total", lambda x: x)
        return c.stage(lambda *i: cast(call("divide", whole[i], count), data.dtype), [whole])
    quotients = total("reduce_quotients", lambda x: call("divide", x, count))
    rests = total("reduce_rests", lambda x: call("fmod", x, count))

    def body(*i: Expr) -> Expr:
        value = quotients[i] + call("divide", rests[i], count)
        if wide.is_unsigned:
            return value
        rest = call("fmod", rests[i], count)
        less = select(all_of(value > 0, rest < 0), value - 1, value)
        return select(all_of(value < 0, rest > 0), value + 1, less)

    return c.stage(body, [quotients, rests])


def _mean(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The sum divided by the count: kernels multiply by its reciprocal, which rounds once more.

    What calibrates a quantizer is exact to the last bit.
    """
    data, axes = present(arrays), ints(attrs, "axes")
    dtype, count = dtype_of(data), prod(data.shape[d] for d in axes)
    how: Any = {"axis": axes, "keepdims": bool(attrs["keepdims"])}
    with np.errstate(invalid="ignore", divide="ignore"):
        if dtype.is_float:
            wide = data.astype(dtype.compute.numpy, copy=False)
            total = wide.sum(dtype=wide.dtype, **how)
            return (np.asarray(total / wide.dtype.type(count), data.dtype),)
        number = data.dtype.type(count) if data.dtype.itemsize == 8 else np.int64(count)
        rests = np.sum(data % number, dtype=number.dtype, **how)
        floor = np.sum(data // number, dtype=number.dtype, **how) + rests // number
        return (np.asarray(floor + ((floor < 0) & (rests % number != 0)), data.dtype),)


for _name in _REDUCERS:
    op(
        _name,
        kind="reduction",
        infer=_infer_sum if _name == "reduce_sum" else _infer,
        numpy=_mean if _name == "reduce_mean" else None,
    )(reduce)


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

    inputs, reduced = [data, *others], list(axes.values())
    return c.stage(body, inputs, stem=stem, reduce=reduced, reducer=reducer)


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


def _infer_extreme(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, axis = present(types), integer(attrs, "axis")
    require(
        0 <= axis < len(data.shape) and data.shape[axis] > 0,
        lambda: f"index of the largest or smallest of {data}: dimension {axis} has no elements",
    )
    kept = (1,) if attrs["keepdims"] else ()
    return (TensorType((*data.shape[:axis], *kept, *data.shape[axis + 1 :]), INT64),)


@op("argmax", "argmin", kind="reduction", infer=_infer_extreme)
def extreme(c: OpCall) -> Tensor:
    """Where the largest or smallest element is along the axis, the first or `last` of equal ones.

    Stages: the extreme value, the position that has it, and that as int64.
    """
    (data,) = c.inputs
    axis, last = integer(c.attrs, "axis"), bool(c.attrs["last"])
    best = _over(
        c, "T_best", data, [axis], "max" if c.op == "argmax" else "min", lambda x, _k, _i: x
    )
    elsewhere = 0 if last else data.shape[axis] - 1
    position = _over(
        c,
        "T_place",
        data,
        [axis],
        "max" if last else "min",
        lambda x, k, i: select(is_extreme(x, best[i]), k, elsewhere),
        [best],
    )
    return c.stage(lambda *i: cast(position[i], INT64), [position])


def is_extreme(x: Expr, best: Expr) -> Expr:
    """Whether the element is the largest (or smallest) one, which a NaN is where there are any."""
    found = equal(x, best)
    return binary("or", found, call("isnan", x)) if x.dtype.is_float else found


def _infer_top(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, axis, count = present(types), integer(attrs, "axis"), integer(attrs, "count")
    require(
        1 <= count <= data.shape[axis],
        lambda: f"the first {count} of {data} along dimension {axis}: there are not so many",
    )
    return (TensorType((*data.shape[:axis], count, *data.shape[axis + 1 :]), INT64),)


def _top_indices(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    count, axis = integer(attrs, "count"), integer(attrs, "axis")
    return (top_positions(present(arrays), count, axis, largest=bool(attrs["largest"])),)


@op("top_indices", kind="reduction", infer=_infer_top, numpy=_top_indices)
def top_indices(c: OpCall) -> Tensor:
    """Where the `count` largest (or smallest) elements are, in order; the first of equal ones.

    Stages: how many elements come before each one, and which has as many before it. A few of many
    elements are found by passes over all of them instead.
    """
    (data,) = c.inputs
    axis, largest = integer(c.attrs, "axis"), bool(c.attrs["largest"])
    ordered = largest or not data.dtype.is_float  # a NaN is the smallest one for a minimum
    if ordered and _is_passed(data.shape, axis, integer(c.attrs, "count")):
        return _by_passes(c)
    other, element = reduce_axis("j", data.shape[axis]), reduce_axis("j", data.shape[axis])

    def before(*i: Expr) -> Expr:
        own, rival = data[i], data[_at(i, axis, other.var)]
        low, high = (own, rival) if largest else (rival, own)
        better, as_good = low < high, low <= high
        if data.dtype.is_float:  # nothing is above a NaN
            better = binary("and", binary("or", better, call("isnan", high)), equal(low, low))
            as_good = binary("or", as_good, call("isnan", high))
        return cast(either(other.var + 1 <= i[axis], as_good, better), INT32)

    rank = c.stage(before, [data], stem="T_rank", shape=data.shape, reduce=[other])

    def holder(*i: Expr) -> Expr:
        return select(equal(rank[_at(i, axis, element.var)], i[axis]), element.var, 0)

    position = c.stage(holder, [rank], stem="T_place", reduce=[element], reducer="max")
    return c.stage(lambda *i: cast(position[i], INT64), [position])


_MOST_PASSES = 8
"""Of two stages each."""
_LEAST_PAIRS = 1 << 16
"""Fewer comparisons take less time than the launches of passes."""


def _is_passed(shape: Sequence[int], axis: int, count: int) -> bool:
    """Whether passes, each of which looks at the positions found before, are less work than to
    compare all pairs along the axis. Measured with two to eight top elements of 32 to 1,000."""
    extent = shape[axis]
    if not is_fixed(extent) or count > _MOST_PASSES:
        return False
    return extent >= 4 * count * (count + 2) and most(prod(shape)) * extent >= _LEAST_PAIRS


def _by_passes(c: OpCall) -> Tensor:
    """Stages: `count` times the extreme of the elements that are left, and the first position of
    it; and all positions as int64."""
    (data,), axis, count = c.inputs, integer(c.attrs, "axis"), integer(c.attrs, "count")
    extent = data.shape[axis]
    shape = (*data.shape[:axis], 1, *data.shape[axis + 1 :])
    reducer: Reducer = "max" if c.attrs["largest"] else "min"
    worst, positions = identity(reducer, data.dtype), list[Tensor]()

    def is_left(k: Expr, i: tuple[Expr, ...]) -> Expr:
        return all_of(*(binary("ne", k, position[i]) for position in positions))

    for number in range(count):
        k = reduce_axis("k", extent)
        best = c.stage(
            lambda *i, k=k: either(is_left(k.var, i), data[_at(i, axis, k.var)], worst),
            [data, *positions],
            stem=f"T_best_{number}",
            shape=shape,
            reduce=[k],
            reducer=reducer,
        )

        def position(*i: Expr, k: Axis = k, best: Tensor = best) -> Expr:
            found = is_extreme(data[_at(i, axis, k.var)], best[i])
            return either(binary("and", is_left(k.var, i), found), k.var, const(extent - 1))

        inputs, stem = [data, best, *positions], f"T_place_{number}"
        positions.append(
            c.stage(position, inputs, stem=stem, shape=shape, reduce=[k], reducer="min")
        )

    def body(*i: Expr) -> Expr:
        found = positions[-1][_at(i, axis, const(0))]
        for number, position in enumerate(positions[:-1]):
            found = either(equal(i[axis], number), position[_at(i, axis, const(0))], found)
        return cast(found, INT64)

    return c.stage(body, positions)


def _at(i: Sequence[Expr], axis: int, index: Expr) -> tuple[Expr, ...]:
    """The indices with another one along the axis."""
    return (*i[:axis], index, *i[axis + 1 :])


_RUNNING: dict[str, tuple[Reducer, int]] = {
    "cumulative_sum": ("sum", 0),
    "cumulative_product": ("prod", 1),
}
"""Op -> how elements combine, and what changes nothing."""


def _accumulated(arrays: Sequence[Array | None], attrs: Attrs, combine: np.ufunc) -> Array:
    """The running sums or products, in as many steps as there are elements."""
    data, axis = present(arrays), integer(attrs, "axis")
    data = np.flip(data, axis) if attrs["reverse"] else data
    made = combine.accumulate(data, axis=axis, dtype=data.dtype)
    if attrs["exclusive"]:
        first = np.full_like(np.take(data, [0], axis), combine.identity)
        made = np.concatenate([first, np.delete(made, -1, axis)], axis)
    return np.ascontiguousarray(np.flip(made, axis) if attrs["reverse"] else made)


@op(
    "cumulative_sum",
    kind="reduction",
    infer=same_type,
    numpy=lambda arrays, attrs: (_accumulated(arrays, attrs, np.add),),
)
@op(
    "cumulative_product",
    kind="reduction",
    infer=same_type,
    numpy=lambda arrays, attrs: (_accumulated(arrays, attrs, np.multiply),),
)
def cumulative(c: OpCall) -> Tensor:
    """T_cumulative(i...) combines x over the axis where the element counts for i.

    Along the last axis all elements are read for each i, as those that count differ from lane to
    lane; along another one those that do not count are skipped.
    """
    (data,) = c.inputs
    axis = integer(c.attrs, "axis")
    reducer, neutral = _RUNNING[c.op]
    k = reduce_axis("k", data.shape[axis])

    last, reverse = axis == len(data.shape) - 1, bool(c.attrs["reverse"])

    def body(*i: Expr) -> Expr:
        # Written as a bound that is at most i, see `either`: without an element of its own, or
        # beyond it, the sum from the end has those that a sum from the start has not.
        bound = k.var + 1 if bool(c.attrs["exclusive"]) != reverse else k.var
        values = data[_at(i, axis, k.var)], const(neutral, data.dtype)
        choice = either if last else select
        return choice(bound <= i[axis], *(values[::-1] if reverse else values))

    return c.stage(body, reduce=[k], reducer=reducer)

"""Sums of products of affine reads as matrix products: how they are evaluated.

The interpreter walks reduce axes one by one in Python. Where the body is a product of reads whose
indices step evenly, each operand becomes a strided view with a dimension for every axis that it
depends on, and one matrix product (with the BLAS behind it) does the rest: a layer of 10^9
multiply-adds takes a second. An axis that indices divide by a constant, as groups of channels do,
is two axes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from retune.core.dtypes import FLOAT64, INT32
from retune.ir.expr import Binary, Cast, Const, Expr, Load, Var, substitute, walk
from retune.ir.simplify import Range, affine, simplify

_LIMIT = 1 << 24
"""Elements that the view of one operand may have: products copy it."""
_BYTES = 8
"""Bits of integers whose products, and sums of fewer than 2**37 of them, float64 holds."""


@dataclass(frozen=True, slots=True)
class _View:
    """An operand with one dimension for each of its axes."""

    axes: tuple[Var, ...]
    array: np.ndarray

    def at(self, axis: Var, index: int) -> "_View":
        """The view with one axis settled."""
        if axis not in self.axes:
            return self
        rest = tuple(a for a in self.axes if a != axis)
        return _View(rest, np.moveaxis(self.array, self.axes.index(axis), 0)[index])

    def summed(self, axis: Var) -> "_View":
        """The view without an axis that it has, over which it is added up."""
        if axis not in self.axes:
            return self
        rest = tuple(a for a in self.axes if a != axis)
        return _View(rest, self.array.sum(axis=self.axes.index(axis), dtype=self.array.dtype))

    def matrix(
        self, batch: Sequence[Var], rows: Sequence[Var], columns: Sequence[Var]
    ) -> np.ndarray:
        """[batch, rows, columns], the elements in the order in which they lie, if possible."""
        strides = dict(zip(self.axes, self.array.strides, strict=True))
        if min((*columns, *rows), key=strides.__getitem__, default=None) in rows:
            return self.matrix(batch, columns, rows).swapaxes(1, 2)
        groups = (batch, rows, columns)
        order = [self.axes.index(axis) for group in groups for axis in group]
        moved, extents = self.array.transpose(order), iter(self.array.transpose(order).shape)
        return moved.reshape([prod(next(extents) for _ in group) for group in groups])


def contract(
    body: Expr, out: Mapping[Var, int], reduce: Mapping[Var, int], arrays: Mapping[str, np.ndarray]
) -> np.ndarray | None:
    """The sum of `body` over the `reduce` axes at each point of the `out` axes, in their order.

    Axes are given with their extents: the result has those of `out` as its shape. None if the body
    is not a product of floats, or of bytes as int32, read at even steps inside their arrays, in
    which every axis of more than one element occurs.
    """
    shape, (body, out) = tuple(out.values()), _apart(body, out)
    views: list[_View] = []
    scale = 1.0
    for factor in _factors(body):
        if isinstance(factor, Const):
            scale *= float(factor.value)
            continue
        view = _view(factor, {**out, **reduce}, arrays)
        if view is None:
            return None
        views.append(view)
    out, over = (
        {axis: extent for axis, extent in axes.items() if extent != 1} for axes in (out, reduce)
    )
    if {axis for view in views for axis in view.axes} != {*out, *over}:
        return None
    sums = _summed(views, list(out), out).reshape(shape)
    if body.dtype == INT32:
        return (sums * scale).astype(np.int64).astype(np.int32)
    return sums * sums.dtype.type(scale)


def _apart(body: Expr, out: Mapping[Var, int]) -> tuple[Expr, Mapping[Var, int]]:
    """The body and its output axes, where an axis that indices divide evenly is two axes."""
    divisors: dict[Var, set[int]] = {}
    for node in walk(body):
        match node:
            case Binary("floordiv" | "mod", Var() as axis, Const(value)):
                divisors.setdefault(axis, set()).add(int(value))
            case _:
                pass
    whole: dict[Var, Expr] = {}
    made: dict[Var, int] = {}
    for axis, extent in out.items():
        divisor = max(divisors.get(axis, (1,)))
        if extent % divisor or len(divisors.get(axis, ())) != 1:
            made[axis] = extent
            continue
        outer, inner = Var(f"{axis.name}.outer"), Var(f"{axis.name}.inner")
        made |= {outer: extent // divisor, inner: divisor}
        whole[axis] = outer * divisor + inner
    if not whole:
        return body, out
    ranges = {axis: Range(0, extent - 1) for axis, extent in made.items()}
    return simplify(substitute(body, whole), ranges), made


def _factors(expr: Expr) -> Iterator[Expr]:
    if isinstance(expr, Binary) and expr.op == "mul":
        yield from _factors(expr.a)
        yield from _factors(expr.b)
    else:
        yield expr


def _view(
    factor: Expr, extents: Mapping[Var, int], arrays: Mapping[str, np.ndarray]
) -> _View | None:
    load = factor.value if isinstance(factor, Cast) else factor
    if not isinstance(load, Load):
        return None
    array = arrays[load.buffer.name]
    if isinstance(factor, Cast):
        exact = load.dtype.is_integer and load.dtype.bits <= _BYTES and factor.dtype is INT32
        working = FLOAT64 if exact else None
    else:
        working = load.dtype if load.dtype.is_float else None
    if working is None:
        return None
    array = array.astype(working.numpy, copy=False)
    steps: dict[Var, int] = {}
    start: list[slice] = []
    for index, extent, stride in zip(load.indices, array.shape, array.strides, strict=True):
        form = affine(index, extents)
        if form is None or not isinstance(form[1], Const):
            return None
        first = least = most = int(form[1].value)
        for axis, coefficient in form[0].items():
            if not isinstance(coefficient, Const):
                return None
            step = int(coefficient.value)
            reach = step * (extents[axis] - 1)
            least, most = least + min(reach, 0), most + max(reach, 0)
            if extents[axis] > 1:
                steps[axis] = steps.get(axis, 0) + step * stride
        if least < 0 or most >= extent:
            return None
        start.append(slice(first, None))
    shape = [extents[axis] for axis in steps]
    view = as_strided(array[tuple(start)], shape, list(steps.values()), writeable=False)
    return _View(tuple(steps), view)


def _summed(views: Sequence[_View], out: list[Var], extents: Mapping[Var, int]) -> np.ndarray:
    """The contraction, in slices along the longest output axis where an operand is large."""
    if out and max(prod(view.array.shape) for view in views) > _LIMIT:
        longest = max(out, key=lambda axis: extents[axis])
        rest = [axis for axis in out if axis != longest]
        if extents[longest] > 1:
            slices = [
                _summed([view.at(longest, i) for view in views], rest, extents)
                for i in range(extents[longest])
            ]
            return np.stack(slices, axis=out.index(longest))
    if len(views) == 2:
        return _product(views[0], views[1], out)
    if len(views) == 1:  # in pairs, which is more exact than one after the other
        (view,) = views
        order = [*out, *(axis for axis in view.axes if axis not in out)]
        moved = view.array.transpose([view.axes.index(axis) for axis in order])
        return moved.sum(axis=tuple(range(len(out), len(order))), dtype=moved.dtype)
    number = {axis: i for i, axis in enumerate(dict.fromkeys(a for v in views for a in v.axes))}
    operands = [part for v in views for part in (v.array, [number[axis] for axis in v.axes])]
    return np.einsum(*operands, [number[axis] for axis in out], optimize=True)


def _product(left: _View, right: _View, out: Sequence[Var]) -> np.ndarray:
    """The contraction of two operands, by one matrix product for each point of common axes."""
    for axis in {*left.axes} ^ {*right.axes}:
        if axis not in out:
            left, right = left.summed(axis), right.summed(axis)
    common = [axis for axis in left.axes if axis in right.axes]
    batch = [axis for axis in out if axis in common]
    first = next((axis for axis in out if axis not in batch), None)
    if (
        first is not None and first in right.axes
    ):  # so that the result lies in the order of the output
        left, right = right, left
    rows = [axis for axis in out if axis in left.axes and axis not in batch]
    columns = [axis for axis in out if axis in right.axes and axis not in batch]
    depth = [axis for axis in common if axis not in batch]
    made = np.matmul(left.matrix(batch, rows, depth), right.matrix(batch, depth, columns))
    order = [*batch, *rows, *columns]
    extents = dict(
        zip((*left.axes, *right.axes), (*left.array.shape, *right.array.shape), strict=True)
    )
    whole = made.reshape([extents[axis] for axis in order])
    return whole.transpose([order.index(axis) for axis in out])

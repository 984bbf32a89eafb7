"""Sums of products of affine reads as one numpy contraction: how a matrix product is evaluated.

The interpreter walks reduce axes one by one in Python. Where the body is a product of reads whose
indices step evenly, each operand becomes a strided view with a dimension for every axis that it
depends on, and one einsum (with the BLAS behind it) does the rest: a layer of 10^9 multiply-adds
takes a second.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from retune.core.dtypes import FLOAT32, FLOAT64
from retune.ir.expr import Binary, Const, Expr, Load, Var
from retune.ir.simplify import affine

_LIMIT = 1 << 24
"""Elements that the view of one operand may have: einsum may copy it."""


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


def contract(
    body: Expr, out: Mapping[Var, int], reduce: Mapping[Var, int], arrays: Mapping[str, np.ndarray]
) -> np.ndarray | None:
    """The sum of `body` over the `reduce` axes at each point of the `out` axes, in their order.

    Axes are given with their extents: the result has those of `out` as its shape, and the arrays'
    type. None if the body is no product of floats read at even steps
    inside their arrays, in which every axis occurs.
    """
    factors = list(_factors(body))
    views: list[_View] = []
    scale = 1.0
    for factor in factors:
        if isinstance(factor, Const):
            scale *= float(factor.value)
            continue
        view = _view(factor, {**out, **reduce}, arrays) if isinstance(factor, Load) else None
        if view is None:
            return None
        views.append(view)
    if {axis for view in views for axis in view.axes} != {*out, *reduce}:
        return None
    return _einsum(views, list(out), out) * views[0].array.dtype.type(scale)


def _factors(expr: Expr) -> Iterator[Expr]:
    if isinstance(expr, Binary) and expr.op == "mul":
        yield from _factors(expr.a)
        yield from _factors(expr.b)
    else:
        yield expr


def _view(load: Load, extents: Mapping[Var, int], arrays: Mapping[str, np.ndarray]) -> _View | None:
    array = arrays[load.buffer.name]
    if array.dtype not in (FLOAT32, FLOAT64):
        return None
    steps: dict[Var, int] = {}
    start: list[slice] = []
    for index, extent, stride in zip(load.indices, array.shape, array.strides, strict=True):
        form = affine(index, extents)
        if form is None or not isinstance(form[1], Const):
            return None
        first = last = int(form[1].value)
        for axis, coefficient in form[0].items():
            if not isinstance(coefficient, Const) or coefficient.value < 0:
                return None
            last += int(coefficient.value) * (extents[axis] - 1)
            steps[axis] = steps.get(axis, 0) + int(coefficient.value) * stride
        if first < 0 or last >= extent:
            return None
        start.append(slice(first, None))
    shape = [extents[axis] for axis in steps]
    view = as_strided(array[tuple(start)], shape, list(steps.values()), writeable=False)
    return _View(tuple(steps), view)


def _einsum(views: Sequence[_View], out: list[Var], extents: Mapping[Var, int]) -> np.ndarray:
    """The contraction, in slices along the longest output axis where an operand is large."""
    if out and max(prod(view.array.shape) for view in views) > _LIMIT:
        longest = max(out, key=lambda axis: extents[axis])
        rest = [axis for axis in out if axis != longest]
        if extents[longest] > 1:
            slices = [
                _einsum([view.at(longest, i) for view in views], rest, extents)
                for i in range(extents[longest])
            ]
            return np.stack(slices, axis=out.index(longest))
    number = {axis: i for i, axis in enumerate(dict.fromkeys(a for v in views for a in v.axes))}
    operands = [part for v in views for part in (v.array, [number[axis] for axis in v.axes])]
    return np.einsum(*operands, [number[axis] for axis in out], optimize=True)

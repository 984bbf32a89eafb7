"""Sums of products of affine reads as matrix products: how they are evaluated.

The interpreter walks reduce axes one by one in Python. Where the body is a product of reads whose
indices step evenly, each operand becomes a strided view with a dimension for every axis that it
depends on, and one matrix product (with the BLAS behind it) does the rest: a layer of 10^9
multiply-adds takes a second. An axis that indices divide by a constant, as groups of channels do,
is two axes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from retune.core.dtypes import FLOAT64, INT32
from retune.ir.expr import Binary, Cast, Const, Expr, Load, Var, substitute, walk
from retune.ir.simplify import Range, affine, simplify

_LIMIT = 1 << 24
"""Elements that the view of one operand may have: products copy it."""
_BYTES = 8
"""Bits of integers whose products, and sums of fewer than 2**37 of them, float64 holds."""


Sums = Callable[[Mapping[str, np.ndarray]], np.ndarray]
"""From arrays by name to the sums."""


def contraction(
    body: Expr,
    out: Mapping[Var, int],
    reduce: Mapping[Var, int],
    shapes: Mapping[str, tuple[int, ...]],
) -> Sums | None:
    """A function that sums `body` over the `reduce` axes at each point of the `out` axes, in order.

    Axes are given with their extents: the result has those of `out` as its shape. `shapes` are
    those of the arrays by name. None if the body is not a product of floats, or of bytes as int32,
    read at even steps inside their arrays, in which every axis of more than one element occurs.
    """
    shape, (body, out) = tuple(out.values()), _apart(body, out)
    operands: list[_Operand] = []
    scale = 1.0
    for factor in _factors(body):
        if isinstance(factor, Const):
            scale *= float(factor.value)
            continue
        operand = _operand(factor, {**out, **reduce}, shapes)
        if operand is None:
            return None
        operands.append(operand)
    out, over = (
        {axis: extent for axis, extent in axes.items() if extent != 1} for axes in (out, reduce)
    )
    if {axis for operand in operands for axis in operand.axes} != {*out, *over}:
        return None
    sums, integers = _sums(operands, list(out), out), body.dtype == INT32

    def run(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        found = sums(arrays)
        if found.shape != shape:
            found = found.reshape(shape)
        if integers:
            return (found * scale).astype(np.int64).astype(np.int32)
        return found if scale == 1.0 else found * found.dtype.type(scale)

    return run


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


@dataclass(frozen=True, slots=True)
class _Operand:
    """A view of an array with one dimension for each axis of more than one element."""

    axes: tuple[Var, ...]
    shape: tuple[int, ...]
    array: Sums
    """The view of arrays by name."""

    def without(self, axis: Var, change: Callable[[np.ndarray, int], np.ndarray]) -> "_Operand":
        """The operand, of which `change` takes away the dimension of an axis, if it has that."""
        if axis not in self.axes:
            return self
        dimension, array = self.axes.index(axis), self.array
        rest = (*self.axes[:dimension], *self.axes[dimension + 1 :])
        shape = (*self.shape[:dimension], *self.shape[dimension + 1 :])
        return _Operand(rest, shape, lambda arrays: change(array(arrays), dimension))

    def at(self, axis: Var, index: int) -> "_Operand":
        """The operand with one axis settled."""
        return self.without(axis, lambda array, dimension: np.moveaxis(array, dimension, 0)[index])

    def summed(self, axis: Var) -> "_Operand":
        """The operand without an axis, over which it is added up."""
        return self.without(
            axis, lambda array, dimension: array.sum(axis=dimension, dtype=array.dtype)
        )


def _operand(
    factor: Expr, extents: Mapping[Var, int], shapes: Mapping[str, tuple[int, ...]]
) -> _Operand | None:
    load = factor.value if isinstance(factor, Cast) else factor
    if not isinstance(load, Load):
        return None
    if isinstance(factor, Cast):
        exact = load.dtype.is_integer and load.dtype.bits <= _BYTES and factor.dtype is INT32
        working = FLOAT64 if exact else None
    else:
        working = load.dtype if load.dtype.is_float else None
    if working is None:
        return None
    steps: dict[Var, dict[int, int]] = {}
    starts: list[int] = []
    shape = shapes[load.buffer.name]
    for dim, (index, extent) in enumerate(zip(load.indices, shape, strict=True)):
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
                steps.setdefault(axis, {})[dim] = step
        if least < 0 or most >= extent:
            return None
        starts.append(first)
    own = tuple(extents[axis] for axis in steps)
    moves = [[*move.items()] for move in steps.values()]
    view = _reader(load.buffer.name, working.numpy, moves, own, starts, shape)
    return _Operand(tuple(steps), own, view)


def _reader(
    name: str,
    working: np.dtype[Any],
    moves: Sequence[Sequence[tuple[int, int]]],
    extents: tuple[int, ...],
    starts: Sequence[int],
    shape: Sequence[int],
) -> Sums:
    """Views of an array in the working type: each axis moves along some of its dimensions."""
    index, order = _slices(moves, extents, starts, shape)
    start = tuple(slice(first, None) for first in starts)

    def read(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        array = arrays[name]
        if array.dtype is not working:
            array = array.astype(working, copy=False)
        if index is not None:
            found = array[index] if index else array
            return found.transpose(order) if order else found
        strides = [sum(step * array.strides[dim] for dim, step in move) for move in moves]
        return as_strided(array[start], extents, strides, writeable=False)

    return read


def _slices(
    moves: Sequence[Sequence[tuple[int, int]]],
    extents: Sequence[int],
    starts: Sequence[int],
    shape: Sequence[int],
) -> tuple[tuple[int | slice, ...] | None, tuple[int, ...]]:
    """What reads the array if its dimensions and the axes go together one by one, empty for all of
    it; and what sorts that into the order of the axes, empty if it is."""
    dims = [move[0][0] for move in moves]
    if any(len(move) > 1 for move in moves) or len(set(dims)) < len(dims):
        return None, ()
    index: list[int | slice] = list(starts)
    for ((dim, step),), extent in zip(moves, extents, strict=True):
        end = starts[dim] + step * extent
        index[dim] = slice(starts[dim], end if end >= 0 else None, step)
    order = tuple(sorted(dims).index(dim) for dim in dims)
    whole = index == [slice(0, extent, 1) for extent in shape]
    return () if whole else tuple(index), () if order == tuple(range(len(order))) else order


def _sums(operands: Sequence[_Operand], out: list[Var], extents: Mapping[Var, int]) -> Sums:
    """The contraction of the operands, whose axes are known but for the arrays."""
    if out and max(prod(operand.shape) for operand in operands) > _LIMIT:
        return _sliced(operands, out, extents)
    if len(operands) == 2:
        return _matrices(operands[0], operands[1], out, extents)
    if len(operands) == 1:  # in pairs, which is more exact than one after the other
        (operand,) = operands
        order = [*out, *(axis for axis in operand.axes if axis not in out)]
        perm = [operand.axes.index(axis) for axis in order]
        over = tuple(range(len(out), len(order)))
        moved = perm != sorted(perm)

        def run(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
            view = operand.array(arrays)
            return np.add.reduce(view.transpose(perm) if moved else view, axis=over)

        return run
    number = {axis: i for i, axis in enumerate(dict.fromkeys(a for o in operands for a in o.axes))}
    named = [(o.array, [number[axis] for axis in o.axes]) for o in operands]
    made = [number[axis] for axis in out]

    def product(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        parts = [part for array, own in named for part in (array(arrays), own)]
        return np.einsum(*parts, made, optimize=True)

    return product


def _sliced(operands: Sequence[_Operand], out: list[Var], extents: Mapping[Var, int]) -> Sums:
    """The contraction in slices along the longest output axis, as an operand is large."""
    longest = max(out, key=lambda axis: extents[axis])
    rest = [axis for axis in out if axis != longest]

    def run(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        views = [o.array(arrays) for o in operands]
        held = [
            _Operand(o.axes, o.shape, lambda _, view=view: view)
            for o, view in zip(operands, views, strict=True)
        ]
        slices = [
            _sums([operand.at(longest, i) for operand in held], rest, extents)(arrays)
            for i in range(extents[longest])
        ]
        return np.stack(slices, axis=out.index(longest))

    return run


def _matrices(
    left: _Operand, right: _Operand, out: Sequence[Var], extents: Mapping[Var, int]
) -> Sums:
    """The contraction of two operands: one matrix product for each point of common axes."""
    for axis in {*left.axes} ^ {*right.axes}:
        if axis not in out:
            left, right = left.summed(axis), right.summed(axis)
    batch, rows, columns, depth, swapped = _groups(left.axes, right.axes, out)
    if swapped:
        left, right = right, left
    first, second = _matrix(left, batch, rows, depth), _matrix(right, batch, depth, columns)
    order = [*batch, *rows, *columns]
    shape = tuple(extents[axis] for axis in order)
    turn = [order.index(axis) for axis in out]
    moved = turn != sorted(turn)

    def run(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        made = np.matmul(first(arrays), second(arrays))
        if made.shape != shape:
            made = made.reshape(shape)
        return made.transpose(turn) if moved else made

    return run


def _matrix(
    operand: _Operand, batch: Sequence[Var], rows: Sequence[Var], columns: Sequence[Var]
) -> Sums:
    """[batch, rows, columns], the elements in the order in which they lie, if possible.

    Without an empty batch.
    """
    dimension = {axis: position for position, axis in enumerate(operand.axes)}

    def lying(*groups: Sequence[Var]) -> tuple[list[int] | None, tuple[int, ...]]:
        order = [dimension[axis] for group in groups for axis in group]
        sizes = [prod(operand.shape[dimension[axis]] for axis in group) for group in groups]
        shape = tuple(sizes if batch else sizes[1:])
        return (None if order == sorted(order) else order), shape

    straight, turned = lying(batch, rows, columns), lying(batch, columns, rows)
    inner, upright = (
        [dimension[axis] for axis in (*columns, *rows)],
        {dimension[axis] for axis in rows},
    )

    def run(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        array = operand.array(arrays)
        turn = bool(upright) and min(inner, key=array.strides.__getitem__) in upright
        order, shape = turned if turn else straight
        if order is not None:
            array = array.transpose(order)
        if array.shape != shape:
            array = array.reshape(shape)
        return array.swapaxes(-1, -2) if turn else array

    return run


def _groups(
    left: Sequence[Var], right: Sequence[Var], out: Sequence[Var]
) -> tuple[list[Var], list[Var], list[Var], list[Var], bool]:
    """Batch, rows, columns and depth of a product, and whether its operands are swapped.

    They do where the result then lies in the order of the output.
    """
    common = [axis for axis in left if axis in right]
    batch = [axis for axis in out if axis in common]
    first = next((axis for axis in out if axis not in batch), None)
    swapped = first is not None and first in right
    if swapped:
        left, right = right, left
    rows = [axis for axis in out if axis in left and axis not in batch]
    columns = [axis for axis in out if axis in right and axis not in batch]
    return batch, rows, columns, [axis for axis in common if axis not in batch], swapped

"""Compiles tensor expressions to numpy calls, so that evaluating one again analyses nothing.

Read `Plan`. Each stage becomes a closure over the arrays by name. Whatever depends on no array is
evaluated once, as `ir.evaluate` does: indices become slices and strides of their arrays, a
selection by position becomes a write to a box of the output, a sum of products a matrix product.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from retune.ir.contract import contraction
from retune.ir.evaluate import Value, apply, evaluate
from retune.ir.expr import (
    BITCAST,
    EITHER,
    Binary,
    Call,
    Cast,
    Expr,
    Load,
    Select,
    Var,
    loads,
    walk,
)
from retune.ir.functions import FUNCTIONS
from retune.ir.memory import ArrayMemory, Arrays, EvenRead
from retune.ir.operators import OPERATORS
from retune.ir.stmt import identity
from retune.ir.te import Axis, Compute, Concat, Dag, Tensor

Step = Callable[[Arrays], Any]
"""The value of an expression for the arrays by name."""
Env = dict[Var, Value]

COMBINE: Mapping[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "bitand": np.bitwise_and,
}
"""Reducer -> what combines two values."""
GRID_LIMIT = 1 << 22
"""Points that one array operation may cover; larger grids run their outer axes in Python."""
_FEW_POINTS = 64
"""So many points of reduction are taken one by one: each is one operation on the whole output."""
_SMALL_STAGE = 1 << 12
"""Outputs of so few elements take no time: all points of reduction are one operation."""
_KEPT = 1 << 12
"""Elements of an array of indices or conditions that a plan keeps; it makes larger ones anew."""


class Plan:
    """A DAG as numpy calls: the arrays of placeholders in, those of placeholders and stages out."""

    def __init__(self, dag: Dag) -> None:
        self._shapes = [(t.name, t.shape) for t in dag.placeholders]
        self._steps = [(stage.name, _stage(stage)) for stage in dag.stages]
        self._result = dag.outputs[0].name if dag.outputs else ""

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Every placeholder's and stage's value by name, each in its own shape and type.

        Raises: KeyError for a placeholder without a value, ValueError for one of another shape.
        """
        values: Arrays = {}
        for name, shape in self._shapes:
            array = values[name] = np.asarray(inputs[name])
            if array.shape != shape:
                raise ValueError(f"{name}: expected shape {shape}, got {array.shape}")
        return self._run(values)

    def first(self, arrays: Sequence[np.ndarray], names: Sequence[str]) -> np.ndarray:
        """The first output for placeholders of these names, whose arrays have their shapes."""
        values = dict(zip(names, arrays, strict=True))
        if len(self._steps) == 1 and _QUIET.get():
            return self._steps[0][1](values)
        return self._run(values)[self._result]

    def _run(self, values: Arrays) -> Arrays:
        if not _QUIET.get():
            with quiet():  # both sides of a selection are evaluated
                return self._run(values)
        for name, step in self._steps:
            values[name] = step(values)
        return values


_QUIET = ContextVar("quiet", default=False)


def is_quiet() -> bool:
    """True inside of `quiet`."""
    return _QUIET.get()


@contextmanager
def quiet() -> Generator[None]:
    """Ignores numpy's floating-point errors, once for all the plans that run inside."""
    token = _QUIET.set(True)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        _QUIET.reset(token)


def _stage(stage: Tensor) -> Step:
    match stage.op:
        case Concat() as op:
            names, dim = [t.name for t in op.inputs], op.dim
            return lambda arrays: np.concatenate([arrays[name] for name in names], axis=dim)
        case Compute() as op:
            return _map(stage, op) if op.reducer is None else _reduction(stage, op)
        case None:
            return lambda arrays: arrays[stage.name]


def _map(stage: Tensor, op: Compute) -> Step:
    part, shape, dtype = _compiled(op.body, _grid(op.axes)), stage.shape, stage.dtype.numpy
    step, fresh = part.step, part.fresh

    def run(arrays: Arrays) -> np.ndarray:
        found = step(arrays)
        result = np.asarray(found, dtype)
        made = fresh or result is not found
        if made and result.shape == shape and result.flags.c_contiguous:
            return result
        return np.array(np.broadcast_to(result, shape), order="C")

    return run


def _reduction(stage: Tensor, op: Compute) -> Step:
    assert op.reducer is not None
    dtype, wide, shape = stage.dtype.numpy, stage.dtype.compute.numpy, stage.shape
    extents = {a.var: a.extent for a in op.reduce_axes}
    few = prod(extents.values()) <= _FEW_POINTS and prod(shape) > _SMALL_STAGE
    if op.reducer == "sum" and not (few and _element_by_element(op)):
        shapes = {tensor.name: tensor.shape for tensor in op.inputs}
        sums = contraction(op.body, {a.var: a.extent for a in op.axes}, extents, shapes)
        if sums is not None:

            def summed(arrays: Arrays) -> np.ndarray:
                found = sums(arrays)
                return found if found.dtype is dtype else np.asarray(found).astype(dtype)

            return summed
    inner = list(() if few else op.reduce_axes)
    while prod(shape) * prod(a.extent for a in inner) > GRID_LIMIT and inner:
        inner.pop(0)
    outer = op.reduce_axes[: len(op.reduce_axes) - len(inner)]
    whole = (*shape, *(a.extent for a in inner))
    grid, over = _grid((*op.axes, *inner)), tuple(range(len(op.axes), len(whole)))
    start, combine = identity(op.reducer, stage.dtype).value, COMBINE[op.reducer]

    def parts() -> Iterator[Step]:
        for point in product(*(range(a.extent) for a in outer)):
            fixed = dict(zip((a.var for a in outer), point, strict=True))
            yield _compiled(op.body, {**grid, **fixed}).step

    kept = list(parts()) if prod(a.extent for a in outer) <= _FEW_POINTS else None

    def run(arrays: Arrays) -> np.ndarray:
        out = np.full(shape, start, wide)
        for step in parts() if kept is None else kept:
            found = np.asarray(step(arrays), wide)
            if over:
                found = combine.reduce(np.broadcast_to(found, whole), axis=over, initial=start)
            combine(out, found, out=out)
        return out.astype(dtype, copy=False)

    return run


def _element_by_element(op: Compute) -> bool:
    """True if an operand has an element for each one of the output: no matrix product then."""
    axes = {axis.var for axis in op.axes if axis.extent > 1}
    return any(axes <= {node for i in load.indices for node in walk(i)} for load in loads(op.body))


def _grid(axes: Sequence[Axis]) -> Env:
    """The indices of each axis, along a dimension of its own."""
    sides = np.ix_(*(np.arange(axis.extent) for axis in axes)) if axes else ()
    return {axis.var: side for axis, side in zip(axes, sides, strict=True)}


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A compiled expression: what computes it, and the shape of what comes out."""

    step: Step
    shape: tuple[int, ...]
    fresh: bool = False
    """Whether each call makes a new array, which may be overwritten."""


def _compiled(expr: Expr, env: Env) -> _Compiled:
    """The expression over the grid of `env`: the value is that of `evaluate`."""
    if not loads(expr):
        return _constant(expr, env)
    match expr:
        case Binary(op, a, b):
            return _binary(OPERATORS[op].numpy, expr, _compiled(a, env), _compiled(b, env))
        case Select():
            return _select(expr, env)
        case Cast(value, dtype):
            part, kind = _compiled(value, env), dtype.numpy
            step = part.step
            return _Compiled(lambda arrays: np.asarray(step(arrays)).astype(kind), part.shape, True)
        case Call(function, args, _) if function == EITHER:
            return _select(Select(*args), env)
        case Call():
            return _call(expr, [_compiled(a, env) for a in expr.args])
        case Load():
            return _load(expr, env)
        case _:
            raise TypeError(f"evaluate: unexpected {type(expr).__name__}")


def _constant(expr: Expr, env: Env) -> _Compiled:
    value = evaluate(expr, env)
    if np.size(value) > _KEPT:
        return _Compiled(lambda _: evaluate(expr, env), np.shape(value))
    return _Compiled(lambda _: value, np.shape(value))


def _binary(function: Callable[..., Any], expr: Binary, a: _Compiled, b: _Compiled) -> _Compiled:
    left, right, shape = a.step, b.step, np.broadcast_shapes(a.shape, b.shape)
    reused = [part.fresh and part.shape == shape != () for part in (a, b)]
    if not expr.dtype.is_float or not any(reused) or not isinstance(function, np.ufunc):
        return _Compiled(lambda arrays: function(left(arrays), right(arrays)), shape, True)
    first = reused[0]

    def run(arrays: Arrays) -> Any:
        x, y = left(arrays), right(arrays)
        out = x if first else y
        if x.dtype is y.dtype and out.shape == shape:
            return function(x, y, out=out)
        return function(x, y)

    return _Compiled(run, shape, True)


def _call(expr: Call, parts: Sequence[_Compiled]) -> _Compiled:
    shape = np.broadcast_shapes(*(part.shape for part in parts))
    steps = [part.step for part in parts]
    if expr.function == BITCAST:
        (step,), source, dtype = steps, expr.args[0].dtype, expr.dtype
        return _Compiled(lambda arrays: np.array(step(arrays), source).view(dtype), shape, True)
    entry = FUNCTIONS[expr.function]
    plain = len(steps) == 1 and not (entry.predicate or entry.attributes)
    if plain and isinstance(entry.numpy, np.ufunc) and expr.dtype.is_float:
        function: Callable[..., Any] = entry.numpy
        (step,), reused = steps, parts[0].fresh and shape != ()

        def run(arrays: Arrays) -> Any:
            x = step(arrays)
            return function(x, out=x) if reused and isinstance(x, np.ndarray) else function(x)

        return _Compiled(run, shape, True)
    return _Compiled(lambda arrays: apply(entry, *(np.asarray(s(arrays)) for s in steps)), shape)


def _select(expr: Select, env: Env) -> _Compiled:
    if loads(expr.condition):
        return _choice(_compiled(expr.condition, env), expr, env)
    test = np.asarray(evaluate(expr.condition, env))
    if not test.ndim:
        return _compiled(expr.then if test else expr.otherwise, env)
    box = _box(test)
    if box is None:
        return _choice(_constant(expr.condition, env), expr, env)
    inside = {var: _cut(side, box) for var, side in env.items()}
    then, otherwise = _compiled(expr.then, inside), _compiled(expr.otherwise, env)
    grown = [1] * (test.ndim - len(then.shape)) + list(then.shape)
    grown = [n if m == 1 else m for n, m in zip(grown, test.shape, strict=True)]
    shape = np.broadcast_shapes(test.shape, grown, otherwise.shape)
    chosen, other, all_of_it = then.step, otherwise.step, bool(test.all())

    def run(arrays: Arrays) -> np.ndarray:
        x, y = np.asarray(chosen(arrays)), np.asarray(other(arrays))
        out = np.empty(shape, np.result_type(x.dtype, y.dtype))
        if not all_of_it:
            out[...] = y
        out[box] = x
        return out

    return _Compiled(run, shape, True)


def _choice(test: _Compiled, expr: Select, env: Env) -> _Compiled:
    """The selection by a condition that differs from call to call, or has no simple shape."""
    then, otherwise = _compiled(expr.then, env), _compiled(expr.otherwise, env)
    condition, chosen, other = test.step, then.step, otherwise.step
    shape = np.broadcast_shapes(test.shape, then.shape, otherwise.shape)

    def run(arrays: Arrays) -> Any:
        holds = np.asarray(condition(arrays))
        if not holds.ndim:
            return chosen(arrays) if holds else other(arrays)
        return np.where(holds, np.asarray(chosen(arrays)), np.asarray(other(arrays)))

    return _Compiled(run, shape, bool(test.shape))


def _box(test: np.ndarray) -> tuple[slice, ...] | None:
    """The box of the grid in which the condition holds; None if it is empty, or no single box."""
    box: list[slice] = []
    for d in range(test.ndim):
        others = tuple(e for e in range(test.ndim) if e != d)
        found = np.flatnonzero(test.any(axis=others))
        if not found.size:
            return None
        whole = test.shape[d] == 1
        box.append(slice(None) if whole else slice(int(found[0]), int(found[-1]) + 1))
    return tuple(box) if test[tuple(box)].all() else None


def _cut(side: Value, box: tuple[slice, ...]) -> Value:
    """The part of an axis inside the box."""
    if not isinstance(side, np.ndarray) or not side.ndim:
        return side
    return side[tuple(s if n > 1 else slice(None) for s, n in zip(box, side.shape, strict=True))]


def _load(load: Load, env: Env) -> _Compiled:
    name, stored = load.buffer.name, load.buffer.dtype is not load.dtype
    if any(loads(index) for index in load.indices):
        indices = [_compiled(index, env) for index in load.indices]
        steps, shape = [i.step for i in indices], np.broadcast_shapes(*(i.shape for i in indices))
        part = _Compiled(
            lambda arrays: ArrayMemory(arrays).fetch(load, tuple(s(arrays) for s in steps)), shape
        )
    else:
        part = _read(name, load, env)
    if not stored:
        return part
    step, kind = part.step, load.dtype.numpy
    return _Compiled(lambda arrays: np.asarray(step(arrays)).astype(kind), part.shape, True)


def _read(name: str, load: Load, env: Env) -> _Compiled:
    """Reads at indices that no array decides: a view, where they step evenly."""
    extents = [int(e.value) for e in load.buffer.shape]  # pyrefly: ignore[missing-attribute]  constants
    clipped = [
        np.clip(np.asarray(evaluate(index, env)), 0, max(0, n - 1))
        for index, n in zip(load.indices, extents, strict=True)
    ]
    shape = np.broadcast_shapes(*(index.shape for index in clipped))
    view = (
        _view(name, clipped, extents, shape) if min((i.size for i in clipped), default=1) else None
    )
    if view is not None:
        return view
    if sum(index.size for index in clipped) <= _KEPT:
        at = tuple(clipped)
        return _Compiled(lambda arrays: arrays[name][at], shape)
    return _Compiled(
        lambda arrays: ArrayMemory(arrays).fetch(
            load, tuple(evaluate(i, env) for i in load.indices)
        ),
        shape,
    )


def _view(
    name: str, indices: Sequence[np.ndarray], extents: Sequence[int], shape: tuple[int, ...]
) -> _Compiled | None:
    """`array[indices]` by slices and strides; an index that steps unevenly along one dimension of
    the grid is read in advance. None if one does along several."""
    read = EvenRead.of(indices)
    if read is None:
        return None
    takes, moves = dict(read.takes), [{d: n for d, n in move.items() if n} for move in read.moves]
    used = [d for move in moves for d in move]
    for axis, (move, extent) in enumerate(zip(moves, extents, strict=True)):
        d = axis - len(extents)
        if not move and extent == 1 and d not in used and d >= -len(shape) and shape[d] == 1:
            move[d] = 1  # keeps the dimension, so that the view has the shape of the output
    taken = [len(takes[axis]) if axis in takes else n for axis, n in enumerate(extents)]

    def source(arrays: Arrays) -> np.ndarray:
        return read.taken(arrays[name])

    used = [d for move in moves for d in move]
    if len({*used}) == len(used) and all(len(move) <= 1 for move in moves):
        made = _sliced(source, read.starts, moves, taken, shape)
        if made is not None:
            return made
    return _Compiled(lambda arrays: read.view(source(arrays), shape), shape)


def _sliced(
    source: Step,
    starts: Sequence[int],
    moves: Sequence[dict[int, int]],
    extents: Sequence[int],
    shape: tuple[int, ...],
) -> _Compiled | None:
    """The read by slices: each index follows one dimension of the grid at most, and it alone."""
    at: list[int | slice] = []
    order: list[int] = []
    for start, move in zip(starts, moves, strict=True):
        if not move:
            at.append(start)
            continue
        ((d, step),) = move.items()
        end = start + step * shape[d]
        at.append(slice(start, end if end >= 0 else None, step))
        order.append(d)
    own = sorted(order)
    kept = [1] * len(shape)
    for d in own:
        kept[d] = shape[d]
    perm = None if order == own else tuple(order.index(d) for d in own)
    first = own[0] if own else 0
    spread = tuple(slice(None) if d in own else None for d in range(first, 0))
    expand = spread if None in spread else None
    whole = len(at) == len(order) and all(
        isinstance(s, slice) and (s.start, s.stop, s.step) == (0, n, 1)
        for s, n in zip(at, extents, strict=True)
    )
    index = None if whole else tuple(at) if own else (*at, ...)
    if index is None and perm is None and expand is None:
        return _Compiled(source, tuple(kept[first:]) if own else ())

    def run(arrays: Arrays) -> np.ndarray:
        array = source(arrays)
        if index is not None:
            array = array[index]
        if perm is not None:
            array = array.transpose(perm)
        return array if expand is None else array[expand]

    return _Compiled(run, tuple(kept[first:]) if own else ())

"""Numpy interpreter for tensor expressions and loop programs: the oracle of every other test.

A tensor expression is evaluated stage by stage over whole index grids: a sum of products as one
contraction, reads at even steps as views of their arrays. A loop program runs as written: perfect
nests over one statement are evaluated as one array operation (scatter, or an unbuffered reduction),
everything else loop by loop, so that order, guards, overlapping tail tiles and scratch buffers mean
what they will mean on a device.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import product
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from retune.core.errors import VerifyError
from retune.ir.contract import contract
from retune.ir.evaluate import Value, evaluate, evaluate_int
from retune.ir.expr import Buffer, Expr, Load, Var, loads, walk
from retune.ir.reduction import decompose_all
from retune.ir.stmt import Barrier, Block, For, Program, Seq, Stmt, identity
from retune.ir.te import Axis, Compute, Concat, Dag, Tensor

Arrays = dict[str, np.ndarray]

COMBINE: Mapping[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}
"""Reducer -> what combines two values."""
_GRID_LIMIT = 1 << 22
"""Points that one array operation may cover; larger grids run their outer axes in Python."""
_FEW_POINTS = 64
"""So many points of reduction are taken one by one: each is one operation on the whole output."""
_SMALL_STAGE = 1 << 12
"""Outputs of so few elements take no time: all points of reduction are one operation."""


def run_dag(dag: Dag, inputs: Mapping[str, np.ndarray]) -> Arrays:
    """Every placeholder's and stage's value by name, each in its own shape and type, by numpy.

    Raises: KeyError for a placeholder without a value, ValueError for one of another shape.
    """
    values: Arrays = {t.name: np.asarray(inputs[t.name]) for t in dag.placeholders}
    for tensor in dag.placeholders:
        if values[tensor.name].shape != tensor.shape:
            raise ValueError(
                f"{tensor.name}: expected shape {tensor.shape}, got {values[tensor.name].shape}"
            )
    with np.errstate(all="ignore"):  # both sides of a selection are evaluated
        for stage in dag.stages:
            values[stage.name] = _run_stage(stage, values)
    return values


def _run_stage(stage: Tensor, values: Arrays) -> np.ndarray:
    match stage.op:
        case Concat() as op:
            return np.concatenate([values[t.name] for t in op.inputs], axis=op.dim)
        case Compute() as op:
            return _run_compute(stage, op, values)
        case None:
            return values[stage.name]


def _run_compute(stage: Tensor, op: Compute, values: Arrays) -> np.ndarray:
    memory = _Memory(values, tuple(axis.var for axis in op.axes), stage.shape)
    dtype, wide = stage.dtype.numpy, stage.dtype.compute.numpy
    if op.reducer is None:
        result = np.asarray(evaluate(op.body, _grid(op.axes), memory.fetch), dtype)
        if result.shape == stage.shape and result.flags.owndata and result.flags.c_contiguous:
            return result
        return np.array(np.broadcast_to(result, stage.shape), order="C")
    extents = {a.var: a.extent for a in op.reduce_axes}
    few = prod(extents.values()) <= _FEW_POINTS and prod(stage.shape) > _SMALL_STAGE
    if op.reducer == "sum" and not (few and _element_by_element(op)):
        sums = contract(op.body, {a.var: a.extent for a in op.axes}, extents, values)
        if sums is not None:
            return np.asarray(sums).astype(dtype, copy=False)
    inner = list(() if few else op.reduce_axes)
    while prod(stage.shape) * prod(a.extent for a in inner) > _GRID_LIMIT and inner:
        inner.pop(0)
    outer = op.reduce_axes[: len(op.reduce_axes) - len(inner)]
    shape = (*stage.shape, *(a.extent for a in inner))
    env, over = _grid((*op.axes, *inner)), tuple(range(len(op.axes), len(shape)))
    out = np.full(stage.shape, identity(op.reducer, stage.dtype).value, wide)
    combine = COMBINE[op.reducer]
    for point in product(*(range(a.extent) for a in outer)):
        env |= dict(zip((a.var for a in outer), point, strict=True))
        found = np.broadcast_to(np.asarray(evaluate(op.body, env, memory.fetch), wide), shape)
        combine(out, combine.reduce(found, axis=over) if over else found, out=out)
    return out.astype(dtype, copy=False)


def _element_by_element(op: Compute) -> bool:
    """True if an operand has an element for each one of the output: no matrix product then."""
    axes = {axis.var for axis in op.axes if axis.extent > 1}
    return any(axes <= {node for i in load.indices for node in walk(i)} for load in loads(op.body))


def _grid(axes: Sequence[Axis]) -> dict[Var, Value]:
    """The indices of each axis, along a dimension of its own."""
    sides = np.ix_(*(np.arange(axis.extent) for axis in axes)) if axes else ()
    return {axis.var: side for axis, side in zip(axes, sides, strict=True)}


class _Memory:
    """Reads from named arrays; indices out of range read the nearest element.

    Only the branch not taken of a selection may do that; `ir.verify` looks for other reads.
    """

    def __init__(
        self, arrays: Arrays, axes: Sequence[Expr] = (), shape: Sequence[int] = ()
    ) -> None:
        """`axes` run over a grid of that shape, other variables over dimensions behind it."""
        self.arrays = arrays
        self._axes = tuple(axes)
        self._shape = tuple(shape)

    def fetch(self, load: Load, indices: tuple[Value, ...]) -> Value:
        array = self.arrays[load.buffer.name]
        if load.indices == self._axes and array.shape == self._shape:
            more = np.ndim(indices[0]) - array.ndim if indices else 0
            return array.reshape(array.shape + (1,) * more)
        clipped = [
            np.clip(np.asarray(i), 0, max(0, n - 1))
            for i, n in zip(indices, array.shape, strict=True)
        ]
        found = _strided(array, clipped) if min((i.size for i in clipped), default=1) else None
        return array[tuple(clipped)] if found is None else found


def _strided(array: np.ndarray, indices: Sequence[np.ndarray]) -> np.ndarray | None:
    """`array[indices]` as a view, where each index is a sum of even steps over the grid.

    An index that steps unevenly along one dimension of the grid is read in advance.
    """
    shape = np.broadcast_shapes(*(index.shape for index in indices))
    starts: list[slice] = []
    moves: list[dict[int, int]] = []
    for axis, index in enumerate(indices):
        steps = _steps(index)
        if steps is None and max(index.shape) < index.size:
            return None
        if steps is None:
            array = np.take(array, index.reshape(-1), axis)
            steps = {d - index.ndim: 1 for d, extent in enumerate(index.shape) if extent > 1}
            starts.append(slice(0, None))
        else:
            starts.append(slice(int(index.flat[0]), None))
        moves.append(steps)
    strides = [0] * len(shape)
    for move, stride in zip(moves, array.strides, strict=True):
        for d, step in move.items():
            strides[d] += step * stride
    return as_strided(array[tuple(starts)], shape, strides, writeable=False)


def _steps(index: np.ndarray) -> dict[int, int] | None:
    """How far the index goes along each dimension of its grid, counted from the last; None if the
    steps differ."""
    first = expected = index[(0,) * index.ndim]
    steps: dict[int, int] = {}
    for d, extent in enumerate(index.shape):
        if extent > 1:
            step = index[tuple(int(e == d) for e in range(index.ndim))] - first
            steps[d - index.ndim] = int(step)
            sides = [-1 if e == d else 1 for e in range(index.ndim)]
            expected = expected + step * np.arange(extent).reshape(sides)
    return steps if np.array_equal(np.broadcast_to(expected, index.shape), index) else None


def run_program(
    program: Program, inputs: Mapping[str, np.ndarray], apart: Collection[Var] = ()
) -> Arrays:
    """The outputs of a loop program of integer extents, by name, in their buffers' shapes.

    Loops over the variables `apart` run one by one, so that of a selection which they decide only
    the chosen side is evaluated.

    Scratch buffers start as NaN (or the type's largest value), so reading one before it is
    written shows in the result. Raises: KeyError for an input without a value.
    """
    arrays: Arrays = {b.name: np.asarray(inputs[b.name]) for b in program.inputs}
    for buffer in (*program.outputs, *program.scratch):
        arrays[buffer.name] = poisoned(buffer)
    Interpreter(arrays, apart).run(decompose_all(program).body, {})
    return {b.name: arrays[b.name] for b in program.outputs}


def poisoned(buffer: Buffer) -> np.ndarray:
    """An array for the buffer that shows where it is read before it is written."""
    shape = tuple(evaluate_int(e) for e in buffer.shape)
    dtype = buffer.dtype
    poison = np.nan if dtype.is_float else (dtype.is_integer and dtype.limits[1])
    return np.full(shape, poison, dtype.numpy)


class Interpreter:
    """Executes statements over named arrays, one after the other."""

    def __init__(self, arrays: Arrays, apart: Collection[Var] = ()) -> None:
        self.arrays = arrays
        self.memory = _Memory(arrays)
        self.apart = apart

    def run(self, stmt: Stmt, env: dict[Var, Value]) -> None:
        match stmt:
            case Seq(stmts):
                for child in stmts:
                    self.run(child, env)
            case Block():
                self.store(stmt, env, [])
            case Barrier():
                pass  # one thing after the other
            case For():
                loops, block = perfect_nest(stmt)
                if block is not None:
                    self.run_nest(loops, block, env)
                    return
                for i in range(evaluate_int(stmt.extent, env)):
                    self.run(stmt.body, {**env, stmt.var: i})

    def run_nest(self, loops: list[For], block: Block, env: dict[Var, Value]) -> None:
        loops = sorted(loops, key=lambda loop: loop.var not in self.apart)
        extents = [evaluate_int(loop.extent, env) for loop in loops]
        outer = sum(loop.var in self.apart for loop in loops)
        while outer < len(loops) and int(np.prod(extents[outer:])) > _GRID_LIMIT:
            outer += 1
        for point in product(*(range(e) for e in extents[:outer])):
            inner = dict(env) | {loop.var: i for loop, i in zip(loops[:outer], point, strict=True)}
            self.store(block, inner, list(zip(loops[outer:], extents[outer:], strict=True)))

    def store(self, block: Block, env: dict[Var, Value], grid: list[tuple[For, int]]) -> None:
        env = dict(env)
        for position, (loop, extent) in enumerate(grid):
            shape = [1] * len(grid)
            shape[position] = extent
            env[loop.var] = np.arange(extent).reshape(shape)
        full = tuple(extent for _, extent in grid)
        array = self.arrays[block.buffer.name]
        indices = [self._grid(i, env, full) for i in block.indices]
        value = self._grid(block.value, env, full).astype(array.dtype)
        if not indices:
            array, indices = array.reshape(1), [np.zeros(full, np.int64)]
        if block.guard is not None:
            keep = self._grid(block.guard, env, full)
            indices = [i[keep] for i in indices]
            value = value[keep]
        for index, extent in zip(indices, array.shape, strict=True):
            if index.size and (index.min() < 0 or index.max() >= extent):
                raise VerifyError(f"{block.name}: stores outside {block.buffer.name}{array.shape}")
        if block.reducer is None:
            array[tuple(indices)] = value
        else:
            COMBINE[block.reducer].at(array, tuple(indices), value)

    def _grid(self, expr: Expr, env: dict[Var, Value], full: tuple[int, ...]) -> np.ndarray:
        return np.broadcast_to(np.asarray(evaluate(expr, env, self.memory.fetch)), full)


def perfect_nest(loop: For) -> tuple[list[For], Block | None]:
    """The loops down to a single block, or no block where the nest is not perfect."""
    loops = [loop]
    body = loop.body
    while isinstance(body, For):
        loops.append(body)
        body = body.body
    return loops, body if isinstance(body, Block) else None

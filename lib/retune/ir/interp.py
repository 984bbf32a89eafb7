"""Numpy interpreter for tensor expressions and loop programs: the oracle of every other test.

A tensor expression is evaluated stage by stage over whole index grids, a sum of products as one
contraction. A loop program runs as written: perfect nests over one statement are evaluated as one
array operation (scatter, or an unbuffered reduction), everything else loop by loop, so that order,
guards, overlapping tail tiles and scratch buffers mean what they will mean on a device.
"""

from collections.abc import Collection, Mapping
from itertools import product

import numpy as np

from retune.core.errors import VerifyError
from retune.ir.contract import contract
from retune.ir.evaluate import Value, evaluate, evaluate_int
from retune.ir.expr import Buffer, Expr, Load, Var
from retune.ir.reduction import decompose_all
from retune.ir.stmt import Barrier, Block, For, Program, Seq, Stmt, identity
from retune.ir.te import Compute, Concat, Dag, Tensor

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
    fetch = _Memory(values).fetch
    rank, dtype = len(op.axes), stage.dtype.compute.numpy
    env: dict[Var, Value] = {}
    for position, axis in enumerate(op.axes):
        shape = [1] * rank
        shape[position] = axis.extent
        env[axis.var] = np.arange(axis.extent).reshape(shape)
    if op.reducer is None:
        result = evaluate(op.body, env, fetch)
        return np.array(np.broadcast_to(np.asarray(result, stage.dtype.numpy), stage.shape))
    if op.reducer == "sum":
        out_axes = {a.var: a.extent for a in op.axes}
        sums = contract(op.body, out_axes, {a.var: a.extent for a in op.reduce_axes}, values)
        if sums is not None:
            return np.asarray(sums, dtype).astype(stage.dtype.numpy, copy=False)
    out = np.full(stage.shape, identity(op.reducer, stage.dtype).value, dtype)
    for point in product(*(range(a.extent) for a in op.reduce_axes)):
        env |= dict(zip((a.var for a in op.reduce_axes), point, strict=True))
        COMBINE[op.reducer](out, np.asarray(evaluate(op.body, env, fetch), dtype), out=out)
    return out.astype(stage.dtype.numpy, copy=False)


class _Memory:
    """Reads from named arrays; indices out of range read the nearest element.

    Only the branch not taken of a selection may do that; `ir.verify` looks for other reads.
    """

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays

    def fetch(self, load: Load, indices: tuple[Value, ...]) -> Value:
        array = self.arrays[load.buffer.name]
        clipped = tuple(
            np.clip(np.asarray(i), 0, max(0, n - 1))
            for i, n in zip(indices, array.shape, strict=True)
        )
        return array[clipped]


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
    Runner(arrays, apart).run(decompose_all(program).body, {})
    return {b.name: arrays[b.name] for b in program.outputs}


def poisoned(buffer: Buffer) -> np.ndarray:
    """An array for the buffer that shows where it is read before it is written."""
    shape = tuple(evaluate_int(e) for e in buffer.shape)
    dtype = buffer.dtype
    poison = np.nan if dtype.is_float else (dtype.is_integer and dtype.limits[1])
    return np.full(shape, poison, dtype.numpy)


class Runner:
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

"""Numpy interpreter for tensor expressions and loop programs: the oracle of every other test.

A tensor expression is evaluated stage by stage as whole-array operations, see `ir.plan`: a sum of
products as one contraction, reads at even steps as views. A loop program runs as written: perfect
nests over one statement are evaluated as one array operation (scatter, or an unbuffered reduction),
everything else loop by loop, so that order, guards, overlapping tail tiles and scratch buffers mean
what they will mean on a device.
"""

from collections.abc import Collection, Mapping
from itertools import product

import numpy as np

from retune.core.dims import SizeValues
from retune.core.errors import VerifyError
from retune.ir.evaluate import Evaluation, Value, evaluate_int
from retune.ir.expr import Buffer, Var
from retune.ir.memory import ArrayMemory, Arrays
from retune.ir.plan import COMBINE, GRID_LIMIT, Plan
from retune.ir.reduction import decompose, decompose_all
from retune.ir.stmt import Barrier, Block, For, Program, Seq, Stmt, with_body
from retune.ir.te import Dag, at_sizes


def run_dag(dag: Dag, inputs: Mapping[str, np.ndarray], sizes: SizeValues | None = None) -> Arrays:
    """Every placeholder's and stage's value by name, each in its own shape and type, by numpy.

    Raises: KeyError for a placeholder or a size without a value, ValueError for one of another
    shape.
    """
    return Plan(at_sizes(dag, sizes) if sizes else dag)(inputs)


def run_program(
    program: Program,
    inputs: Mapping[str, np.ndarray],
    apart: Collection[Var] = (),
) -> Arrays:
    """The outputs of a loop program, by name, in their buffers' shapes.

    Loops over the variables `apart` run one by one, so that of a selection which they decide only
    the chosen side is evaluated.

    Scratch buffers start as NaN (or the type's largest value), so reading one before it is
    written shows in the result. Raises: KeyError for an input without a value.
    """
    arrays: Arrays = {b.name: np.asarray(inputs[b.name]) for b in program.inputs}
    for buffer in (*program.outputs, *program.scratch):
        arrays[buffer.name] = poisoned(buffer)
    roots = with_body(program, Seq(tuple(map(_at_once, program.body.stmts))))
    Interpreter(arrays, apart).run(decompose_all(roots).body, {})
    return {b.name: arrays[b.name] for b in program.outputs}


def _at_once(root: Stmt) -> Stmt:
    """The root, whose sums all begin before any of them where each has its own element: the nest
    that adds is one array operation then. Each sum is made in the same order."""
    loops, block = perfect_nest(root) if isinstance(root, For) else ([], None)
    if block is None or block.reducer is None or block.decomposed or block.guard is not None:
        return root
    own = [loop for loop in loops if not loop.reduce]
    plain = {*block.indices} == {loop.var for loop in own} and len(block.indices) == len(own)
    moved = any(loop.shifted for loop in own)
    return decompose(loops[0], block) if plain and not moved else root


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
        self.memory = ArrayMemory(arrays)
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
        while outer < len(loops) and int(np.prod(extents[outer:])) > GRID_LIMIT:
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
        evaluation = Evaluation(env, self.memory.fetch)
        indices = [np.asarray(evaluation(i)) for i in block.indices]
        value = _over(np.asarray(evaluation(block.value)), full).astype(array.dtype)
        if not indices:
            array, indices = array.reshape(1), [np.zeros(full, np.int64)]
        indices[0] = _over(indices[0], full)  # the others broadcast to it
        if block.guard is not None:
            keep = _over(np.asarray(evaluation(block.guard)), full)
            indices = [_over(i, full)[keep] for i in indices]
            value = value[keep]
        for index, extent in zip(indices, array.shape, strict=True):
            if index.size and (index.min() < 0 or index.max() >= extent):
                raise VerifyError(f"{block.name}: stores outside {block.buffer.name}{array.shape}")
        if block.reducer is None:
            array[tuple(indices)] = value
        else:
            COMBINE[block.reducer].at(array, tuple(indices), value)


def _over(value: np.ndarray, grid: tuple[int, ...]) -> np.ndarray:
    """The value at each point of the grid."""
    return value if value.shape == grid else np.broadcast_to(value, grid)


def perfect_nest(loop: For) -> tuple[list[For], Block | None]:
    """The loops down to a single block, or no block where the nest is not perfect."""
    loops = [loop]
    body = loop.body
    while isinstance(body, For):
        loops.append(body)
        body = body.body
    return loops, body if isinstance(body, Block) else None

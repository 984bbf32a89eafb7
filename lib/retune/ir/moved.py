"""Stages that only move elements keep the type that memory has them in.

What reads a small float has its compute type, and so has what a stage makes of it: a border around
a map of bfloat16 would be stored in float32, twice as large, and no instruction on pairs of
bfloat16 could read it. Read `moved_as_stored`.
"""

from collections.abc import Mapping

import numpy as np

from retune.core.dtypes import DType
from retune.ir.expr import Buffer, Const, Expr, Load, Select, redirect
from retune.ir.te import Compute, Dag, Tensor, remade, stored


def moved_as_stored(dag: Dag) -> Dag:
    """An equal DAG whose stages between others store what they only move as it is stored.

    Rewrite, for x of bfloat16:
        pad(i) = x[i - 1] if i >= 1 else 0    float32    ->    the same    bfloat16
    """
    if not any(tensor.dtype.is_small_float for tensor in dag.placeholders):
        return dag
    if any(not isinstance(stage.op, Compute) for stage in dag.stages):
        return dag
    return remade(dag, lambda tensor, made: _made(tensor, made, dag))


def _made(tensor: Tensor, made: Mapping[Buffer, Tensor], dag: Dag) -> Tensor:
    op = tensor.op
    if not isinstance(op, Compute):
        return tensor

    def read(load: Load) -> Expr | None:
        return Load(made[load.buffer].buffer, load.indices)

    inputs = tuple(made[t.buffer] for t in op.inputs)
    body = redirect(op.body, read)
    again = Tensor(tensor.buffer, Compute(op.axes, op.reduce_axes, body, op.reducer, inputs))
    kinds = {t.dtype for t in inputs}
    if tensor in dag.outputs or op.reducer is not None or len(kinds) != 1:
        return again
    (dtype,) = kinds
    return stored(again, dtype) if dtype.is_small_float and _moves(body, dtype) else again


def _moves(value: Expr, dtype: DType) -> bool:
    """Whether a value is an element of that type, or a number that it has."""
    match value:
        case Load():
            return True
        case Const(number):
            return float(np.asarray(number).astype(dtype.numpy)) == number
        case Select(_, then, otherwise):
            return _moves(then, dtype) and _moves(otherwise, dtype)
        case _:
            return False

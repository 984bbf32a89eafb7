"""What is stored as float16 is read as float32, by whoever computes with it.

A cast of a whole input would be a copy of twice its size. Read `widened_as_read`.
"""

from collections.abc import Mapping
from dataclasses import replace

from retune.core.dtypes import FLOAT16
from retune.ir.expr import Buffer, Cast, Expr, Load, cast, redirect
from retune.ir.te import Compute, Concat, Dag, Tensor, remade


def widened_as_read(dag: Dag) -> Dag:
    """An equal DAG in which no stage only casts a placeholder of float16; its readers do.

    Rewrite:
        v(i, j) = float32(x(i, j))
        y(i) += v(i, k) * w(k)                ->    y(i) += float32(x(i, k)) * w(k)

    Outputs stay.
    """
    joined = [t for s in dag.stages if isinstance(s.op, Concat) for t in s.op.inputs]
    casts = {
        stage.buffer: source
        for stage in dag.stages
        if stage not in (*dag.outputs, *joined) and (source := _widened(stage)) is not None
    }
    if not casts:
        return dag
    return remade(dag, lambda tensor, made: _reading(tensor, casts, made))


def _widened(stage: Tensor) -> Tensor | None:
    """The placeholder of float16 that the stage casts, element by element; or None."""
    match stage.op:
        case Compute(axes=axes, body=Cast(Load() as read), reducer=None, inputs=(source,)):
            whole = read.indices == tuple(axis.var for axis in axes)
            return source if whole and source.op is None and source.dtype == FLOAT16 else None
        case _:
            return None


def _reading(
    tensor: Tensor, casts: Mapping[Buffer, Tensor], made: Mapping[Buffer, Tensor]
) -> Tensor:
    if tensor.buffer in casts:
        return casts[tensor.buffer]
    if tensor.op is None:
        return tensor
    inputs = tuple(made[t.buffer] for t in tensor.op.inputs)
    if isinstance(tensor.op, Concat):
        return Tensor(tensor.buffer, replace(tensor.op, inputs=inputs))

    def read(load: Load) -> Expr | None:
        source = casts.get(load.buffer)
        return cast(Load(source.buffer, load.indices), load.dtype) if source else None

    body = redirect(tensor.op.body, read)
    return Tensor(tensor.buffer, replace(tensor.op, body=body, inputs=inputs))

"""Stages are made in the order of axes in which they are read.

A transpose behind a reduction moves every result once more; a reduction that has its axes in the
order of the transpose stores them there at once. Read `made_as_read`.
"""

from collections.abc import Mapping

from retune.ir.expr import Buffer, Expr, Load, loads, redirect
from retune.ir.te import Compute, Dag, Tensor, remade


def made_as_read(dag: Dag) -> Dag:
    """An equal DAG in which no stage only puts axes of another stage in a new order.

    Rewrite:
        y(h, i, j) += f(h, i, j)        ->    y(i, h, j) += f(h, i, j)
        z(i, h, j) = y(h, i, j)               z(i, h, j) = y(i, h, j)

    Outputs, placeholders and what several stages read stay as they are, and so do all stages where
    there is arithmetic but no reduction: that goes along what it reads.
    """
    ops = [stage.op for stage in dag.stages if isinstance(stage.op, Compute)]
    orders = _orders(dag)
    if not orders or len(ops) < len(dag.stages):
        return dag
    if not all(isinstance(op.body, Load) for op in ops) and all(op.reducer is None for op in ops):
        return dag
    return remade(dag, lambda tensor, made: _ordered(tensor, orders, made))


def _orders(dag: Dag) -> dict[Buffer, tuple[int, ...]]:
    """The new order of dimensions, for each stage that is made in another order."""
    found: dict[Buffer, tuple[int, ...]] = {}
    for stage in reversed(dag.stages):
        if not isinstance(stage.op, Compute) or stage.op.reducer is not None:
            continue
        axes = [axis.var for axis in stage.op.axes]
        axes = [axes[d] for d in found.get(stage.buffer, range(len(axes)))]
        for source in stage.op.inputs:
            reads = {x.indices for x in loads(stage.op.body) if x.buffer == source.buffer}
            if len(reads) != 1 or not _is_free(dag, source):
                continue
            (indices,) = reads
            if set(indices) == set(axes) and len(indices) == len(axes) and list(indices) != axes:
                found[source.buffer] = tuple(indices.index(axis) for axis in axes)
    return found


def _is_free(dag: Dag, tensor: Tensor) -> bool:
    """Whether one stage alone reads what this one makes."""
    users = [s for s in dag.stages if s.op is not None and tensor in s.op.inputs]
    return isinstance(tensor.op, Compute) and tensor not in dag.outputs and len(users) == 1


def _ordered(
    tensor: Tensor, orders: Mapping[Buffer, tuple[int, ...]], made: Mapping[Buffer, Tensor]
) -> Tensor:
    if not isinstance(tensor.op, Compute):
        return tensor
    op, old = tensor.op, tensor.buffer
    order = orders.get(old, tuple(range(len(old.shape))))
    buffer = Buffer(old.name, tuple(old.shape[d] for d in order), old.dtype, old.scope)

    def read(load: Load) -> Expr | None:
        if load.buffer not in orders:
            return None
        dimensions = orders[load.buffer]
        return Load(made[load.buffer].buffer, tuple(load.indices[d] for d in dimensions))

    axes = tuple(op.axes[d] for d in order)
    inputs = tuple(made[t.buffer] for t in op.inputs)
    return Tensor(
        buffer, Compute(axes, op.reduce_axes, redirect(op.body, read), op.reducer, inputs)
    )

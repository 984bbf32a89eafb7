"""Axes that are read in whole patches become two axes: the patches, and the positions in one.

A layer whose window is as wide as its stride reads each element once, as a product of matrices
does: with its patches as an axis of their own it is one, and its window is a part of the sum.
Row-major memory does not care. Read `split_patches`.
"""

from collections.abc import Mapping

from retune.core.dims import example
from retune.ir.expr import Buffer, Expr, Load, Var, as_expr, const, loads, redirect, variables
from retune.ir.simplify import affine
from retune.ir.te import Compute, Dag, Tensor, remade

Parts = tuple[int, int]
"""Patches along a dimension, and positions in each of them."""

_LONG_ROW = 16
"""Elements side by side, a cache line of float32, from which on a row is a sum worth a loop of its
own: 96 channels of 2x2 patches take 1.00 of the time on PoCL when they are split (in turns), where
3 channels of 4x4 and 16x16 patches take 0.95 and 0.91."""


def split_patches(dag: Dag) -> Dag:
    """An equal DAG in which products read patches of short rows by axes of their own.

    Rewrite, for x of 28 elements:
        y(i) += x[i*4 + k]*w[k]    ->    y(i) += x[i, k]*w[k]    x of 7 x 4 elements

    Arrays for the new DAG are the old ones reshaped; element order is the same.
    """
    parts = {tensor.buffer: _patches(tensor, dag) for tensor in dag.placeholders}
    if not any(parts.values()) or any(not isinstance(s.op, Compute) for s in dag.stages):
        return dag
    return remade(dag, lambda tensor, made: _rebuilt(tensor, parts, made))


def _patches(tensor: Tensor, dag: Dag) -> dict[int, Parts]:
    """The dimensions of a placeholder that one product alone reads, all of it in patches."""
    users = [s for s in dag.stages if s.op is not None and tensor in s.op.inputs]
    if not tensor.shape or example(tensor.shape[-1]) >= _LONG_ROW:
        return {}
    if len(users) != 1 or not isinstance(users[0].op, Compute) or not _contracts(users[0].op):
        return {}
    op = users[0].op
    reads = [load for load in loads(op.body) if load.buffer == tensor.buffer]
    found: dict[int, Parts] = {}
    for dim, extent in enumerate(tensor.shape):
        forms = {_patch(load.indices[dim], op) for load in reads}
        form = forms.pop()
        if form is not None and not forms and form[0] * form[1] == extent:
            found[dim] = form
    return found


def _contracts(op: Compute) -> bool:
    """Whether it sums products in which some factor is shared by all columns."""
    columns = op.axes[-1].var if op.axes else None
    moved = [any(columns in variables(i) for i in load.indices) for load in loads(op.body)]
    return op.reducer == "sum" and len(moved) > 1 and not all(moved)


def _patch(index: Expr, op: Compute) -> Parts | None:
    """The extents of i and k in the index i*extent(k) + k of a result's axis and a reduce axis."""
    results = {axis.var: axis.extent for axis in op.axes}
    steps = {axis.var: axis.extent for axis in op.reduce_axes}
    form = affine(index, {*results, *steps})
    if form is None or form[1] != const(0) or len(form[0]) != 2:
        return None
    outer = [v for v in form[0] if v in results]
    inner = [v for v in form[0] if v in steps]
    if len(outer) != 1 or form[0][inner[0]] != const(1):
        return None
    size = steps[inner[0]]
    return (results[outer[0]], size) if form[0][outer[0]] == as_expr(size) else None


def _axes(index: Expr, op: Compute) -> tuple[Var, Var]:
    """i and k of the index i*extent(k) + k."""
    steps = {axis.var for axis in op.reduce_axes}
    outer, inner = sorted(variables(index), key=lambda v: v in steps)
    return outer, inner


def _rebuilt(
    tensor: Tensor, parts: Mapping[Buffer, Mapping[int, Parts]], made: Mapping[Buffer, Tensor]
) -> Tensor:
    own = parts.get(tensor.buffer, {})
    shape = [n for dim, extent in enumerate(tensor.shape) for n in own.get(dim, (extent,))]
    old = tensor.buffer
    buffer = Buffer(old.name, tuple(as_expr(n) for n in shape), old.dtype, old.scope)
    if not isinstance(tensor.op, Compute):
        return Tensor(buffer)
    op: Compute = tensor.op

    def read(load: Load) -> Expr | None:
        split = parts.get(load.buffer)
        if not split:
            return None
        indices = [
            part
            for dim, index in enumerate(load.indices)
            for part in (_axes(index, op) if dim in split else (index,))
        ]
        return Load(made[load.buffer].buffer, tuple(indices))

    inputs = tuple(made[t.buffer] for t in op.inputs)
    body = redirect(op.body, read)
    return Tensor(buffer, Compute(op.axes, op.reduce_axes, body, op.reducer, inputs))

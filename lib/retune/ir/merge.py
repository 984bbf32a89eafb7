"""Adjacent axes that are always walked together become one.

Row-major memory does not care where a row ends: a point-wise convolution over 7 x 7 pixels is a
product over 49 rows, and an element-wise chain is one long loop. Merging needs no copy; only the
shapes in the tensor expression change, never the buffers' contents.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from retune.core.dims import most
from retune.ir.expr import Buffer, Expr, Load, Var, as_expr, loads, redirect, substitute, variables
from retune.ir.te import Axis, Compute, Dag, Tensor, remade

Seam = tuple[Buffer, int]
"""The boundary between dimensions d and d + 1 of a buffer."""


def merge_axes(dag: Dag, *, rows: Collection[Buffer] = (), batches: Collection[Buffer] = ()) -> Dag:
    """An equal DAG in which every seam that no stage needs is gone, placeholders' seams too.

    Arrays for the new DAG are the old ones reshaped; element order is the same. `rows` keep their
    last axis: something else may lie between their rows. `batches` keep their first one, so that
    channels may lie apart for each.
    """
    if any(not isinstance(s.op, Compute) for s in dag.stages):
        return dag
    kept = {(buffer, len(buffer.shape) - 2) for buffer in rows}
    seams = _mergeable(dag, kept | {(buffer, 0) for buffer in batches})
    if not any(seams):
        return dag
    return remade(dag, lambda tensor, made: _merged(tensor, seams, made))


def _mergeable(dag: Dag, kept: set[Seam]) -> set[Seam]:
    """The largest set of seams, but for these, that every stage can do without together."""
    tensors = (*dag.placeholders, *dag.stages)
    seams = {(t.buffer, d) for t in tensors for d in range(len(t.buffer.shape) - 1)} - kept
    while True:
        bad = {seam for stage in dag.stages for seam in _conflicts(stage, seams)}
        if not bad:
            return seams
        seams -= bad


def _conflicts(stage: Tensor, seams: set[Seam]) -> Iterable[Seam]:
    """Seams that this stage cannot lose, given that only `seams` may be lost."""
    assert isinstance(stage.op, Compute)
    op = stage.op
    axes = [a.var for a in op.axes]
    extents = {a.var: a.extent for a in (*op.axes, *op.reduce_axes)}
    reads = loads(op.body)
    outside = _outside_loads(op.body)
    for d in range(len(axes) - 1):
        seam = (stage.buffer, d)
        if seam in seams and not _together((axes[d], axes[d + 1]), extents, reads, outside, seams):
            yield seam
    lost = {(axes[d], axes[d + 1]) for d in range(len(axes) - 1) if (stage.buffer, d) in seams}
    reduce = [a.var for a in op.reduce_axes]
    for pair in pairwise(reduce):
        if _together(pair, extents, reads, outside, seams) and _used(pair, reads):
            lost.add(pair)
    for load in reads:
        for d in range(len(load.indices) - 1):
            seam = (load.buffer, d)
            if seam in seams and tuple(load.indices[d : d + 2]) not in lost:
                yield seam


def _together(
    pair: tuple[Var, Var],
    extents: Mapping[Var, int],
    reads: Sequence[Load],
    outside: set[Var],
    seams: set[Seam],
) -> bool:
    """True when the two variables occur only side by side, over whole rows that may be joined."""
    if not outside.isdisjoint(pair):
        return False
    row = as_expr(extents[pair[1]])
    for load in reads:
        pairs = [
            d
            for d in range(len(load.indices) - 1)
            if tuple(load.indices[d : d + 2]) == pair
            and (load.buffer, d) in seams
            and load.buffer.shape[d + 1] == row
        ]
        held = {d for p in pairs for d in (p, p + 1)}
        rest = [i for d, i in enumerate(load.indices) if d not in held]
        if any(v in pair for i in rest for v in variables(i)):
            return False
    return True


def _used(pair: tuple[Var, Var], reads: Sequence[Load]) -> bool:
    return any(pair[0] in variables(i) for load in reads for i in load.indices)


def _outside_loads(expr: Expr) -> set[Var]:
    """Variables that the value uses other than in an index."""
    if isinstance(expr, Load):
        return set()
    if isinstance(expr, Var):
        return {expr}
    return {v for child in expr.children for v in _outside_loads(child)}


@dataclass(frozen=True, slots=True)
class _Groups:
    """Runs of dimensions that become one each."""

    runs: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(buffer: Buffer, seams: set[Seam]) -> "_Groups":
        runs: list[list[int]] = []
        for d in range(len(buffer.shape)):
            if runs and (buffer, d - 1) in seams:
                runs[-1].append(d)
            else:
                runs.append([d])
        return _Groups(tuple(tuple(r) for r in runs))


def _merged(tensor: Tensor, seams: set[Seam], made: Mapping[Buffer, Tensor]) -> Tensor:
    groups = _Groups.of(tensor.buffer, seams)
    shape = tuple(as_expr(prod(tensor.shape[d] for d in run)) for run in groups.runs)
    buffer = Buffer(tensor.buffer.name, shape, tensor.dtype, tensor.buffer.scope)
    if tensor.op is None:
        return Tensor(buffer)
    assert isinstance(tensor.op, Compute)
    op = tensor.op
    axes = tuple(_join([op.axes[d] for d in run]) for run in groups.runs)
    reduce_axes, renamed = _merge_reduce(op, seams)
    renamed |= {op.axes[run[0]].var: axis.var for run, axis in zip(groups.runs, axes, strict=True)}

    def read(load: Load) -> Expr | None:
        if load.buffer not in made:
            return None
        runs = _Groups.of(load.buffer, seams).runs
        return Load(made[load.buffer].buffer, tuple(load.indices[run[0]] for run in runs))

    body = substitute(redirect(op.body, read), dict(renamed))
    inputs = tuple(made[t.buffer] for t in op.inputs)
    return Tensor(buffer, Compute(axes, reduce_axes, body, op.reducer, inputs))


def _join(axes: list[Axis]) -> Axis:
    real = [a for a in axes if most(a.extent) > 1] or axes[:1]
    name = "_".join(a.var.name for a in real)
    return Axis(Var(name), prod(a.extent for a in axes))


def _merge_reduce(op: Compute, seams: set[Seam]) -> tuple[tuple[Axis, ...], dict[Var, Expr]]:
    """Reduce axes joined where the reads lost the seam between them."""
    lost = {
        tuple(load.indices[d : d + 2])
        for load in loads(op.body)
        for d in range(len(load.indices) - 1)
        if (load.buffer, d) in seams
    }
    runs: list[list[Axis]] = []
    for axis in op.reduce_axes:
        if runs and (runs[-1][-1].var, axis.var) in lost:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    joined = tuple(_join(run) for run in runs)
    renamed: dict[Var, Expr] = {
        run[0].var: axis.var for run, axis in zip(runs, joined, strict=True)
    }
    return joined, renamed

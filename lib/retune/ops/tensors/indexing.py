"""Reading and writing where an index says."""

from collections.abc import Callable

from retune.core.dtypes import INT32
from retune.ir.expr import Expr, cast, const, equal, maximum, minimum, select
from retune.ir.te import Reducer, Tensor, compute, reduce_axis
from retune.ops.registry import integer
from retune.ops.tensors.registry import OpCall, tensors_of


@tensors_of("gather_elements")
def gather_elements(c: OpCall) -> Tensor:
    """T_gather_elements(i...) = x[i..., indices[i...], i...]; negative ones from the end."""
    x, indices = c.inputs
    axis = integer(c.attrs, "axis")

    def body(*i: Expr) -> Expr:
        which = cast(indices[i], INT32)
        place = select(which < 0, which + x.shape[axis], which)
        return x[(*i[:axis], place, *i[axis + 1 :])]

    return compute(c.name("T_gather_elements"), c.output.shape, body, [x, indices])


@tensors_of("last_writers")
def last_writers(c: OpCall) -> Tensor:
    """T_last_writers(b, p) = the largest u with positions[b, u] = p, or -1."""
    (positions,) = c.inputs
    u = reduce_axis("u", positions.shape[1])

    def body(b: Expr, p: Expr) -> Expr:
        return select(equal(cast(positions[b, u], INT32), p), u.var, -1)

    return compute(
        c.name("T_last_writers"), c.output.shape, body, [positions], reduce=[u], reducer="max"
    )


_COMBINE: dict[str, tuple[Callable[[Expr, Expr], Expr], Reducer]] = {
    "none": (lambda _, update: update, "max"),
    "add": (lambda a, b: a + b, "sum"),
    "mul": (lambda a, b: a * b, "prod"),
    "max": (maximum, "max"),
    "min": (minimum, "min"),
}
"""Reduction -> how a place and its update combine, and how updates of one place do."""


@tensors_of("write_rows")
def write_rows(c: OpCall) -> Tensor:
    """T_write_rows(b, p, r) = x[b, p, r] with updates[b, writers[b, p], r], where there is one."""
    x, updates, writers = c.inputs
    combine, _ = _COMBINE[str(c.attrs["reduction"])]

    def body(b: Expr, p: Expr, r: Expr) -> Expr:
        old, writer = x[b, p, r], writers[b, p]
        return select(writer < 0, old, combine(old, updates[b, writer, r]))

    return compute(c.name("T_write_rows"), c.output.shape, body, [x, updates, writers])


@tensors_of("fold_rows")
def fold_rows(c: OpCall) -> Tensor:
    """Stages: all updates of a place as one, and that with the place's own row."""
    x, positions, updates = c.inputs
    combine, reducer = _COMBINE[str(c.attrs["reduction"])]
    u = reduce_axis("u", positions.shape[1])

    def step(b: Expr, p: Expr, r: Expr) -> Expr:
        neutral = {"sum": const(0, x.dtype), "prod": const(1, x.dtype)}.get(reducer, x[b, p, r])
        meant = equal(cast(positions[b, u], INT32), p)
        return select(meant, updates[b, u, r], neutral)

    made = compute(
        c.name("T_fold_updates"),
        c.output.shape,
        step,
        c.inputs,
        reduce=[u],
        reducer=reducer,
    )
    return compute(
        c.name("T_fold_rows"),
        c.output.shape,
        lambda b, p, r: combine(x[b, p, r], made[b, p, r]),
        [x, made],
    )

"""Ops that read or write where an index says.

Gathering reads nothing outside of its data, whatever the indices are. Scattering has one form:
`data` [batch, slots, row] gets `updates` [batch, updates, row], each at the slot that `positions`
[batch, updates] names. Positions count from the front; one outside of the axis is left out.
`last_writers` turns positions into the update that each slot gets, which is a constant where the
positions are.
"""

from collections.abc import Callable, Sequence

import numpy as np

from retune.core.dtypes import INT32, INT64, Array, TensorType
from retune.ir.expr import Expr, as_expr, cast, const, equal, maximum, minimum, select
from retune.ir.te import Reducer, Tensor, reduce_axis
from retune.ops import host_numpy
from retune.ops.registry import Attrs, OpCall, integer, op, present
from retune.ops.shapes import require, same_type

INDEX_TYPES = (INT32, INT64)


def slot_of(index: Expr, indices: Tensor, extent: Expr | int) -> Expr:
    """Which element of so many an index says; negative ones count from the end.

    An index that is outside says the nearest element: nothing else in memory is read. Constant
    indices were looked at while importing.
    """
    number = cast(index, INT32)
    slot = select(number < 0, number + extent, number)
    if indices.buffer.scope == "constant":
        return slot
    return maximum(minimum(slot, as_expr(extent) - 1), 0)


def _infer_elements(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, indices, axis = present(types), present(types, 1), integer(attrs, "axis")
    fits = len(data.shape) == len(indices.shape) and all(
        d == axis or wanted <= extent
        for d, (wanted, extent) in enumerate(zip(indices.shape, data.shape, strict=True))
    )
    require(
        fits and indices.dtype in INDEX_TYPES,
        lambda: (
            f"elements of {data} along dimension {axis} by {indices}: expected integer indices, "
            "as many dimensions, and no larger extents but along that one"
        ),
    )
    return (TensorType(indices.shape, data.dtype),)


def _elements(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    data, indices = present(arrays), present(arrays, 1)
    return (host_numpy.gather_elements(data, indices, integer(attrs, "axis")),)


@op("gather_elements", kind="injective", infer=_infer_elements, numpy=_elements)
def gather_elements(c: OpCall) -> Tensor:
    """T_gather_elements(i...) = x[i..., indices[i...], i...]; negative ones from the end."""
    x, indices = c.inputs
    axis = integer(c.attrs, "axis")

    def body(*i: Expr) -> Expr:
        slot = slot_of(indices[i], indices, x.shape[axis])
        return x[(*i[:axis], slot, *i[axis + 1 :])]

    return c.stage(body)


def _infer_writers(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    positions = present(types)
    require(
        len(positions.shape) == 2 and positions.dtype in INDEX_TYPES,
        lambda: f"last_writers: expected integer positions [batch, updates], got {positions}",
    )
    return (TensorType((positions.shape[0], integer(attrs, "places")), INT32),)


def _last_writers(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    positions, slots = present(arrays), integer(attrs, "places")
    batches, updates = np.nonzero((positions >= 0) & (positions < slots))
    writers = np.full((positions.shape[0], slots), -1, np.int32)
    np.maximum.at(writers, (batches, positions[batches, updates]), updates.astype(np.int32))
    return (writers,)


@op("last_writers", kind="reduction", infer=_infer_writers, numpy=_last_writers)
def last_writers(c: OpCall) -> Tensor:
    """T_last_writers(b, p) = the largest u with positions[b, u] = p, or -1."""
    (positions,) = c.inputs
    u = reduce_axis("u", positions.shape[1])

    def body(b: Expr, p: Expr) -> Expr:
        return select(equal(cast(positions[b, u], INT32), p), u.var, -1)

    return c.stage(body, reduce=[u], reducer="max")


COMBINE: dict[str, tuple[Callable[[Expr, Expr], Expr], Reducer]] = {
    "none": (lambda _, update: update, "max"),
    "add": (lambda a, b: a + b, "sum"),
    "mul": (lambda a, b: a * b, "prod"),
    "max": (maximum, "max"),
    "min": (minimum, "min"),
}
"""Reduction -> how a slot and its update combine, and how updates of one slot do."""


def _rows(data: TensorType, updates: TensorType, index: TensorType, extent: int) -> bool:
    """True if the shapes are those of rows, their updates, and an index of that extent."""
    batch, _, row = data.shape
    return updates.shape == (batch, updates.shape[1], row) and index.shape == (batch, extent)


def _infer_write(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, updates, writers = present(types), present(types, 1), present(types, 2)
    require(
        _rows(data, updates, writers, data.shape[1]) and attrs["reduction"] in COMBINE,
        lambda: f"write_rows: {updates} by {writers} do not fit into {data}",
    )
    return same_type(types, attrs)


@op("write_rows", kind="injective", infer=_infer_write)
def write_rows(c: OpCall) -> Tensor:
    """T_write_rows(b, p, r) = x[b, p, r] with updates[b, writers[b, p], r], where there is one."""
    x, updates, writers = c.inputs
    combine, _ = COMBINE[str(c.attrs["reduction"])]

    def body(b: Expr, p: Expr, r: Expr) -> Expr:
        old, writer = x[b, p, r], writers[b, p]
        return select(writer < 0, old, combine(old, updates[b, writer, r]))

    return c.stage(body)


def _infer_fold(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, positions, updates = present(types), present(types, 1), present(types, 2)
    fits = _rows(data, updates, positions, updates.shape[1]) and positions.dtype in INDEX_TYPES
    require(
        fits and attrs["reduction"] in COMBINE and attrs["reduction"] != "none",
        lambda: f"fold_rows: {updates} at {positions} do not fit into {data}",
    )
    return same_type(types, attrs)


def _fold_rows(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    data, positions, updates = present(arrays), present(arrays, 1), present(arrays, 2)
    combine, result = host_numpy.COMBINED[str(attrs["reduction"])], data.copy()
    batches, numbers = np.nonzero((positions >= 0) & (positions < data.shape[1]))
    combine.at(result, (batches, positions[batches, numbers]), updates[batches, numbers])
    return (result,)


@op("fold_rows", kind="reduction", infer=_infer_fold, numpy=_fold_rows)
def fold_rows(c: OpCall) -> Tensor:
    """Stages: all updates of a slot as one, and that with the slot's own row."""
    x, positions, updates = c.inputs
    combine, reducer = COMBINE[str(c.attrs["reduction"])]
    u = reduce_axis("u", positions.shape[1])

    def step(b: Expr, p: Expr, r: Expr) -> Expr:
        neutral = {"sum": const(0, x.dtype), "prod": const(1, x.dtype)}.get(reducer, x[b, p, r])
        meant = equal(cast(positions[b, u], INT32), p)
        return select(meant, updates[b, u, r], neutral)

    made = c.stage(step, stem="T_fold_updates", reduce=[u], reducer=reducer)
    return c.stage(lambda b, p, r: combine(x[b, p, r], made[b, p, r]), [x, made])

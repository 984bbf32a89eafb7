"""Ops that read or write where an index says.

Scattering has one form: `data` [batch, places, row] gets `updates` [batch, updates, row], each at
the place that `positions` [batch, updates] names. Positions count from the front; one that is no
place is left out. `last_writers` turns positions into the update that each place gets, which is a
constant where the positions are.
"""

from collections.abc import Callable, Sequence

import numpy as np

from retune.core.dtypes import INT32, INT64, TensorType
from retune.ops import host_numpy
from retune.ops.host_numpy import COMBINED
from retune.ops.registry import Array, Attrs, integer, op, present
from retune.ops.shapes import require, same_type

INDEX_TYPES = (INT32, INT64)


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


@op("gather_elements", kind="injective", infer=_infer_elements)
def gather_elements(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The element that each index names along `axis`, in its own line; negative from the end."""
    data, indices = present(arrays), present(arrays, 1)
    return (host_numpy.gather_elements(data, indices, integer(attrs, "axis")),)


def _infer_writers(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    positions = present(types)
    require(
        len(positions.shape) == 2 and positions.dtype in INDEX_TYPES,
        lambda: f"last_writers: expected integer positions [batch, updates], got {positions}",
    )
    return (TensorType((positions.shape[0], integer(attrs, "places")), INT32),)


@op("last_writers", kind="reduction", infer=_infer_writers)
def last_writers(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """For each of `places`, the number of the last position that names it; -1 without one."""
    positions, places = present(arrays), integer(attrs, "places")
    batches, updates = np.nonzero((positions >= 0) & (positions < places))
    writers = np.full((positions.shape[0], places), -1, np.int32)
    np.maximum.at(writers, (batches, positions[batches, updates]), updates.astype(np.int32))
    return (writers,)


COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "none": lambda _, update: update,
    **COMBINED,
}
"""Reduction -> what becomes of an element and its update."""


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
def write_rows(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The data with each place's row combined with its writer's, where it has one (from 0 on)."""
    data, updates, writers = present(arrays), present(arrays, 1), present(arrays, 2)
    rows = np.take_along_axis(updates, np.maximum(writers, 0)[..., None], axis=1)
    changed = COMBINE[str(attrs["reduction"])](data, rows)
    return (np.where((writers >= 0)[..., None], changed, data),)


def _infer_fold(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, positions, updates = present(types), present(types, 1), present(types, 2)
    fits = _rows(data, updates, positions, updates.shape[1]) and positions.dtype in INDEX_TYPES
    require(
        fits and attrs["reduction"] in COMBINE and attrs["reduction"] != "none",
        lambda: f"fold_rows: {updates} at {positions} do not fit into {data}",
    )
    return same_type(types, attrs)


@op("fold_rows", kind="reduction", infer=_infer_fold)
def fold_rows(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The data with each place's row combined with all updates whose position names it."""
    data, positions, updates = present(arrays), present(arrays, 1), present(arrays, 2)
    combine, result = COMBINE[str(attrs["reduction"])], data.copy()
    batches, numbers = np.nonzero((positions >= 0) & (positions < data.shape[1]))
    assert isinstance(combine, np.ufunc)
    combine.at(result, (batches, positions[batches, numbers]), updates[batches, numbers])
    return (result,)

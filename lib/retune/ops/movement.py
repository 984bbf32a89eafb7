"""Ops that move elements and compute nothing."""

from collections.abc import Sequence
from math import prod

import numpy as np

from retune.core.dtypes import INT32, INT64, TensorType
from retune.ops.registry import Array, Attrs, integer, ints, number, op, present
from retune.ops.shapes import require


def _infer_transpose(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, perm = present(types), ints(attrs, "perm")
    require(
        sorted(perm) == list(range(len(data.shape))),
        lambda: f"transpose of {data}: {perm} is not a permutation of its dimensions",
    )
    return (TensorType(tuple(data.shape[d] for d in perm), data.dtype),)


@op("transpose", kind="injective", infer=_infer_transpose)
def transpose(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """Dimension d of the result is dimension perm[d] of the input."""
    return (np.ascontiguousarray(present(arrays).transpose(ints(attrs, "perm"))),)


def _infer_reshape(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, shape = present(types), ints(attrs, "shape")
    require(
        prod(shape) == data.elements and all(extent >= 0 for extent in shape),
        lambda: (
            f"reshape of {data} ({data.elements} elements) to {list(shape)}: "
            f"expected as many elements"
        ),
    )
    return (TensorType(shape, data.dtype),)


@op("reshape", kind="injective", infer=_infer_reshape)
def reshape(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The same elements in the same order under another shape."""
    return (present(arrays).reshape(ints(attrs, "shape")),)


def _infer_concat(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    axis, first = integer(attrs, "axis"), present(types)
    entries = [present(types, index) for index in range(len(types))]
    for entry in entries:
        require(
            len(entry.shape) == len(first.shape)
            and all(
                a == b
                for d, (a, b) in enumerate(zip(entry.shape, first.shape, strict=True))
                if d != axis
            ),
            lambda entry=entry: f"concat along axis {axis}: {entry} does not fit beside {first}",
        )
    shape = list(first.shape)
    shape[axis] = sum(entry.shape[axis] for entry in entries)
    return (TensorType(tuple(shape), first.dtype),)


@op("concat", kind="injective", infer=_infer_concat)
def concat(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The inputs side by side along `axis`."""
    parts = [present(arrays, index) for index in range(len(arrays))]
    return (np.concatenate(parts, axis=integer(attrs, "axis")),)


def _infer_pad(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, pads = present(types), ints(attrs, "pads")
    rank = len(data.shape)
    shape = tuple(extent + pads[d] + pads[d + rank] for d, extent in enumerate(data.shape))
    require(
        all(extent >= 0 for extent in shape),
        lambda: f"pad of {data} by {pads}: more is cropped than there is",
    )
    return (TensorType(shape, data.dtype),)


@op("pad", kind="injective", infer=_infer_pad)
def pad(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The input with a border of `value`; pads = (begins..., ends...), negative ones crop."""
    data, pads = present(arrays), ints(attrs, "pads")
    sides = list(zip(pads[: data.ndim], pads[data.ndim :], strict=True))
    kept = tuple(
        slice(max(0, -low), extent - max(0, -high))
        for (low, high), extent in zip(sides, data.shape, strict=True)
    )
    widths = [(max(0, low), max(0, high)) for low, high in sides]
    value = np.asarray(number(attrs, "value")).astype(data.dtype)
    return (np.pad(data[kept], widths, constant_values=value),)


def _infer_slice(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, extents = present(types), ints(attrs, "extents")
    begins, steps = ints(attrs, "begins"), ints(attrs, "steps")
    for d, extent in enumerate(data.shape):
        last = begins[d] + (extents[d] - 1) * steps[d]
        require(
            extents[d] == 0 or (0 <= begins[d] < extent and 0 <= last < extent),
            lambda d=d: (
                f"slice of {data}: begin {begins[d]}, extent {extents[d]}, step {steps[d]} "
                f"leaves dimension {d}"
            ),
        )
    return (TensorType(extents, data.dtype),)


@op("slice", kind="injective", infer=_infer_slice)
def strided_slice(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """Element i of a dimension is element begins + i * steps; `extents` is the result's shape."""
    data = present(arrays)
    picks = [
        begin + step * np.arange(extent)
        for begin, step, extent in zip(
            ints(attrs, "begins"), ints(attrs, "steps"), ints(attrs, "extents"), strict=True
        )
    ]
    return (np.ascontiguousarray(data[np.ix_(*picks)]) if picks else data,)


def _infer_gather(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, indices, axis = present(types), present(types, 1), integer(attrs, "axis")
    require(
        indices.dtype in (INT32, INT64) and axis < len(data.shape),
        lambda: f"gather from {data} along {axis}: expected integer indices, got {indices}",
    )
    shape = (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])
    return (TensorType(shape, data.dtype),)


@op("gather", kind="injective", infer=_infer_gather)
def gather(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The input's slices along `axis` that the indices name; negative ones count from the end."""
    return (np.take(present(arrays), present(arrays, 1), axis=integer(attrs, "axis")),)


def _infer_broadcast(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, shape = present(types), ints(attrs, "shape")
    fits = len(data.shape) <= len(shape) and all(
        extent in (1, wanted) for extent, wanted in zip(data.shape[::-1], shape[::-1], strict=False)
    )
    require(fits, lambda: f"broadcast of {data} to {list(shape)}: the extents do not fit")
    return (TensorType(shape, data.dtype),)


@op("broadcast_to", kind="injective", infer=_infer_broadcast)
def broadcast_to(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The input repeated along its extents of 1 until it has `shape`."""
    return (np.ascontiguousarray(np.broadcast_to(present(arrays), ints(attrs, "shape"))),)

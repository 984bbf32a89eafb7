"""Ops along one axis whose results depend on the elements' order: extremes, ranks, running sums.

Attribute `axis` is not negative. What a NaN is ranked as is not specified.
"""

from collections.abc import Callable, Sequence

import numpy as np

from retune.core.dtypes import INT64, TensorType
from retune.ops.host_numpy import top_places
from retune.ops.registry import Array, Attrs, integer, op, present
from retune.ops.shapes import require, same_type


def _infer_extreme(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, axis = present(types), integer(attrs, "axis")
    require(
        0 <= axis < len(data.shape) and data.shape[axis] > 0,
        lambda: f"index of the largest or smallest of {data}: dimension {axis} has no elements",
    )
    kept = (1,) if attrs["keepdims"] else ()
    return (TensorType((*data.shape[:axis], *kept, *data.shape[axis + 1 :]), INT64),)


def _extreme(
    find: Callable[..., Array],
) -> Callable[[Sequence[Array | None], Attrs], tuple[Array, ...]]:
    def reference(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
        data, axis = present(arrays), integer(attrs, "axis")
        keep = bool(attrs["keepdims"])
        if not attrs["last"]:
            return (np.asarray(find(data, axis=axis, keepdims=keep), np.int64),)
        behind = find(np.flip(data, axis), axis=axis, keepdims=keep)
        return (np.asarray(data.shape[axis] - 1 - behind, np.int64),)

    return reference


EXTREMES: dict[str, Callable[..., Array]] = {"argmax": np.argmax, "argmin": np.argmin}
"""Name -> numpy function. Attributes: keepdims, and last, for the last of several places."""

for _name, _find in EXTREMES.items():
    op(_name, kind="reduction", infer=_infer_extreme)(_extreme(_find))


def _infer_top(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, axis, count = present(types), integer(attrs, "axis"), integer(attrs, "count")
    require(
        1 <= count <= data.shape[axis],
        lambda: f"the first {count} of {data} along dimension {axis}: there are not so many",
    )
    return (TensorType((*data.shape[:axis], count, *data.shape[axis + 1 :]), INT64),)


@op("top_indices", kind="reduction", infer=_infer_top)
def top_indices(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """Where the `count` largest (or smallest) elements are, in order; the first of equal ones."""
    data, axis, count = present(arrays), integer(attrs, "axis"), integer(attrs, "count")
    return (top_places(data, count, axis, largest=bool(attrs["largest"])),)


CUMULATIVE: dict[str, tuple[np.ufunc, int]] = {
    "cumulative_sum": (np.add, 0),
    "cumulative_product": (np.multiply, 1),
}
"""Name -> how two elements combine, and what changes nothing."""


def _cumulative(
    combine: np.ufunc, neutral: int
) -> Callable[[Sequence[Array | None], Attrs], tuple[Array, ...]]:
    def reference(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
        data = np.moveaxis(present(arrays), integer(attrs, "axis"), 0)
        data = data[::-1] if attrs["reverse"] else data
        if attrs["exclusive"]:
            data = np.concatenate([np.full_like(data[:1], neutral), data[:-1]])
        made = combine.accumulate(data, axis=0, dtype=data.dtype)
        made = made[::-1] if attrs["reverse"] else made
        return (np.ascontiguousarray(np.moveaxis(made, 0, integer(attrs, "axis"))),)

    return reference


for _name, (_combine, _neutral) in CUMULATIVE.items():
    op(_name, kind="reduction", infer=same_type)(_cumulative(_combine, _neutral))

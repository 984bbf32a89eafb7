"""Reductions over axes. Attributes: axes (ascending, not negative), keepdims.

Sums of bytes are taken, and made, in int32.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from retune.core.dtypes import INT32, TensorType
from retune.ops.linear import BYTES
from retune.ops.registry import Array, Attrs, ints, op, present

REDUCTIONS: dict[str, Callable[..., Array]] = {
    "reduce_mean": np.mean,
    "reduce_sum": np.sum,
    "reduce_prod": np.prod,
    "reduce_max": np.max,
    "reduce_min": np.min,
}
"""Name -> numpy function. A mean of integers is rounded toward zero."""


def _infer(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, axes = present(types), ints(attrs, "axes")
    if attrs["keepdims"]:
        shape = tuple(1 if d in axes else extent for d, extent in enumerate(data.shape))
    else:
        shape = tuple(extent for d, extent in enumerate(data.shape) if d not in axes)
    return (TensorType(shape, data.dtype),)


def _infer_sum(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    (made,) = _infer(types, attrs)
    return (TensorType(made.shape, INT32 if made.dtype in BYTES else made.dtype),)


def _reduce(name: str) -> Callable[[Sequence[Array | None], Attrs], tuple[Array, ...]]:
    function = REDUCTIONS[name]

    def reference(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
        data = present(arrays)
        options: dict[str, Any] = {"axis": ints(attrs, "axes"), "keepdims": bool(attrs["keepdims"])}
        if not data.size and name in _WORST:
            options["initial"] = _worst(data.dtype, _WORST[name])
        dtype = np.int32 if name == "reduce_sum" and data.dtype.name in BYTES else data.dtype
        with np.errstate(invalid="ignore", divide="ignore"):
            return (np.asarray(function(data, **options), dtype),)

    return reference


_WORST = {"reduce_max": -np.inf, "reduce_min": np.inf}
"""Name -> the result over no elements, for floats."""


def _worst(dtype: np.dtype[Any], limit: float) -> float:
    """The value of that type nearest to the limit."""
    kind = DType(dtype.name)
    return limit if kind.is_float else kind.limits[limit > 0]


for _name in REDUCTIONS:
    _types = _infer_sum if _name == "reduce_sum" else _infer
    op(_name, kind="reduction", infer=_types)(_reduce(_name))

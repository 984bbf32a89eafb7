"""Ops of several inputs that map elements on their own, shapes broadcast as in numpy."""

from collections.abc import Callable, Sequence

import numpy as np

from retune.core.dtypes import TensorType
from retune.graph.ops.registry import Array, Attrs, op, present
from retune.graph.ops.shapes import broadcast_type, common_shape, compare_type, require

Binary = Callable[[Array, Array], Array]


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.divide(a, b)
    return np.trunc(np.divide(a, b))


BINARY: dict[str, Binary] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": _divide,
    "power": np.power,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "prelu": lambda x, slope: np.where(x < 0, x * slope, x),
}
"""Name -> meaning; the result has the first input's element type. Integers divide toward zero."""

COMPARE: dict[str, Binary] = {
    "equal": np.equal,
    "less": np.less,
    "greater": np.greater,
}
"""Name -> meaning; the result is a truth value."""


def _binary(meaning: Binary) -> Callable[[Sequence[Array | None], Attrs], tuple[Array, ...]]:
    def reference(arrays: Sequence[Array | None], _: Attrs) -> tuple[Array, ...]:
        left, right = present(arrays), present(arrays, 1)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            return (np.asarray(meaning(left, right)).astype(left.dtype, copy=False),)

    return reference


def _compare(meaning: Binary) -> Callable[[Sequence[Array | None], Attrs], tuple[Array, ...]]:
    def reference(arrays: Sequence[Array | None], _: Attrs) -> tuple[Array, ...]:
        return (np.asarray(meaning(present(arrays), present(arrays, 1))),)

    return reference


for _name, _meaning in BINARY.items():
    op(_name, kind="broadcast", infer=broadcast_type)(_binary(_meaning))
for _name, _meaning in COMPARE.items():
    op(_name, kind="broadcast", infer=compare_type)(_compare(_meaning))


def _infer_where(types: Sequence[TensorType | None], _: Attrs) -> tuple[TensorType, ...]:
    condition, then = present(types), present(types, 1)
    require(
        condition.dtype == "bool",
        lambda: f"where: expected a condition of type bool, got {condition}",
    )
    return (TensorType(common_shape(types), then.dtype),)


@op("where", kind="broadcast", infer=_infer_where)
def where(arrays: Sequence[Array | None], _: Attrs) -> tuple[Array, ...]:
    """The second input where the first is true, else the third."""
    return (np.where(present(arrays), present(arrays, 1), present(arrays, 2)),)

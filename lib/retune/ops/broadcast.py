"""Ops of several inputs that map elements on their own, shapes broadcast as in numpy."""

from collections.abc import Callable, Sequence

import numpy as np

from retune.core.dtypes import BOOL, TensorType
from retune.ops.registry import Array, Attrs, op, present
from retune.ops.shapes import broadcast_type, common_shape, compare_type, require

Binary = Callable[[Array, Array], Array]


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.divide(a, b)
    if a.dtype.kind == "u":
        return np.floor_divide(a, b)
    quotient = np.floor_divide(np.abs(a), np.abs(b))
    return np.where((a < 0) == (b < 0), quotient, -quotient)


def _shift(move: Binary, *, signed: bool) -> Binary:
    """By less than nothing or more than all bits there is the sign left, or nothing."""

    def meaning(a: Array, b: Array) -> Array:
        width = 8 * a.dtype.itemsize
        inside = (b >= 0) & (b < width)
        far = np.right_shift(a, width - 1) if signed and a.dtype.kind == "i" else np.zeros_like(a)
        return np.where(inside, move(a, np.where(inside, b, np.zeros_like(b))), far)

    return meaning


BINARY: dict[str, Binary] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": _divide,
    "quotient": np.divide,
    "power": np.power,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "prelu": lambda x, slope: np.where(x < 0, x * slope, x),
    "mod": np.mod,
    "fmod": np.fmod,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "shift_left": _shift(np.left_shift, signed=False),
    "shift_right": _shift(np.right_shift, signed=True),
}
"""Name -> meaning; the result has the first input's element type. Integers divide toward zero.

`quotient` is that of floats to the last bit, on devices too, where `divide` may be off by it.
`mod` has the divisor's sign, `fmod` the dividend's. A shift to the right keeps the sign.
"""

COMPARE: dict[str, Binary] = {
    "equal": np.equal,
    "less": np.less,
    "greater": np.greater,
    "less_equal": np.less_equal,
    "greater_equal": np.greater_equal,
}
"""Name -> meaning; the result is a truth value. No order holds for a NaN."""

LOGIC: dict[str, Binary] = {
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
}
"""Name -> meaning; of truth values."""


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


def _infer_logic(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    for entry in types:
        require(
            entry is not None and entry.dtype == BOOL,
            lambda entry=entry: f"a logical operator: expected values of type bool, got {entry}",
        )
    return compare_type(types, attrs)


for _name, _meaning in BINARY.items():
    op(_name, kind="broadcast", infer=broadcast_type)(_binary(_meaning))
for _name, _meaning in COMPARE.items():
    op(_name, kind="broadcast", infer=compare_type)(_compare(_meaning))
for _name, _meaning in LOGIC.items():
    op(_name, kind="broadcast", infer=_infer_logic)(_compare(_meaning))


def _infer_where(types: Sequence[TensorType | None], _: Attrs) -> tuple[TensorType, ...]:
    condition, then = present(types), present(types, 1)
    require(
        condition.dtype == BOOL,
        lambda: f"where: expected a condition of type bool, got {condition}",
    )
    return (TensorType(common_shape(types), then.dtype),)


@op("where", kind="broadcast", infer=_infer_where)
def where(arrays: Sequence[Array | None], _: Attrs) -> tuple[Array, ...]:
    """The second input where the first is true, else the third."""
    return (np.where(present(arrays), present(arrays, 1), present(arrays, 2)),)

"""Integers that depend on sizes, as values of a graph: what `Shape` of a model gives, and what is
computed from it.

Read `over_extents`: while importing, arithmetic on shapes is done with arrays of Dims instead of
numbers. Only what a node reads as a tensor is made by a node, `extents`.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from math import prod
from typing import Any, TypeAlias, cast

import numpy as np

from retune.core.dims import Dim, always_equal, apart, is_fixed, note
from retune.core.dtypes import BOOL, Array, DType, TensorType
from retune.ir import expr
from retune.ir.expr import Expr, as_expr, const, equal, select
from retune.ir.te import Tensor
from retune.ops.registry import Attrs, AttrValue, OpCall, OpDef, integer, ints, op, present
from retune.ops.shapes import require

EXTENTS = "extents"
"""The op that makes a tensor of integers that depend on sizes, of no inputs."""
POSITIONS = "positions"
"""The op that numbers the elements of a tensor, of no inputs."""

_MOST = 256
"""Elements of a value that is computed while importing: shapes have a few."""
_PLAIN = 4096
"""Largest denominator of a factor that is taken for the fraction that a user wrote."""


def _infer_extents(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    shape, values = ints(attrs, "shape"), ints(attrs, "values")
    require(
        not types and prod(shape) == len(values),
        lambda: f"extents: expected {prod(shape)} values of {list(shape)}, got {len(values)}",
    )
    return (TensorType(shape, cast("DType", attrs["to"])),)


def _stored(_: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    dtype = DType(str(attrs["to"])).numpy
    return (np.asarray(ints(attrs, "values"), dtype).reshape(ints(attrs, "shape")),)


@op(EXTENTS, kind="injective", infer=_infer_extents, numpy=_stored)
def extents(c: OpCall) -> Tensor:
    """T_extents(i...) = the value at that position; no inputs."""
    values, shape = ints(c.attrs, "values"), c.output.shape

    def body(*i: Expr) -> Expr:
        flat = reduce(lambda at, d: at * shape[d] + i[d], range(len(shape)), const(0))
        made = as_expr(values[-1])
        for position in reversed(range(len(values) - 1)):
            made = select(equal(flat, position), as_expr(values[position]), made)
        return expr.cast(made, c.output.dtype)

    return c.stage(body)


def _infer_positions(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    shape, steps = ints(attrs, "shape"), ints(attrs, "steps")
    require(
        not types and len(shape) == len(steps),
        lambda: f"positions: expected a step for each of {list(shape)}, got {list(steps)}",
    )
    return (TensorType(shape, cast("DType", attrs["to"])),)


def _counted(_: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    shape, steps = ints(attrs, "shape"), ints(attrs, "steps")
    return (counted(shape, steps, integer(attrs, "begin"), DType(str(attrs["to"]))),)


def counted(shape: Sequence[int], steps: Sequence[int], begin: int, dtype: DType) -> Array:
    """begin + the sum of steps times indices, in each element."""
    made = np.full(tuple(shape), begin, np.int64)
    for axis, step in enumerate(steps):
        sides = [-1 if d == axis else 1 for d in range(len(shape))]
        made += (np.arange(shape[axis], dtype=np.int64) * step).reshape(sides)
    return made.astype(dtype.numpy)


@op(POSITIONS, kind="injective", infer=_infer_positions, numpy=_counted)
def positions(c: OpCall) -> Tensor:
    """Begin + the sum of steps times indices, without any input."""
    steps = ints(c.attrs, "steps")

    def body(*i: Expr) -> Expr:
        made = as_expr(integer(c.attrs, "begin"))
        for axis, step in zip(i, steps, strict=True):
            made = made if always_equal(step, 0) else made + axis * step
        return expr.cast(made, c.output.dtype)

    return c.stage(body)


def extents_attrs(array: Array, dtype: DType) -> dict[str, AttrValue]:
    """Attributes of the op that makes that array of integers and Dims."""
    return {"values": tuple(array.reshape(-1).tolist()), "shape": array.shape, "to": dtype}


def array_of_extents(values: object) -> Array:
    """Numbers and Dims, however nested, as an array of objects: Python's integers and Dims."""
    array = np.asarray(values, object)
    plain = [e.item() if isinstance(e, np.generic) else e for e in array.reshape(-1).tolist()]
    made = np.empty(len(plain), object)
    made[:] = plain
    return made.reshape(array.shape)


def depends_on_sizes(attrs: Attrs, types: Sequence[TensorType]) -> bool:
    """Whether what a node with these attributes makes is another one for other sizes."""
    return not all(entry.fixed for entry in types) or any(
        isinstance(value, Dim)
        or (isinstance(value, tuple) and any(isinstance(e, Dim) for e in value))
        for value in attrs.values()
    )


# -- meanings over arrays of integers and Dims -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ratio:
    """A number that a shape became by a cast to float: a quotient of an extent."""

    top: int
    bottom: int = 1

    @classmethod
    def of(cls, value: "float | Ratio") -> "Ratio":
        """The number; a float as the simple fraction that it is closest to, if it is that one's.

        1.4 in float32 is 7 / 5 then, so that five times it is 7 as it is in float32.
        """
        if isinstance(value, Ratio):
            return value
        if not isinstance(value, float):
            return cls(value)
        exact = Fraction(value)
        plain = exact.limit_denominator(_PLAIN)
        same = np.float32(float(plain)) == np.float32(value)
        found = plain if same else exact
        return cls(found.numerator, found.denominator)

    def __add__(self, other: "Ratio") -> "Ratio":
        return Ratio(self.top * other.bottom + other.top * self.bottom, self.bottom * other.bottom)

    def __sub__(self, other: "Ratio") -> "Ratio":
        return Ratio(self.top * other.bottom - other.top * self.bottom, self.bottom * other.bottom)

    def __mul__(self, other: "Ratio") -> "Ratio":
        return Ratio(self.top * other.top, self.bottom * other.bottom)

    def __truediv__(self, other: "Ratio") -> "Ratio":
        over, under = other.bottom, other.top
        if under < 0:
            over, under = -over, -under
        return Ratio(self.top * over, self.bottom * under)

    def __neg__(self) -> "Ratio":
        return Ratio(-self.top, self.bottom)

    def __floor__(self) -> int:
        return self.top // self.bottom

    def __ceil__(self) -> int:
        return -(-self.top // self.bottom)

    def __lt__(self, other: "Ratio") -> bool:
        return (self - other).top < 0

    def __trunc__(self) -> int:
        return _truncated(self.top, self.bottom)


Element: TypeAlias = "bool | int | float | Dim | Ratio"
_Function: TypeAlias = Callable[..., Any]


def over_extents(
    definition: OpDef, arrays: Sequence[Array | None], attrs: Attrs, made: TensorType
) -> Array | None:
    """What the op makes of arrays of which some hold Dims; None if that has to be a node.

    An array of objects if it holds Dims, or else one of the type.
    """
    if not made.fixed or made.elements > _MOST or depends_on_sizes(attrs, ()):
        return None
    if any(array is not None and array.size > _MOST for array in arrays):
        return None
    with apart() as assumed:
        found = _computed(definition, arrays, attrs, made)
    if found is None or any(condition.counted for condition in assumed.conditions):
        return None
    note(assumed.conditions)
    elements = [_as_element(value, made.dtype) for value in np.asarray(found).reshape(-1).tolist()]
    if all(not isinstance(value, Dim | Ratio) for value in elements):
        return np.asarray(elements, made.dtype.numpy).reshape(made.shape)
    return array_of_extents(elements).reshape(made.shape)


def _as_element(value: Element, dtype: DType) -> Element:
    """A number that does not depend on sizes as such."""
    if isinstance(value, Ratio) and is_fixed(value.top):
        return float(Fraction(value.top, value.bottom))
    return Ratio.of(value) if dtype.is_float and isinstance(value, Dim) else value


def _computed(
    definition: OpDef, arrays: Sequence[Array | None], attrs: Attrs, made: TensorType
) -> Array | None:
    if definition.name in _MOVES:
        given = [
            None if a is None else a if i else array_of_extents(a) for i, a in enumerate(arrays)
        ]
        if definition.name == "concat":
            given = [array_of_extents(present(arrays, i)) for i in range(len(arrays))]
        elif any(a is not None and a.dtype == object for a in given[1:]):
            return None  # an index that depends on sizes
        return definition.numpy(given, attrs)[0] if definition.numpy else None
    if definition.name in _REDUCTIONS:
        function, array = _REDUCTIONS[definition.name], array_of_extents(present(arrays))
        axes = ints(attrs, "axes")
        return np.frompyfunc(function, 2, 1).reduce(array, axes, keepdims=bool(attrs["keepdims"]))
    is_float = any(a is not None and _holds_floats(a) for a in arrays)
    table = _OF_FLOATS if is_float else _OF_INTEGERS
    given = [array_of_extents(present(arrays, i)) for i in range(len(arrays))]
    if definition.name == "cast":
        return _elementwise(lambda value: _cast(value, made.dtype), given)
    if definition.name not in table:
        return None
    if is_float and definition.name != "where":
        given = [_elementwise(Ratio.of, [array]) for array in given]
    return _elementwise(table[definition.name], given)


def _holds_floats(array: Array) -> bool:
    if array.dtype != object:
        return array.dtype.kind == "f"
    return any(isinstance(value, float | Ratio) for value in array.reshape(-1).tolist())


def _elementwise(function: _Function, arrays: Sequence[Array]) -> Array:
    """The function of the elements that broadcasting pairs, as an array of objects."""
    return np.asarray(np.frompyfunc(function, len(arrays), 1)(*arrays), object)


def _cast(value: Element, dtype: DType) -> Element:
    if dtype == BOOL:
        return bool(value.top != 0 if isinstance(value, Ratio) else value != 0)
    if dtype.is_float:
        return value if isinstance(value, float | Ratio) else Ratio.of(value)
    if isinstance(value, Ratio):
        return value.__trunc__()
    return value if isinstance(value, Dim) else int(value)


def _truncated(a: int, b: int) -> int:
    """a / b rounded toward zero, as ONNX divides integers."""
    if b < 0:
        a, b = -a, -b
    return a // b if a >= 0 else -(-a // b)


def _maximum(a: Any, b: Any) -> Any:
    return b if a < b else a


def _minimum(a: Any, b: Any) -> Any:
    return a if a < b else b


_MOVES = frozenset({"reshape", "transpose", "slice", "gather", "concat", "broadcast_to"})
"""Ops whose numpy meaning moves elements, whatever they are."""
_COMPARISONS: Mapping[str, _Function] = {
    "less": operator.lt,
    "greater": lambda a, b: b < a,
    "less_equal": lambda a, b: not b < a,
    "greater_equal": lambda a, b: not a < b,
}
_COMMON: Mapping[str, _Function] = {
    "identity": lambda a: a,
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "negative": operator.neg,
    "where": lambda condition, a, b: a if condition else b,
    "minimum": _minimum,
    "maximum": _maximum,
    **_COMPARISONS,
}
_OF_INTEGERS: Mapping[str, _Function] = {
    **_COMMON,
    "divide": _truncated,
    "mod": operator.mod,
    "fmod": lambda a, b: a - _truncated(a, b) * b,
    "equal": lambda a, b: bool(a == b),
    "not_equal": lambda a, b: bool(a != b),
    "abs": abs,
    "logical_not": operator.not_,
    "logical_and": lambda a, b: bool(a and b),
    "logical_or": lambda a, b: bool(a or b),
}
_OF_FLOATS: Mapping[str, _Function] = {
    **_COMMON,
    "divide": operator.truediv,
    "quotient": operator.truediv,
    "floor": lambda a: Ratio.of(a.__floor__()),
    "ceil": lambda a: Ratio.of(a.__ceil__()),
}
_REDUCTIONS: Mapping[str, _Function] = {
    "reduce_prod": operator.mul,
    "reduce_sum": operator.add,
    "reduce_max": _maximum,
    "reduce_min": _minimum,
}

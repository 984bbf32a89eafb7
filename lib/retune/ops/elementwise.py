"""Ops of one input that map each element on its own."""

from collections.abc import Callable, Sequence
from math import pi, sqrt
from typing import cast

import numpy as np

from retune.core.dtypes import BOOL, DType, TensorType, numpy_dtype
from retune.ops.registry import Array, Attrs, number, op, present
from retune.ops.shapes import require, same_type

Unary = Callable[[Array, Attrs], Array]


def _sigmoid(x: Array) -> Array:
    return 0.5 * (np.tanh(0.5 * x) + 1)


def _elu(x: Array, alpha: float) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _hard_sigmoid(x: Array, attrs: Attrs) -> Array:
    return np.clip(number(attrs, "alpha") * x + number(attrs, "beta"), 0, 1)


def _erf(x: Array) -> Array:
    from math import erf

    return np.vectorize(erf, otypes=[np.float64])(x) if x.size else x


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x)))


UNARY: dict[str, Unary] = {
    "relu": lambda x, _: np.maximum(x, 0),
    "clip": lambda x, a: np.clip(x, number(a, "min"), number(a, "max")),
    "sigmoid": lambda x, _: _sigmoid(x),
    "tanh": lambda x, _: np.tanh(x),
    "leaky_relu": lambda x, a: np.where(x < 0, number(a, "alpha") * x, x),
    "elu": lambda x, a: _elu(x, number(a, "alpha")),
    "selu": lambda x, a: number(a, "gamma") * _elu(x, number(a, "alpha")),
    "hard_sigmoid": _hard_sigmoid,
    "hard_swish": lambda x, _: x * np.clip(x / 6 + 0.5, 0, 1),
    "gelu": lambda x, _: 0.5 * x * (1 + _erf(x * sqrt(0.5))),
    "gelu_tanh": lambda x, _: _gelu_tanh(x),
    "swish": lambda x, a: x / (1 + np.exp(-number(a, "alpha") * x)),
    "mish": lambda x, _: x * np.tanh(_softplus(x)),
    "exp": lambda x, _: np.exp(x),
    "log": lambda x, _: np.log(x),
    "sqrt": lambda x, _: np.sqrt(x),
    "abs": lambda x, _: np.abs(x),
    "negative": lambda x, _: -x,
    "floor": lambda x, _: np.floor(x),
    "ceil": lambda x, _: np.ceil(x),
    "round": lambda x, _: np.rint(x),
    "reciprocal": lambda x, _: np.reciprocal(x),
    "softplus": lambda x, _: _softplus(x),
    "softsign": lambda x, _: x / (1 + np.abs(x)),
    "erf": lambda x, _: _erf(x),
    "sin": lambda x, _: np.sin(x),
    "cos": lambda x, _: np.cos(x),
    "tan": lambda x, _: np.tan(x),
    "arcsin": lambda x, _: np.arcsin(x),
    "arccos": lambda x, _: np.arccos(x),
    "arctan": lambda x, _: np.arctan(x),
    "sinh": lambda x, _: np.sinh(x),
    "cosh": lambda x, _: np.cosh(x),
    "arcsinh": lambda x, _: np.arcsinh(x),
    "arccosh": lambda x, _: np.arccosh(x),
    "arctanh": lambda x, _: np.arctanh(x),
    "sign": lambda x, _: np.sign(x),
    "bitwise_not": lambda x, _: np.invert(x),
    "identity": lambda x, _: x,
}
"""Name -> meaning. The result has the input's element type. `round` takes halves to even."""

PREDICATES: dict[str, Callable[[Array], Array]] = {
    "is_nan": np.isnan,
    "is_inf": np.isinf,
    "logical_not": np.logical_not,
}
"""Name -> meaning; the result is a truth value."""


def _unary(meaning: Unary) -> Callable[[Sequence[Array | None], Attrs], tuple[Array, ...]]:
    def reference(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
        data = present(arrays)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            return (np.asarray(meaning(data, attrs)).astype(data.dtype, copy=False),)

    return reference


def _infer_predicate(types: Sequence[TensorType | None], _: Attrs) -> tuple[TensorType, ...]:
    return (TensorType(present(types).shape, BOOL),)


def _predicate(
    meaning: Callable[[Array], Array],
) -> Callable[[Sequence[Array | None], Attrs], tuple[Array, ...]]:
    return lambda arrays, _: (np.asarray(meaning(present(arrays))),)


for _name, _meaning in UNARY.items():
    op(_name, kind="elementwise", infer=same_type)(_unary(_meaning))
for _name, _meaning in PREDICATES.items():
    op(_name, kind="elementwise", infer=_infer_predicate)(_predicate(_meaning))


def _infer_cast(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    return (TensorType(present(types).shape, cast("DType", attrs["to"])),)


@op("cast", kind="elementwise", infer=_infer_cast)
def cast_elements(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The elements as another type (`to`), truncated toward zero for integers."""
    with np.errstate(invalid="ignore", over="ignore"):
        return (present(arrays).astype(numpy_dtype(str(attrs["to"]))),)


def _infer_bitcast(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, to = present(types), cast("DType", attrs["to"])
    require(
        data.dtype.itemsize == to.itemsize and BOOL not in (data.dtype, to),
        lambda: f"bitcast of {data} to {to}: expected numbers of the same size",
    )
    return (TensorType(data.shape, to),)


@op("bitcast", kind="elementwise", infer=_infer_bitcast)
def bitcast(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The elements' bits as elements of another type (`to`) of the same size."""
    return (np.array(present(arrays)).view(numpy_dtype(str(attrs["to"]))),)

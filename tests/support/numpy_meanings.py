"""What each op means in numpy, written apart from its tensor expression: tests compare the two."""

from collections.abc import Callable, Sequence
from math import pi, prod, sqrt
from typing import Any

import ml_dtypes
import numpy as np
from numpy.lib.stride_tricks import as_strided

from retune.core.dtypes import Array
from retune.ops import host_numpy
from retune.ops.convolution import border, transposed_extents
from retune.ops.host_numpy import COMBINED, top_positions
from retune.ops.linear import BYTES
from retune.ops.quantized import LIMIT
from retune.ops.registry import Attrs, integer, ints, number, present
from retune.ops.shapes import CHANNELS_LAST, window_extent

Meaning = Callable[[Sequence[Array | None], Attrs], tuple[Array, ...]]

MEANINGS: dict[str, Meaning] = {}


def meaning(*names: str) -> Callable[[Meaning], Meaning]:
    """Decorator: the function is the meaning of these ops."""

    def wrap(function: Meaning) -> Meaning:
        MEANINGS.update(dict.fromkeys(names, function))
        return function

    return wrap


def to_channels_first(data: Array, layout: str) -> Array:
    """The array as [N, C, spatial...]."""
    return np.moveaxis(data, -1, 1) if layout in CHANNELS_LAST else data


def from_channels_first(data: Array, layout: str) -> Array:
    """The inverse of `to_channels_first`, contiguous."""
    return np.ascontiguousarray(np.moveaxis(data, 1, -1)) if layout in CHANNELS_LAST else data


def pad_spatial(data: Array, pads: Sequence[int], value: float = 0.0) -> Array:
    """[N, C, spatial...] padded by `pads` = (begins..., ends...); negative pads crop."""
    rank = len(pads) // 2
    begins, ends = pads[:rank], pads[rank:]
    crop = tuple(
        slice(max(0, -b), extent - max(0, -e))
        for b, e, extent in zip(begins, ends, data.shape[2:], strict=True)
    )
    data = data[(slice(None), slice(None), *crop)]
    widths = [(0, 0), (0, 0)]
    widths += [(max(0, b), max(0, e)) for b, e in zip(begins, ends, strict=True)]
    if not any(low or high for low, high in widths):
        return np.ascontiguousarray(data)
    return np.pad(data, widths, constant_values=value)


def windows(
    data: Array, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Array:
    """A view [N, C, kernel..., positions...] of a contiguous padded array."""
    extents = [
        window_extent(extent, k, s, d, 0)
        for extent, k, s, d in zip(data.shape[2:], kernel, strides, dilations, strict=True)
    ]
    steps = data.strides[2:]
    taps = [step * d for step, d in zip(steps, dilations, strict=True)]
    moves = [step * s for step, s in zip(steps, strides, strict=True)]
    return as_strided(
        data,
        shape=(*data.shape[:2], *kernel, *extents),
        strides=(*data.strides[:2], *taps, *moves),
        writeable=False,
    )


def summed(left: Array, right: Array) -> Array:
    """The matrix product; integers are multiplied as float64, which is exact and much faster.

    Sums of bytes stay below 2**53 in magnitude; other integers wrap, so they stay as they are.
    """
    if left.dtype.name not in BYTES or right.dtype.name not in BYTES:
        return np.matmul(left, right)
    wide = np.matmul(left.astype(np.float64), right.astype(np.float64))
    return wide.astype(np.int64).astype(np.int32)


@meaning("dense")
def dense(arrays: Sequence[Array | None], _: Attrs) -> tuple[Array, ...]:
    """data [n, k] times the transpose of weight [m, k]."""
    return (summed(present(arrays), present(arrays, 1).T),)


@meaning("matmul")
def matmul(arrays: Sequence[Array | None], _: Attrs) -> tuple[Array, ...]:
    """Matrix product over the last two dimensions; the others broadcast."""
    return (summed(present(arrays), present(arrays, 1)),)


@meaning("conv2d")
def conv2d(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """Convolution (cross-correlation) in groups, by im2col and a matrix product."""
    layout = str(attrs["layout"])
    data = to_channels_first(present(arrays), layout)
    kernel = present(arrays, 1)
    if layout in CHANNELS_LAST:
        kernel = np.moveaxis(kernel, (-1, -2), (0, 1))
    return (from_channels_first(_im2col(data, kernel, attrs), layout),)


meaning("conv3d")(conv2d)


def _im2col(data: Array, kernel: Array, attrs: Attrs) -> Array:
    groups, strides = integer(attrs, "groups"), ints(attrs, "strides")
    taps = kernel.shape[2:]
    padded = pad_spatial(data, ints(attrs, "pads"), border(attrs))
    view = windows(padded, taps, strides, ints(attrs, "dilations"))
    batch, made = data.shape[0], kernel.shape[0]
    extents = view.shape[2 + len(taps) :]
    depth = kernel.shape[1] * prod(taps)
    columns = view.reshape(batch, groups, depth, prod(extents))
    rows = np.ascontiguousarray(kernel).reshape(groups, made // groups, depth)
    return summed(rows, columns).reshape(batch, made, *extents)


@meaning("depthwise_conv2d")
def depthwise_conv2d(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """Each channel convolved with its own M kernels, tap by tap."""
    layout = str(attrs["layout"])
    data = to_channels_first(present(arrays), layout)
    kernel = present(arrays, 1)
    count = data.shape[1]
    if layout in CHANNELS_LAST:
        kernel = np.moveaxis(kernel, (-2, -1), (0, 1))
    else:
        kernel = kernel.reshape(count, -1, *kernel.shape[2:])
    padded = pad_spatial(data, ints(attrs, "pads"), border(attrs))
    taps = kernel.shape[2:]
    view = windows(padded, taps, ints(attrs, "strides"), ints(attrs, "dilations"))
    multiple = kernel.shape[1]
    dtype = np.int32 if {data.dtype.name, kernel.dtype.name} <= {*BYTES} else data.dtype
    kernel = kernel.astype(dtype)
    total = np.zeros((data.shape[0], count, multiple, *view.shape[4:]), dtype)
    for tap in np.ndindex(*taps):
        weight = kernel[(slice(None), slice(None), *tap)][:, :, None, None]
        total += view[(slice(None), slice(None), *tap)][:, :, None] * weight
    flat = total.reshape(data.shape[0], count * multiple, *view.shape[4:])
    return (from_channels_first(flat, layout),)


@meaning("conv_transpose")
def conv_transpose(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The transpose of a convolution in groups: each element adds to all that its window sees.

    Between the data, as around them, lies `border`.
    """
    data, kernel, groups = present(arrays), present(arrays, 1), integer(attrs, "groups")
    whole_numbers, zero = data.dtype.name in BYTES, border(attrs)
    strides, dilations = ints(attrs, "strides"), ints(attrs, "dilations")
    (batch, inner, *extents), (made, depth, *taps) = data.shape, kernel.shape
    wide = np.dtype(np.float64) if whole_numbers else data.dtype  # exact below 2**53
    rows = kernel.reshape(groups, made // groups, depth, prod(taps)).transpose(0, 1, 3, 2)
    rows = rows.reshape(groups, -1, depth).astype(wide)
    flat = data.reshape(batch, groups, inner // groups, prod(extents)).astype(wide)
    each = np.matmul(rows, flat - wide.type(zero)).reshape(batch, made, *taps, *extents)
    free = {**attrs, "pads": (0,) * (2 * len(taps))}
    whole = np.zeros((batch, made, *transposed_extents(extents, taps, free)), each.dtype)
    for tap in np.ndindex(*taps):
        places = (
            slice(t * d, t * d + (e - 1) * s + 1, s)
            for t, d, e, s in zip(tap, dilations, extents, strides, strict=True)
        )
        whole[(slice(None), slice(None), *places)] += each[(slice(None), slice(None), *tap)]
    result = pad_spatial(whole, tuple(-pad for pad in ints(attrs, "pads")))
    if not whole_numbers:
        return (result,)
    sides = [1] * len(taps)
    around = zero * kernel.reshape(made, -1).astype(np.float64).sum(axis=1).reshape(-1, *sides)
    return ((result + around).astype(np.int64).astype(np.int32),)


Unary = Callable[[Array, Attrs], Array]


def _with_digits(x: Array, digits: int) -> Array:
    """The nearest numbers of so many binary digits, halves to even."""
    fraction, exponent = np.frexp(x)
    return np.ldexp(np.rint(fraction * 2.0**digits) / 2.0**digits, exponent).astype(x.dtype)


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
    "round_to_float16": lambda x, _: x.astype(np.float16),
    "round_to_bfloat16": lambda x, _: x.astype(ml_dtypes.bfloat16),
    "round_to_tf32": lambda x, _: _with_digits(x, 11),
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


def _predicate(
    meaning: Callable[[Array], Array],
) -> Callable[[Sequence[Array | None], Attrs], tuple[Array, ...]]:
    return lambda arrays, _: (np.asarray(meaning(present(arrays))),)


for _name, _meaning in UNARY.items():
    meaning(_name)(_unary(_meaning))

for _name, _meaning in PREDICATES.items():
    meaning(_name)(_predicate(_meaning))


@meaning("cast")
def cast_elements(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The elements as another type (`to`), truncated toward zero for integers."""
    with np.errstate(invalid="ignore", over="ignore"):
        return (present(arrays).astype(str(attrs["to"])),)


@meaning("bitcast")
def bitcast(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The elements' bits as elements of another type (`to`) of the same size."""
    return (np.array(present(arrays)).view(str(attrs["to"])),)


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


for _name, _meaning in BINARY.items():
    meaning(_name)(_binary(_meaning))

for _name, _meaning in COMPARE.items():
    meaning(_name)(_compare(_meaning))

for _name, _meaning in LOGIC.items():
    meaning(_name)(_compare(_meaning))


@meaning("where")
def where(arrays: Sequence[Array | None], _: Attrs) -> tuple[Array, ...]:
    """The second input where the first is true, else the third."""
    return (np.where(present(arrays), present(arrays, 1), present(arrays, 2)),)


@meaning("max_pool2d")
def max_pool2d(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The largest element of each window; padding never wins."""
    layout = str(attrs["layout"])
    data = to_channels_first(present(arrays), layout)
    lowest = -np.inf if data.dtype.kind == "f" else np.iinfo(data.dtype).min
    padded = pad_spatial(data, ints(attrs, "pads"), lowest)
    view = windows(padded, ints(attrs, "kernel"), ints(attrs, "strides"), ints(attrs, "dilations"))
    return (from_channels_first(_over_taps(view, attrs, np.maximum), layout),)


@meaning("avg_pool2d")
def avg_pool2d(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The mean of each window over the elements that count."""
    layout, pads, counted = str(attrs["layout"]), ints(attrs, "pads"), ints(attrs, "counted")
    data = to_channels_first(present(arrays), layout)
    steps = ints(attrs, "kernel"), ints(attrs, "strides"), ints(attrs, "dilations")
    total = _over_taps(windows(pad_spatial(data, pads), *steps), attrs, np.add)
    ones = pad_spatial(np.ones((1, 1, *data.shape[2:]), data.dtype), counted, 1.0)
    rest = tuple(p - c for p, c in zip(pads, counted, strict=True))
    divisor = _over_taps(windows(pad_spatial(ones, rest), *steps), attrs, np.add)
    mean = (total / np.maximum(divisor, 1)).astype(data.dtype, copy=False)
    return (from_channels_first(mean, layout),)


meaning("max_pool3d")(max_pool2d)

meaning("avg_pool3d")(avg_pool2d)


@meaning("max_pool2d_index")
def max_pool2d_index(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """Where in its channel the first element of each window lies that equals the window's maximum.

    Inputs: the data, and the maxima of its windows. Positions count the last dimension first.
    """
    layout, pads = str(attrs["layout"]), ints(attrs, "pads")
    data, top = (to_channels_first(present(arrays, index), layout) for index in range(2))
    steps = ints(attrs, "kernel"), ints(attrs, "strides"), ints(attrs, "dilations")
    none = np.iinfo(np.int32).max
    numbers = np.arange(prod(data.shape[2:]), dtype=np.int32).reshape(1, 1, *data.shape[2:])
    places = windows(pad_spatial(numbers, pads, none), *steps)
    rank = len(steps[0])
    same = windows(pad_spatial(data, pads), *steps) == np.expand_dims(
        top, tuple(range(2, 2 + rank))
    )
    found = _over_taps(np.where(same, places, none), attrs, np.minimum)
    return (from_channels_first(found, layout),)


meaning("max_pool3d_index")(max_pool2d_index)


def _over_taps(view: Array, attrs: Attrs, combine: np.ufunc) -> Array:
    kernel = ints(attrs, "kernel")
    taps = [view[(slice(None), slice(None), *tap)] for tap in np.ndindex(*kernel)]
    total = taps[0].copy()
    for tap in taps[1:]:
        combine(total, tap, out=total)
    return total


@meaning("global_avg_pool")
def global_avg_pool(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The mean over all spatial positions, extents kept as 1."""
    data = present(arrays)
    return (data.mean(axis=_spatial_axes(data, attrs), keepdims=True, dtype=data.dtype),)


@meaning("global_max_pool")
def global_max_pool(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The largest element over all spatial positions, extents kept as 1."""
    data = present(arrays)
    return (data.max(axis=_spatial_axes(data, attrs), keepdims=True),)


def _spatial_axes(data: Array, attrs: Attrs) -> tuple[int, ...]:
    first = 2 if str(attrs["layout"]).startswith("NC") else 1
    return tuple(range(first, first + data.ndim - 2))


@meaning("softmax")
def softmax(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """exp(x - max) / sum over `axis`; NaN where all of it is -inf."""
    data, axis = present(arrays), integer(attrs, "axis")
    with np.errstate(invalid="ignore"):
        power = np.exp(data - data.max(axis=axis, keepdims=True))
        return (power / power.sum(axis=axis, keepdims=True),)


@meaning("attention")
def attention(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """softmax(scale * q k^T + bias) v; with `causal`, query i sees keys up to i + causal alone."""
    query, key, value = (present(arrays, n) for n in range(3))
    scores = query @ np.swapaxes(key, -1, -2) * query.dtype.type(number(attrs, "scale"))
    for bias in arrays[3:]:
        scores = scores + present([bias])
    if "causal" in attrs:
        seen = np.tri(*scores.shape[-2:], integer(attrs, "causal"), dtype=bool)
        scores = np.where(seen, scores, -np.inf).astype(scores.dtype)
    (weights,) = softmax([scores], {"axis": scores.ndim - 1})
    return (weights @ value,)


@meaning("log_softmax")
def log_softmax(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """x - max - log(sum of exp(x - max)) over `axis`; NaN where all of it is -inf."""
    data, axis = present(arrays), integer(attrs, "axis")
    with np.errstate(invalid="ignore"):
        shifted = data - data.max(axis=axis, keepdims=True)
        return (shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)),)


@meaning("standardise")
def standardise(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """(x - mean) / sqrt(mean of squares + epsilon) over `axes`; the mean only if `centred`."""
    data, axes = present(arrays), ints(attrs, "axes")
    if attrs["centred"]:
        data = data - data.mean(axis=axes, keepdims=True, dtype=data.dtype)
    square = np.square(data).mean(axis=axes, keepdims=True, dtype=data.dtype)
    return ((data / np.sqrt(square + number(attrs, "epsilon"))).astype(data.dtype, copy=False),)


@meaning("lrn")
def lrn(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """x / (bias + alpha / size * sum of squares of `size` neighbours along `axis`) ** beta."""
    data, size, axis = present(arrays), integer(attrs, "size"), integer(attrs, "axis")
    channels = data.shape[axis]
    before = (size - 1) // 2
    squares = np.moveaxis(np.square(data), axis, 0)
    padded = np.pad(squares, [(before, size - 1 - before)] + [(0, 0)] * (data.ndim - 1))
    total = np.zeros_like(squares)
    for tap in range(size):
        total += padded[tap : tap + channels]
    scale = number(attrs, "bias") + number(attrs, "alpha") / size * np.moveaxis(total, 0, axis)
    return ((data / scale ** number(attrs, "beta")).astype(data.dtype, copy=False),)


@meaning("batch_norm")
def batch_norm(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias; inputs x, scale, bias, mean, var."""
    data, axis = present(arrays), integer(attrs, "axis")
    shape = [1] * data.ndim
    shape[axis] = data.shape[axis]
    scale, bias, mean, variance = (present(arrays, i).reshape(shape) for i in range(1, 5))
    result = (data - mean) / np.sqrt(variance + number(attrs, "epsilon")) * scale + bias
    return (result.astype(data.dtype, copy=False),)


@meaning("transpose")
def transpose(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """Dimension d of the result is dimension perm[d] of the input."""
    return (np.ascontiguousarray(present(arrays).transpose(ints(attrs, "perm"))),)


@meaning("reshape")
def reshape(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The same elements in the same order under another shape."""
    return (present(arrays).reshape(ints(attrs, "shape")),)


@meaning("append")
def append(arrays: Sequence[Array | None], _: Attrs) -> tuple[Array, ...]:
    """What is new behind what was there, along the first axis."""
    return (np.concatenate([present(arrays), present(arrays, 1)]),)


@meaning("concat")
def concat(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The inputs side by side along `axis`."""
    parts = [present(arrays, index) for index in range(len(arrays))]
    return (np.concatenate(parts, axis=integer(attrs, "axis")),)


@meaning("pad")
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


@meaning("slice")
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


@meaning("gather")
def gather(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The input's slices along `axis` that the indices name; negative ones count from the end."""
    return (np.take(present(arrays), present(arrays, 1), axis=integer(attrs, "axis")),)


@meaning("broadcast_to")
def broadcast_to(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The input repeated along its extents of 1 until it has `shape`."""
    return (np.ascontiguousarray(np.broadcast_to(present(arrays), ints(attrs, "shape"))),)


@meaning("repeat")
def repeat(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """Each element as often as `repeats` says of the dimension, one beside the other."""
    data = present(arrays)
    for axis, times in enumerate(ints(attrs, "repeats")):
        data = np.repeat(data, times, axis) if times > 1 else data
    return (data,)


@meaning("extend")
def extend(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The data and, past its edges, the same again; pads = (begins..., ends...), `mode` says how.

    edge: the last element. reflect: mirrored at it. wrap: from the other side.
    """
    data, pads = present(arrays), ints(attrs, "pads")
    widths = list(zip(pads[: data.ndim], pads[data.ndim :], strict=True))
    mode = str(attrs["mode"])
    assert mode in ("edge", "reflect", "wrap")
    return (np.pad(data, widths, mode=mode),)


@meaning("resample")
def resample(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """Along each of `axes`, weighted sums of a few elements.

    Inputs: the data, then for each axis places int32 [n, taps] and weights [n, taps]; element i of
    the result is the sum over k of weights[i, k] * data[places[i, k]].
    """
    data = present(arrays)
    for position, axis in enumerate(ints(attrs, "axes")):
        places, weights = present(arrays, 1 + 2 * position), present(arrays, 2 + 2 * position)
        if "results" in attrs:
            made = ints(attrs, "results")[position]
            places, weights = places[:made], weights[:made]
        sides = [-1 if d == axis else 1 for d in range(data.ndim)]
        shape = (*data.shape[:axis], len(places), *data.shape[axis + 1 :])
        total = np.zeros(shape, data.dtype)
        for k in range(places.shape[1]):
            total += np.take(data, places[:, k], axis, mode="clip") * weights[:, k].reshape(sides)
        data = total
    return (data,)


@meaning("sample")
def sample(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """For each point, and in all channels, a weighted sum of a few positions.

    Inputs: data [n, c, positions] (axis 2) or [n, positions, c] (axis 1), places int32 and weights
    [n or 1, points, taps]. The points take the place of the positions.
    """
    data, places, weights = (present(arrays, index) for index in range(3))
    axis = integer(attrs, "axis")
    places = np.clip(places, 0, data.shape[axis] - 1)
    other = 3 - axis
    shape = [*data.shape]
    shape[axis] = places.shape[1]
    total = np.zeros(shape, data.dtype)
    for k in range(places.shape[2]):
        at = np.broadcast_to(np.expand_dims(places[:, :, k], other), shape)
        values = np.take_along_axis(data, at, axis)
        total += values * np.expand_dims(weights[:, :, k], other)
    return (total,)


@meaning("depth_to_space")
def depth_to_space(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """Channels become blocks of positions, of which `extents` are left from `begins` on.

    Channels are (group, position in the block, channel of the group): one group is the order that
    ONNX calls DCR, a group for each resulting channel is CRD.
    """
    layout, blocks, groups = str(attrs["layout"]), ints(attrs, "blocks"), integer(attrs, "groups")
    data = to_channels_first(present(arrays), layout)
    batch, packed, *extents = data.shape
    rank, each = len(blocks), packed // (prod(blocks) * groups)
    parts = data.reshape(batch, groups, *blocks, each, *extents)
    pairs = [axis for d in range(rank) for axis in (3 + rank + d, 2 + d)]
    moved = parts.transpose(0, 1, 2 + rank, *pairs)
    whole = moved.reshape(
        batch, groups * each, *(e * b for e, b in zip(extents, blocks, strict=True))
    )
    kept = tuple(
        slice(begin, begin + count)
        for begin, count in zip(ints(attrs, "begins"), ints(attrs, "extents"), strict=True)
    )
    result = np.ascontiguousarray(whole[(slice(None), slice(None), *kept)])
    return (from_channels_first(result, layout),)


@meaning("gather_elements")
def gather_elements(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The element that each index names along `axis`, in its own line; negative from the end."""
    data, indices = present(arrays), present(arrays, 1)
    return (host_numpy.gather_elements(data, indices, integer(attrs, "axis")),)


@meaning("last_writers")
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


@meaning("write_rows")
def write_rows(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The data with each place's row combined with its writer's, where it has one (from 0 on)."""
    data, updates, writers = present(arrays), present(arrays, 1), present(arrays, 2)
    rows = np.take_along_axis(updates, np.maximum(writers, 0)[..., None], axis=1)
    changed = COMBINE[str(attrs["reduction"])](data, rows)
    return (np.where((writers >= 0)[..., None], changed, data),)


@meaning("fold_rows")
def fold_rows(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The data with each place's row combined with all updates whose position names it."""
    data, positions, updates = present(arrays), present(arrays, 1), present(arrays, 2)
    combine, result = COMBINE[str(attrs["reduction"])], data.copy()
    batches, numbers = np.nonzero((positions >= 0) & (positions < data.shape[1]))
    assert isinstance(combine, np.ufunc)
    combine.at(result, (batches, positions[batches, numbers]), updates[batches, numbers])
    return (result,)


@meaning("requantize")
def requantize(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """Inputs x, pre, offset and, if there is one, the multiplier."""
    x, pre, offset, *multiplier = (present(arrays, i) for i in range(len(arrays)))
    near = np.clip(x >> pre, -LIMIT, LIMIT - 1)
    for factor in multiplier:
        near = near * factor
    return (_limited((near + offset) >> np.int32(integer(attrs, "shift")), attrs),)


@meaning("add_codes")
def add_codes(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """Inputs a, b, multiplier_a, multiplier_b, offset."""
    a, b, of_a, of_b, offset = (present(arrays, i) for i in range(len(arrays)))
    whole = a.astype(np.int32) * of_a + b.astype(np.int32) * of_b + offset
    return (_limited(whole >> np.int32(integer(attrs, "shift")), attrs),)


@meaning("lookup_codes")
def lookup_codes(arrays: Sequence[Array | None], _: Attrs) -> tuple[Array, ...]:
    """The table's element for each code."""
    codes, table = present(arrays), present(arrays, 1)
    return (table[codes.astype(np.int32) - np.iinfo(codes.dtype).min],)


def _limited(whole: Array, attrs: Attrs) -> Array:
    return np.clip(whole, number(attrs, "min"), number(attrs, "max")).astype(str(attrs["to"]))


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
    meaning(_name)(_extreme(_find))


@meaning("top_indices")
def top_indices(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """Where the `count` largest (or smallest) elements are, in order; the first of equal ones."""
    data, axis, count = present(arrays), integer(attrs, "axis"), integer(attrs, "count")
    return (top_positions(data, count, axis, largest=bool(attrs["largest"])),)


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
    meaning(_name)(_cumulative(_combine, _neutral))

REDUCTIONS: dict[str, Callable[..., Array]] = {
    "reduce_mean": np.mean,
    "reduce_sum": np.sum,
    "reduce_prod": np.prod,
    "reduce_max": np.max,
    "reduce_min": np.min,
}

"""Name -> numpy function. A mean of integers is rounded toward zero."""


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
    if dtype.kind in "fb":
        return limit if dtype.kind == "f" else limit > 0
    limits = np.iinfo(dtype)
    return limits.max if limit > 0 else limits.min


for _name in REDUCTIONS:
    meaning(_name)(_reduce(_name))


@meaning("pack_blocks")
def pack_blocks(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """Images in the layout of the attribute, in blocks of `batch` images and `block` channels."""
    data = to_channels_first(present(arrays), str(attrs["layout"]))
    return (in_blocks(data, integer(attrs, "batch"), integer(attrs, "block")),)


def in_blocks(data: Array, batch: int, block: int) -> Array:
    """[N, C, H, W] as [N/batch, C/block, H, W, batch, block]; missing channels are zero."""
    missing = -data.shape[1] % block
    whole = np.pad(data, ((0, 0), (0, missing), (0, 0), (0, 0)))
    n, c, h, w = whole.shape
    parts = whole.reshape(n // batch, batch, c // block, block, h, w)
    return np.ascontiguousarray(parts.transpose(0, 2, 4, 5, 1, 3))


@meaning("unpack_blocks")
def unpack_blocks(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The first `channels` channels of images in blocks, in the layout of the attribute."""
    data, count = present(arrays), integer(attrs, "channels")
    return (from_channels_first(out_of_blocks(data)[:, :count], str(attrs["layout"])),)


def out_of_blocks(data: Array) -> Array:
    """[N/b, C/c, H, W, b, c] as [N, C, H, W], and a weight as [O, I, KH, KW]."""
    n, c, h, w, batch, block = data.shape
    return data.transpose(0, 4, 1, 5, 2, 3).reshape(n * batch, c * block, h, w)


def _codes(codes: Array, bits: int) -> Array:
    """The numbers in the bytes, read bit by bit, the lowest ones first."""
    digits = np.unpackbits(codes[..., None], axis=-1, bitorder="little")
    apart = digits.reshape(*codes.shape[:-1], -1, bits).astype(np.int64)
    return (apart * 2 ** np.arange(bits)).sum(-1)


@meaning("dense_blocks")
def dense_blocks(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """Rows times packed codes less zero points times scales, summed in float64."""
    data, words, scale = (present(arrays, index) for index in range(3))
    bits, blocks = integer(attrs, "bits"), scale.shape[1]
    zero = present(arrays, 3) if len(arrays) > 3 else np.full(scale.shape, 1 << (bits - 1))
    mixed = _codes(np.ascontiguousarray(words).view(np.uint8), bits)
    mixed = mixed.reshape(*words.shape, 4, 8 // bits).swapaxes(-1, -2)
    weight = mixed.reshape(*scale.shape, -1) - zero[..., None].astype(np.float64)
    whole = (weight * scale[..., None]).reshape(len(words), -1)
    rows = data.astype(np.float64).reshape(len(data), blocks, -1)
    if attrs.get("rows") == "int8":
        step = np.maximum(np.abs(rows).max(-1, keepdims=True), 1e-30) / 127
        rows = np.rint(rows / step) * step
    return (np.einsum("nk,mk->nm", rows.reshape(data.shape), whole).astype(data.dtype),)


@meaning("gather_blocks")
def gather_blocks(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """Slices of a table of codes, one after the other."""
    codes, indices, scale, zero = (present(arrays, index) for index in range(4))
    axis, along = integer(attrs, "axis"), integer(attrs, "along")
    whole = _codes(codes, integer(attrs, "bits"))
    spread = [
        np.repeat(a, integer(attrs, "block"), along).take(range(whole.shape[along]), along)
        for a in (scale, zero.astype(scale.dtype))
    ]
    table = np.moveaxis((whole.astype(scale.dtype) - spread[1]) * spread[0], axis, 0)
    nothing = np.zeros_like(table[0])
    slices = [
        table[int(k)] if -len(table) <= k < len(table) else nothing for k in indices.reshape(-1)
    ]
    found = np.stack(slices).reshape(*indices.shape, *table.shape[1:])
    order = list(range(indices.ndim, found.ndim))
    order[axis:axis] = range(indices.ndim)
    return (found.transpose(order),)


@meaning("rotate")
def rotate(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """Pairs as complex numbers, times the number of the angle."""
    data, cos, sin = (present(arrays, index).astype(np.float64) for index in range(3))
    axis = integer(attrs, "axis")
    first, second = (data.take([part], axis) for part in (0, 1))
    turned = (first + 1j * second) * (cos + 1j * sin)
    made = np.concatenate((turned.real, turned.imag), axis)
    return (made.astype(present(arrays).dtype),)


@meaning("tree_leaves")
def tree_leaves(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The node where each row ends in each tree, one step after the other."""
    data, splits, limits, children, roots = (present(arrays, index) for index in range(5))
    found = np.empty((len(data), len(roots)), np.int32)
    for row, values in enumerate(data):
        for tree, root in enumerate(roots):
            node = root
            for _ in range(integer(attrs, "depth")):
                feature, bits = divmod(int(splits[node]), 4)
                value, limit = values[feature], limits[node]
                strict, missing = (bool(integer(attrs, "flags") & bits & bit) for bit in (1, 2))
                less = value < limit if strict else value <= limit
                node = children[node, 0 if less or (missing and np.isnan(value)) else 1]
            found[row, tree] = node
    return (found,)


@meaning("tree_keys")
def tree_keys(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """Integers in the order of the data, as words of 32 bits."""
    data = present(arrays)
    kind = np.int32 if data.dtype == np.float32 else np.int64
    bits, limits = (data + 0.0).view(kind).astype(object), np.iinfo(kind)
    keys = np.where(bits < 0, -(bits & limits.max) - 1, bits)
    sides = [limits.max, limits.min][: 1 + integer(attrs, "missing")]
    keys = np.concatenate([np.where(np.isnan(data), side, keys) for side in sides], 1)
    words = [keys] if kind == np.int32 else [keys >> 32, (keys & 0xFFFFFFFF) - 2**31]
    found = np.stack(words).astype(np.int32)
    return (found.swapaxes(1, 2) if integer(attrs, "columns") else found,)


@meaning("tree_exits")
def tree_exits(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The first leaf of each tree that no node rules out, by rows, trees and nodes."""
    keys, features, limits, masks = (present(arrays, index) for index in range(4))
    keys = keys.swapaxes(1, 2) if integer(attrs, "columns") else keys
    parts = integer(attrs, "parts")
    found = np.empty((keys.shape[1], features.shape[1] // parts), np.int32)
    for row, tree in np.ndindex(*found.shape):
        bits = ""
        for part in range(tree * parts, tree * parts + parts):
            left = 0xFFFFFFFF
            for node, feature in enumerate(features[:, part]):
                if tuple(keys[:, row, feature]) > tuple(limits[:, node, part]):
                    left &= int(masks[node, part])
            bits += f"{left:032b}"
        first = bits.find("1")
        found[row, tree] = np.iinfo(np.int32).max if first < 0 else 32 * tree * parts + first
    return (found.T if integer(attrs, "columns") else found,)


@meaning("leaf_sums")
def leaf_sums(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The weights of each row's leaves, combined in each group."""
    leaves, weights = present(arrays), present(arrays, 1)
    leaves = leaves.transpose(2, 0, 1) if attrs.get("columns") else leaves
    combine = {"sum": np.sum, "min": np.min, "max": np.max}[str(attrs["reducer"])]
    made = combine(weights[leaves], axis=2)
    return (made.reshape(len(leaves), -1).astype(weights.dtype),)


@meaning("resize_along")
def _resize_along(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    data, axis, made = present(arrays), integer(attrs, "axis"), integer(attrs, "made")
    extent, i, mode = data.shape[axis], np.arange(made, dtype=np.float32), attrs["coordinates"]
    scale = np.float32(number(attrs, "scale") or made / extent)
    x = {
        "asymmetric": i / scale,
        "half_pixel": (i + np.float32(0.5)) / scale - np.float32(0.5),
        "align_corners": i * np.float32(extent - 1) / np.float32(max(made - 1, 1)),
    }[str(mode)]
    if attrs["mode"] == "nearest":
        rounded = {"floor": np.floor(x), "round_prefer_floor": np.ceil(x - np.float32(0.5))}
        return (np.take(data, rounded[str(attrs["rounding"])].astype(int), axis, mode="clip"),)
    below = np.floor(x).astype(int)
    share = (x - below).reshape([-1 if d == axis else 1 for d in range(data.ndim)])
    low, high = (np.take(data, places, axis, mode="clip") for places in (below, below + 1))
    return ((low * (1 - share) + high * share).astype(data.dtype),)


@meaning("extents")
def _extents(_: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    return (np.array(attrs["values"], str(attrs["to"])).reshape(ints(attrs, "shape")),)


@meaning("positions")
def _positions(_: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    places = np.moveaxis(np.indices(ints(attrs, "shape")), 0, -1)
    return ((integer(attrs, "begin") + places @ ints(attrs, "steps")).astype(str(attrs["to"])),)

"""Integers that stand for numbers, and rescaling of one scale to another without floats.

Read `QuantParams` and `rescaled` first. A real number is (quantized value - zero) * scale. Sums are
rescaled by the op `requantize`, and two quantized values are added by `add_codes`: multiplications
of 16 bits and shifts, whose offset rounds halves up and adds the zero point. No multiplier is
needed where all factors are powers of two: then shifts do it alone. All of it consists of ops of
the graph, whose meanings in numpy and on devices are exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import frexp, ldexp

import numpy as np

from retune.core.dtypes import FLOAT32, INT8, INT32, UINT8, DType
from retune.core.errors import ModelError
from retune.graph.graph import GraphBuilder
from retune.graph.quantize.calibrate import ValueRange
from retune.graph.quantize.settings import QuantizeSettings
from retune.ops import Array, AttrValue

_FACTOR_BITS = 15
"""Of multipliers."""
_SHIFT = 21
"""The last shift at most: 2**15 times the least multiplier of 15 bits, shifted so, is 256."""
_MOST_SHIFT = 31
_MOST_OFFSET = 2**30
_MOST_BIAS = 2**30
"""Largest magnitude of a quantized bias; scales of weights are chosen to keep within it."""
_SUM_BITS, _CODE_BITS = 29, 8
"""Of sums of quantized values, and of one without its zero point."""
_REMEDY = "quantize it again with ranges nearer to each other, or leave it in floats"


class ScaleError(ModelError):
    """The scale of a result is too far from those of the values that it is made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantParams:
    """Quantization parameters: a real number is (quantized value - zero) * scale."""

    scale: float
    zero: int
    dtype: DType

    @property
    def limits(self) -> tuple[int, int]:
        """The smallest and the largest quantized value."""
        return int(np.iinfo(self.dtype).min), int(np.iinfo(self.dtype).max)

    def quantize(self, number: float) -> int:
        """The quantized value nearest to the number."""
        low, high = self.limits
        return int(np.clip(np.rint(number / self.scale) + self.zero, low, high))


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """Weights as (values - rest) * scale."""

    values: Array
    """int8"""
    scales: Array
    """Of each output channel. float64 [channels]"""
    rest: Array = field(default_factory=lambda: np.zeros((), np.int32))
    """Of each output channel, or 0: what a zero point leaves that no eight bits with a sign have.
    int32 [channels] or []"""

    @property
    def whole(self) -> Array:
        """The values less the rest. int32"""
        return self.values - self.rest.reshape(-1, *[1] * (self.values.ndim - 1))


def signed_bytes(values: Array, zero: Array) -> tuple[Array, Array]:
    """Eight-bit values less a zero point that broadcasts with them, as int8 and what is left to
    subtract: 0 where they are bytes. int32, of the zero point's shape"""
    whole = values.astype(np.int32) - zero.astype(np.int32)
    if whole.min() >= -128 and whole.max() <= 127:
        return whole.astype(np.int8), np.zeros((), np.int32)
    shift = np.int32(128 if values.dtype == np.uint8 else 0)
    return (values.astype(np.int32) - shift).astype(np.int8), zero.astype(np.int32) - shift


def params_of(entry: ValueRange, settings: QuantizeSettings) -> QuantParams:
    """The quantization of the range in the settings' type and scheme."""
    magnitude = entry.magnitude or 1.0
    if settings.scheme == "power2":
        return QuantParams(scale=float(_power2(np.asarray(magnitude))), zero=0, dtype=INT8)
    if settings.activations == INT8:
        return QuantParams(scale=magnitude / 127, zero=0, dtype=INT8)
    scale = (entry.high - entry.low or 1.0) / 255
    return QuantParams(scale=scale, zero=int(np.rint(-entry.low / scale)), dtype=UINT8)


def quantized_weight(weight: Array, settings: QuantizeSettings, least: Array) -> QuantizedWeight:
    """The weight in as many bits as the settings say.

    Scales are no less than `least`, of one element or one for each channel.
    """
    axes = tuple(range(1 if settings.weights == "channel" else 0, weight.ndim))
    magnitude = np.abs(weight.astype(np.float64)).max(axis=axes, keepdims=True)
    magnitude = np.where(magnitude > 0, magnitude, 1.0)
    column = (-1, *[1] * (weight.ndim - 1))
    needed = least if settings.weights == "channel" else np.max(least)
    most = settings.most_weight
    magnitude = np.maximum(magnitude, most * np.reshape(needed, column))
    scale = _power2(magnitude, most + 1) if settings.scheme == "power2" else magnitude / most
    values = np.clip(np.rint(weight / scale), -most, most).astype(np.int8)
    return QuantizedWeight(values, np.broadcast_to(scale.reshape(-1), weight.shape[:1]))


def layer_weight(
    weight: Array, bias: Array, params: QuantParams, settings: QuantizeSettings
) -> QuantizedWeight:
    """The weight of a layer that reads values of this quantization; its bias is int32 beside it."""
    least = np.abs(bias).reshape(-1) / (params.scale * _MOST_BIAS)
    return quantized_weight(weight, settings, least=least)


def quantized_bias(bias: Array, scale: Array) -> Array:
    """A bias in whole numbers of the sums' scale, which broadcast. float64"""
    return np.rint(bias.astype(np.float64) / scale)


def _power2(magnitude: Array, steps: int = 128) -> Array:
    """The scale of so many steps up to the first power of two that is not smaller."""
    return np.exp2(np.ceil(np.log2(magnitude))) / steps


def quantized(build: GraphBuilder, value: str, params: QuantParams) -> str:
    """A value of float32, quantized: halves to even, as QuantizeLinear has it."""
    scale = build.constant(f"{value}.scale", np.asarray(params.scale, np.float32))
    zero = build.constant(f"{value}.zero", np.asarray(params.zero, np.float32))
    rounded = build.add("round", (build.add("quotient", (value, scale)),))
    return _limited(build, build.add("add", (rounded, zero)), params, params.limits)


def centred(build: GraphBuilder, value: str, params: QuantParams) -> str:
    """The quantized value less its zero point, as int32."""
    wide = build.add("cast", (value,), {"to": INT32})
    if not params.zero:
        return wide
    zero = build.constant(f"{value}.zero", np.asarray(params.zero, np.int32))
    return build.add("subtract", (wide, zero))


def retyped(build: GraphBuilder, value: str, dtype: DType) -> str:
    """Eight bits as those of the other type, each at the same distance from the least."""
    own = build.types[value].dtype
    if own == dtype:
        return value
    shift = int(np.iinfo(dtype).min) - int(np.iinfo(own).min)
    wide = build.add("cast", (value,), {"to": INT32})
    less = build.constant(f"{value}.shift", np.asarray(shift, np.int32))
    return build.add("cast", (build.add("add", (wide, less)),), {"to": dtype})


def dequantized(build: GraphBuilder, value: str, scale: Array) -> str:
    """The numbers that integers without a zero point stand for, as float32."""
    factor = build.constant(f"{value}.scale", np.asarray(scale, np.float32))
    return build.add("multiply", (build.add("cast", (value,), {"to": FLOAT32}), factor))


def rescaled(
    build: GraphBuilder,
    value: str,
    scale: Array,
    params: QuantParams,
    limits: tuple[int, int],
    bias: Array | float = 0.0,
) -> str:
    """int32 values times a scale, plus a bias, quantized within the limits.

    Both may be one number for each channel. Raises: ScaleError if a scale is too far from that of
    the quantized values, and there is a bias.
    """
    factors = np.asarray(scale / params.scale)
    if not np.any(bias):  # by as much, every sum but 0 is beyond the limits
        factors = np.minimum(factors, 2 ** (_FACTOR_BITS - 1))
    found = fixed_point(factors)
    shifted = np.rint(np.ldexp(np.asarray(bias, np.float64) / params.scale, found.shift))
    offset = (params.zero << found.shift) + (1 << found.shift >> 1)
    if found.multiplier is not None:  # what `pre` cuts off is half of one on average
        # One number for all channels, whose multipliers have as many bits: kernels read no more.
        offset += int(np.mean(np.where(found.pre > 0, found.multiplier >> 1, 0)))
    offset = np.clip(shifted + offset, -_MOST_OFFSET, _MOST_OFFSET)
    operands = (_int32(build, f"{value}.{name}", a) for name, a in found.operands(offset))
    attrs = _limiting(found.shift, params, limits) | _bits(found.multiplier)
    return build.add("requantize", (value, *operands), attrs)


def added(
    build: GraphBuilder,
    terms: Sequence[tuple[str, QuantParams]],
    params: QuantParams,
    limits: tuple[int, int],
) -> str:
    """The sum of two quantized values, quantized within the limits.

    Raises: ScaleError if their scales are too far from that of the sum.
    """
    multipliers, shift = common_point([c.scale / params.scale for _, c in terms])
    zeros = sum(c.zero * m for (_, c), m in zip(terms, multipliers, strict=True))
    offset = (params.zero << shift) + (1 << shift >> 1) - zeros
    (a, _), (b, _) = terms
    operands = (
        a,
        b,
        *(_int32(build, f"{b}.{n}", np.asarray(m)) for n, m in zip("ab", multipliers, strict=True)),
        _int32(build, f"{b}.offset", np.asarray(offset)),
    )
    attrs = _limiting(shift, params, limits) | _bits(np.asarray(multipliers))
    return build.add("add_codes", operands, attrs)


def _bits(multiplier: Array | None) -> dict[str, AttrValue]:
    """What the ops may say of multipliers; nothing of those with a sign."""
    short = multiplier is not None and multiplier.min() >= 0
    return {"bits": _FACTOR_BITS} if short else {}


def _limiting(shift: int, params: QuantParams, limits: tuple[int, int]) -> dict[str, AttrValue]:
    low, high = limits
    return {"shift": shift, "min": low, "max": high, "to": params.dtype}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescale:
    """A factor as `requantize` has it: multiplier / 2**(pre + shift)."""

    pre: Array
    multiplier: Array | None
    """None where it is one."""
    shift: int

    def operands(self, offset: Array) -> list[tuple[str, Array]]:
        """Those of `requantize` after the value, with their names."""
        found = [("pre", self.pre), ("offset", offset)]
        return found if self.multiplier is None else [*found, ("multiplier", self.multiplier)]


def fixed_point(factors: Array) -> Rescale:
    """The factors to 15 bits; sums that are still in 16 bits after `pre` reach all results.

    Raises: ScaleError for a factor of 2**15 or more.
    """
    mantissas, exponents = np.frexp(factors)
    rounded = np.rint(np.ldexp(mantissas, _FACTOR_BITS))
    exponents = exponents + (np.abs(rounded) == 1 << _FACTOR_BITS)  # one more bit, by rounding
    shift = min(_SHIFT, _FACTOR_BITS - int(np.max(exponents)))
    if shift < 0:
        raise ScaleError(
            f"the scale of sums over that of their result: expected less than 2**{_FACTOR_BITS}, "
            f"got {np.max(factors):.3g}; {_REMEDY}"
        )
    pre = np.clip(_FACTOR_BITS - exponents - shift, 0, _MOST_SHIFT)
    multiplier = np.rint(np.ldexp(factors, pre + shift)).astype(np.int64)
    while shift and not np.any(multiplier & 1):
        multiplier, shift = multiplier >> 1, shift - 1
    return Rescale(pre=pre, multiplier=None if np.all(multiplier == 1) else multiplier, shift=shift)


def common_point(factors: Sequence[float]) -> tuple[list[int], int]:
    """Integers and a shift s with integer / 2**s near each factor, in lowest terms.

    The integers have 15 bits at most: each is right to 2**-15 of the sum of the factors.
    Raises: ScaleError for factors that leave no bit for themselves.
    """
    _, exponent = frexp(sum(factors))
    shift = min(_FACTOR_BITS - exponent, _SHIFT)
    found = [round(ldexp(factor, shift)) for factor in factors]
    if max(found) == 1 << _FACTOR_BITS:  # one more bit, by rounding
        shift -= 1
        found = [round(ldexp(factor, shift)) for factor in factors]
    if shift < 0:
        times = ", ".join(f"{factor:.3g}" for factor in factors)
        raise ScaleError(
            f"expected a scale near those of what is added, got one that these are {times} times "
            f"of; {_REMEDY}"
        )
    while shift and not any(m & 1 for m in found):
        found, shift = [m >> 1 for m in found], shift - 1
    return found, shift


def whole_weights(weights: Sequence[Array]) -> tuple[list[Array], int] | None:
    """The weights of each axis times powers of two that make them whole, and the sum of exponents.

    int32; None if there are no such powers with which sums of quantized values stay within 29 bits.
    """
    found: list[Array] = []
    total, reach = 0, 1.0
    for array in weights:
        exact = array.astype(np.float64)
        fits = (n for n in range(_SUM_BITS - _CODE_BITS) if not np.any(np.ldexp(exact, n) % 1))
        shift = next(fits, None)
        if shift is None:
            return None
        found.append(np.ldexp(exact, shift).astype(np.int32))
        total += shift
        reach *= float(np.abs(found[-1]).sum(axis=-1).max())
    return (found, total) if reach <= 2 ** (_SUM_BITS - _CODE_BITS) else None


def _int32(build: GraphBuilder, name: str, array: Array) -> str:
    return build.constant(name, array.astype(np.int32))


def _limited(build: GraphBuilder, value: str, params: QuantParams, limits: tuple[int, int]) -> str:
    low, high = limits
    inside = build.add("clip", (value,), {"min": float(low), "max": float(high)})
    return build.add("cast", (inside,), {"to": params.dtype})

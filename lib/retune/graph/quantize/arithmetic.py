"""Integers that stand for numbers, and rescaling of one scale to another without floats.

Read `Codes` and `rescaled` first. A number is (code - zero) * scale. Sums are rescaled by

    (sum_i terms_i * multipliers_i + offset) >> shift

where the offset rounds halves up and adds the zero point; then they are limited. Multipliers have
31 bits at most, and none is needed where all factors are powers of two: then shifts do it alone.
All of it consists of ops of the graph, whose meanings in numpy and on devices are exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from retune.core.errors import ModelError
from retune.graph.graph import GraphBuilder
from retune.graph.ops import Array
from retune.graph.quantize.calibrate import Range
from retune.graph.quantize.settings import QuantizeSettings

_MULTIPLIER_BITS = 31
_MOST_SHIFT = 48
"""Offsets stay far within 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Codes:
    """How eight bits stand for numbers."""

    scale: float
    zero: int
    dtype: str

    @property
    def limits(self) -> tuple[int, int]:
        """The smallest and the largest code."""
        return int(np.iinfo(self.dtype).min), int(np.iinfo(self.dtype).max)

    def code(self, number: float) -> int:
        """The code nearest to the number."""
        low, high = self.limits
        return int(np.clip(np.rint(number / self.scale) + self.zero, low, high))


def codes_of(entry: Range, settings: QuantizeSettings) -> Codes:
    """Codes of the range in the settings' type and scheme."""
    magnitude = entry.magnitude or 1.0
    if settings.scheme == "power2":
        return Codes(scale=float(_power2(np.asarray(magnitude))), zero=0, dtype="int8")
    if settings.activations == "int8":
        return Codes(scale=magnitude / 127, zero=0, dtype="int8")
    scale = (entry.high - entry.low or 1.0) / 255
    return Codes(scale=scale, zero=int(np.rint(-entry.low / scale)), dtype="uint8")


def coded_weight(weight: Array, settings: QuantizeSettings) -> tuple[Array, Array]:
    """The weight in int8 without a zero point, and the scales of its output channels."""
    axes = tuple(range(1 if settings.weights == "channel" else 0, weight.ndim))
    magnitude = np.abs(weight.astype(np.float64)).max(axis=axes, keepdims=True)
    magnitude = np.where(magnitude > 0, magnitude, 1.0)
    scale = _power2(magnitude) if settings.scheme == "power2" else magnitude / 127
    codes = np.clip(np.rint(weight / scale), -127, 127).astype(np.int8)
    return codes, np.broadcast_to(scale.reshape(-1), weight.shape[:1])


def _power2(magnitude: Array) -> Array:
    """The scale of 128 codes up to the first power of two that is not smaller."""
    return np.exp2(np.ceil(np.log2(magnitude))) / 128


def quantized(build: GraphBuilder, value: str, codes: Codes) -> str:
    """The codes of a value of float32: halves to even, as QuantizeLinear has it."""
    scale = build.constant(f"{value}.scale", np.asarray(codes.scale, np.float32))
    zero = build.constant(f"{value}.zero", np.asarray(codes.zero, np.float32))
    rounded = build.add("round", (build.add("quotient", (value, scale)),))
    return _limited(build, build.add("add", (rounded, zero)), codes, codes.limits)


def centred(build: GraphBuilder, value: str, codes: Codes) -> str:
    """The codes less their zero point, as int32."""
    wide = build.add("cast", (value,), {"to": "int32"})
    if not codes.zero:
        return wide
    zero = build.constant(f"{value}.zero", np.asarray(codes.zero, np.int32))
    return build.add("subtract", (wide, zero))


def dequantized(build: GraphBuilder, value: str, scale: Array) -> str:
    """The numbers that integers without a zero point stand for, as float32."""
    factor = build.constant(f"{value}.scale", np.asarray(scale, np.float32))
    return build.add("multiply", (build.add("cast", (value,), {"to": "float32"}), factor))


def rescaled(
    build: GraphBuilder,
    terms: Sequence[tuple[str, Array]],
    codes: Codes,
    limits: tuple[int, int],
) -> str:
    """The codes, within the limits, of the sum of int32 values, each times its scale.

    Raises: ModelError if a scale is too far from that of the codes.
    """
    multipliers, shift = fixed_point([scale / codes.scale for _, scale in terms])
    plain = not codes.zero and len(terms) == 1 and not any(np.any(m != 1) for m in multipliers)
    dtype = "int32" if plain else "int64"
    total = ""
    for (value, _), multiplier in zip(terms, multipliers, strict=True):
        term = value if plain else build.add("cast", (value,), {"to": dtype})
        if np.any(multiplier != 1):
            factor = build.constant(f"{value}.multiplier", multiplier)
            term = build.add("multiply", (term, factor))
        total = build.add("add", (total, term)) if total else term
    offset = (codes.zero << shift) + (1 << shift >> 1)
    if offset:
        total = build.add("add", (total, build.constant("offset", np.asarray(offset, dtype))))
    if shift:
        bits = build.constant("shift", np.asarray(shift, dtype))
        total = build.add("shift_right", (total, bits))
    return _limited(build, total, codes, limits)


def fixed_point(factors: Sequence[Array]) -> tuple[list[Array], int]:
    """Integers and a shift s with integer / 2**s near each factor, in lowest terms."""
    largest = max(float(np.max(factor)) for factor in factors)
    shift = min(_MULTIPLIER_BITS - int(np.frexp(largest)[1]), _MOST_SHIFT)
    if shift < 0:
        raise ModelError(f"rescaling by {largest}: expected less than 2**{_MULTIPLIER_BITS}")
    found = [np.rint(np.asarray(f) * 2.0**shift).astype(np.int64) for f in factors]
    found = [np.minimum(m, 2**_MULTIPLIER_BITS - 1) for m in found]
    while shift and not any(np.any(m & 1) for m in found):
        found, shift = [m >> 1 for m in found], shift - 1
    return found, shift


def _limited(build: GraphBuilder, value: str, codes: Codes, limits: tuple[int, int]) -> str:
    low, high = limits
    inside = build.add("clip", (value,), {"min": float(low), "max": float(high)})
    return build.add("cast", (inside,), {"to": codes.dtype})

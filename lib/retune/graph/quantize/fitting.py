"""Settings that a device leaves no doubt about."""

from dataclasses import replace

from retune.core.dtypes import INT7, INT8, UINT8, DType
from retune.core.target import DeviceSpec
from retune.graph.quantize.settings import QuantizeSettings, WeightBits
from retune.intrinsics import Implementation, Signature
from retune.intrinsics.dot4 import DOT4


def fitted(settings: QuantizeSettings, spec: DeviceSpec) -> QuantizeSettings:
    """The settings with activations, and bits of weights, as they say or else as the device is best
    at.

    Activations are `int8` where it multiplies signed bytes alone by an instruction. Weights have 7
    bits where it computes products with those in less time than with 8.
    """
    if settings.activations is None:
        signed = _is_plain(UINT8, spec) and not _is_plain(INT8, spec)
        settings = replace(settings, activations="int8" if signed else "uint8")
    if settings.weight_bits is not None:
        return settings
    faster = _slots(settings, INT7, spec) < _slots(settings, INT8, spec)
    bits: WeightBits = 7 if faster else 8
    return replace(settings, weight_bits=bits)


def _is_plain(activations: str, spec: DeviceSpec) -> bool:
    """Whether the device has no instruction for products of such bytes."""
    return _best(activations, INT8, spec) is DOT4.implementations[-1]


def _slots(settings: QuantizeSettings, weight: str, spec: DeviceSpec) -> float:
    """Time of one instruction on whole vectors, with what its operands need."""
    best = _best(settings.activations or UINT8, weight, spec)
    return best.slots + best.first_slots + best.second_slots


def _best(activations: str, weight: str, spec: DeviceSpec) -> Implementation:
    signature = Signature((DType(activations), DType(weight)), max(1, spec.lanes_f32))
    return DOT4.implementation(signature, spec.instructions)

"""Settings that a device leaves no doubt about."""

from dataclasses import replace

from retune.core.target import DeviceSpec
from retune.graph.quantize.settings import QuantizeSettings, WeightBits
from retune.instructions import Shape
from retune.instructions.dot4 import DOT4


def fitted(settings: QuantizeSettings, spec: DeviceSpec) -> QuantizeSettings:
    """The settings with as many bits of weights as they say, or else as the device is best at.

    That is 7 where it computes products with such weights in less time than with those of 8.
    """
    if settings.weight_bits is not None:
        return settings
    faster = _slots(settings, "int7", spec) < _slots(settings, "int8", spec)
    bits: WeightBits = 7 if faster else 8
    return replace(settings, weight_bits=bits)


def _slots(settings: QuantizeSettings, weight: str, spec: DeviceSpec) -> float:
    """Time of one instruction on whole vectors, with what its operands need."""
    shape = Shape((settings.activations, weight), max(1, spec.lanes_f32))
    way = DOT4.way(shape, spec.instructions)
    return way.slots + way.first_slots + way.second_slots

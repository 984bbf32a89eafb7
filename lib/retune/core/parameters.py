"""Parameters of a device that a user or a profile gives instead of what a driver says.

Read `with_parameters`. A device with some has a name of its own, `pocl?max_local_bytes=32768`, so
that all processes that open it by its name have the same limits.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from retune.core.errors import InputError
from retune.core.target import DeviceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceParameter:
    """A number of a DeviceSpec that may be given."""

    field: str
    """The field of DeviceSpec."""
    least: int
    most: int
    meaning: str


_BYTES = 1 << 50

PARAMETERS: Mapping[str, DeviceParameter] = {
    "compute_units": DeviceParameter(
        field="compute_units", least=1, most=1 << 16, meaning="units that run work-groups"
    ),
    "vector_bits": DeviceParameter(
        field="vector_bits", least=0, most=1 << 14, meaning="widest vector of a core; 0: unknown"
    ),
    "datapath_bits": DeviceParameter(
        field="datapath_bits", least=0, most=1 << 14, meaning="of a vector at once; 0: all of it"
    ),
    "l1_bytes": DeviceParameter(field="l1_bytes", least=0, most=_BYTES, meaning="first cache"),
    "l2_bytes": DeviceParameter(field="l2_bytes", least=0, most=_BYTES, meaning="second cache"),
    "l3_bytes": DeviceParameter(field="l3_bytes", least=0, most=_BYTES, meaning="third cache"),
    "cache_line_bytes": DeviceParameter(
        field="cache_line_bytes", least=1, most=1 << 14, meaning="a line of the caches"
    ),
    "max_local_bytes": DeviceParameter(
        field="local_memory_bytes",
        least=0,
        most=1 << 30,
        meaning="local memory of a work-group; 0: it is a part of global memory",
    ),
    "max_work_group": DeviceParameter(
        field="max_work_group", least=1, most=1 << 16, meaning="work-items of a work-group"
    ),
    "global_memory_bytes": DeviceParameter(
        field="global_memory_bytes", least=1, most=_BYTES, meaning="memory of the device"
    ),
    "image_width": DeviceParameter(
        field="image_width", least=0, most=1 << 20, meaning="texels of an image's row; 0: no images"
    ),
    "image_height": DeviceParameter(
        field="image_height", least=0, most=1 << 20, meaning="rows of an image"
    ),
    "image_reads": DeviceParameter(
        field="image_reads",
        least=0,
        most=1,
        meaning="1: constants are read faster through images than as arrays",
    ),
}

_ALLOWED = ("max_work_group", "image_width", "image_height")
"""What a device refuses beyond its own number."""
_MARK, _BETWEEN = "?", "&"
_DIGITS = 20
"""No number of PARAMETERS has as many."""


def parse_parameters(given: Iterable[str]) -> dict[str, int]:
    """The parameters of texts such as `max_local_bytes=32768`.

    Raises: InputError for a name that is not known or comes twice, or a value out of its range.
    """
    found: dict[str, int] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or name not in PARAMETERS:
            raise InputError(
                f"device parameter {text[:80]!r}: expected NAME=NUMBER with one of the names "
                f"{', '.join(PARAMETERS)}"
            )
        if name in found:
            raise InputError(f"device parameter {text!r}: expected {name} once, got it twice")
        entry = PARAMETERS[name]
        number = int(value) if value.isascii() and value.isdigit() and len(value) < _DIGITS else -1
        if not entry.least <= number <= entry.most:
            raise InputError(
                f"device parameter {text[:80]!r}: expected a whole number from {entry.least} to "
                f"{entry.most} ({entry.meaning}), got {value[:40]!r}"
            )
        found[name] = number
    return found


def named(device: str, parameters: Mapping[str, int]) -> str:
    """The name of the device with these parameters; of several each with them."""
    if not parameters:
        return device
    given = _BETWEEN.join(f"{name}={value}" for name, value in sorted(parameters.items()))
    return ",".join(f"{one.strip()}{_MARK}{given}" for one in device.split(","))


def split_name(device: str) -> tuple[str, dict[str, int]]:
    """The device's own name, and its parameters. Raises: InputError as `parse_parameters`."""
    own, mark, given = device.partition(_MARK)
    return own, parse_parameters(given.split(_BETWEEN)) if mark else {}


def with_parameters(spec: DeviceSpec, parameters: Mapping[str, int]) -> DeviceSpec:
    """The device with these numbers instead of its own, as another kind of device.

    What was measured under some limits says nothing of others: model and name say them.
    Raises: InputError for work-groups or images larger than the device allows.
    """
    if not parameters:
        return spec
    for name in _ALLOWED:
        most, allowed = parameters.get(name, 0), getattr(spec, PARAMETERS[name].field)
        if most > allowed:
            raise InputError(
                f"device parameter '{name}={most}': expected at most {allowed}, "
                f"what {spec.name} allows"
            )
    fields: dict[str, Any] = {PARAMETERS[name].field: n for name, n in parameters.items()}
    stated = ", ".join(f"{name}={value}" for name, value in sorted(parameters.items()))
    return replace(
        spec,
        name=named(spec.name, parameters),
        model=f"{spec.model} with {stated}",
        computed_by=spec.computed_by or f"{spec.name}|{spec.fingerprint}",
        **fields,
    )

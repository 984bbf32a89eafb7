"""Profiles: devices that are not here, each number of them with its source.

`profile:mali-g76` is the device that `profile_data/mali-g76.toml` describes: bundles are compiled
for it, and nothing runs. `profile:mali-g76@pocl` is PoCL with the profile's limits: its kernels run
there, so that they are shown to be right; how long they take says nothing of the profile's device.
Read `DeviceProfile` and `read_profile`.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, cast

from retune.core.errors import InputError
from retune.core.parameters import PARAMETERS
from retune.core.schema import from_plain
from retune.core.target import DeviceSpec

PROFILE = "profile:"
"""Before its name, a profile's device."""
PLAYED = "@"
"""Between a profile and the device that plays it."""

_DRIVER = "profile"
_NUMBERS = (
    "compute_units",
    "vector_bits",
    "l2_bytes",
    "cache_line_bytes",
    "max_local_bytes",
    "max_work_group",
    "global_memory_bytes",
    "image_width",
    "image_height",
    "image_reads",
)
"""What a profile states beside the version of OpenCL and the extensions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A value with where it comes from."""

    value: int | str | tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """A GPU as data."""

    name: str
    model: str
    facts: Mapping[str, Fact]
    """By the names of `core.parameters`, and `opencl` and `extensions`."""

    @property
    def spec(self) -> DeviceSpec:
        """The device. Caches that no GPU's driver tells of are unknown, as they are for all."""
        numbers: dict[str, Any] = {PARAMETERS[n].field: self.facts[n].value for n in _NUMBERS}
        return DeviceSpec(
            name=f"{PROFILE}{self.name}",
            model=self.model,
            device_class="gpu",
            platform="none",
            driver=_DRIVER,
            opencl=cast("str", self.facts["opencl"].value),
            vector_registers=0,
            l1_bytes=0,
            l3_bytes=0,
            extensions=cast("tuple[str, ...]", self.facts["extensions"].value),
            **numbers,  # integers, by the table
        )


def is_profile(device: str) -> bool:
    """Whether the name is that of a profile's device, played by another one or not."""
    return device.startswith(PROFILE)


def split_profile(device: str) -> tuple[DeviceProfile, str]:
    """The profile, and the name of the device that plays it; '' for none. Raises: InputError."""
    name, _, base = device.removeprefix(PROFILE).partition(PLAYED)
    return read_profile(name), base


def profile_names() -> tuple[str, ...]:
    """The names of the profiles that ship, in order."""
    found = files("retune.device").joinpath("profile_data").iterdir()
    return tuple(sorted(f.name.removesuffix(".toml") for f in found if f.name.endswith(".toml")))


def read_profile(name: str) -> DeviceProfile:
    """The profile of that name. Raises: InputError naming those that there are."""
    known = profile_names()
    if name not in known:
        raise InputError(
            f"profile {name!r} is not known; there are {', '.join(known)}; see `retune devices`"
        )
    text = files("retune.device").joinpath("profile_data", f"{name}.toml").read_text("utf-8")
    table = tomllib.loads(text)
    model = str(table.pop("model"))
    facts = from_plain(dict[str, Fact], table, where=f"{name}.toml", style="toml")
    return DeviceProfile(name=name, model=model, facts=facts)


def played(profile: DeviceProfile, base: DeviceSpec) -> DeviceSpec:
    """The profile's device as the base device plays it: its limits, on that machine.

    Its images are no larger than the base device's.

    Raises: InputError for work-groups larger than the base device allows.
    """
    own = profile.spec
    if own.max_work_group > base.max_work_group:
        raise InputError(
            f"{own.name}: expected a device that allows work-groups of {own.max_work_group} to "
            f"play it, got {base.name}, which allows {base.max_work_group}"
        )
    return replace(
        own,
        name=f"{own.name}{PLAYED}{base.name}",
        model=f"{own.model} played by {base.model}",
        driver=base.driver,
        host=base.host,
        affinity=base.affinity,
        image_width=min(own.image_width, base.image_width),
        image_height=min(own.image_height, base.image_height),
        computed_by=f"{base.name}|{base.fingerprint}",
    )


def plays(spec: DeviceSpec, device: str) -> bool:
    """Whether the device plays the profile's device of that name, under the same limits."""
    (name, _, given), (own, _, wanted) = spec.name.partition("?"), device.partition("?")
    return is_profile(own) and name.startswith(f"{own}{PLAYED}") and given == wanted

"""Classes of devices: for each of them its levels, the rules that make its sketches, and its cost.

A class is one entry: what a tiling may use, functions from a program to sketches, and what a kernel
of them costs. Search, records, estimates and replay know no class by name. See
`tests/unit/targets/test_devices.py` for one of two levels.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from retune.codegen import target
from retune.codegen.target import Target
from retune.core.target import DeviceSpec
from retune.intrinsics import build_options
from retune.ir.stmt import Program
from retune.schedule.space import Family, Sketch
from retune.targets.cost.cpu import cpu_cycles
from retune.targets.cost.gpu import gpu_cycles
from retune.targets.cost.nests import Kernel
from retune.targets.cpu.space import cpu_space
from retune.targets.cpu.winograd import cpu_winograd_families
from retune.targets.gpu.space import gpu_space
from retune.targets.gpu.winograd import gpu_winograd_families
from retune.targets.tiling import CPU, GPU, Level

Rules = Callable[[Program, DeviceSpec, float], Iterable[Sketch | Family]]
"""Sketches of a program for a device; none needs to be made whose error is more than that part of
the output's range."""
Cost = Callable[[Kernel, DeviceSpec], np.ndarray]
"""Relative time of a kernel of each candidate, in cycles. float64 [n]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRules:
    """What is known of a class of devices."""

    levels: tuple[Level, ...]
    """From the outermost to the innermost."""
    rules: tuple[Rules, ...]
    """The first one makes at least one sketch of any program."""
    cost: Cost
    target: Target
    """What its kernels are lowered for."""


def _cpu(program: Program, spec: DeviceSpec, _: float) -> tuple[Sketch, ...]:
    return cpu_space(program, spec).sketches


def _gpu(program: Program, spec: DeviceSpec, _: float) -> tuple[Sketch, ...]:
    return gpu_space(program, spec).sketches


_CLASSES: dict[str, DeviceRules] = {
    "cpu": DeviceRules(
        levels=CPU, rules=(_cpu, cpu_winograd_families), cost=cpu_cycles, target=target.CPU
    ),
    "gpu": DeviceRules(
        levels=GPU, rules=(_gpu, gpu_winograd_families), cost=gpu_cycles, target=target.GPU
    ),
}


def register_device_class(name: str, known: DeviceRules) -> None:
    """Devices of the class `name` have these levels, rules, cost and target from now on.

    Raises: ValueError if there is a class of that name.
    """
    if name in _CLASSES:
        raise ValueError(f"device class {name!r} exists already")
    _CLASSES[name] = known


def device_classes() -> tuple[str, ...]:
    """The names of all classes, which the names of their rules' sketches begin with."""
    return tuple(_CLASSES)


def rules_for(spec: DeviceSpec) -> DeviceRules:
    """What is known of the device's class.

    Raises: ValueError for a class that is not registered.
    """
    if spec.device_class not in _CLASSES:
        known = ", ".join(sorted(_CLASSES))
        raise ValueError(f"no rules for device class {spec.device_class!r}; there are {known}")
    return _CLASSES[spec.device_class]


def target_of(spec: DeviceSpec) -> Target:
    """What to lower kernels for the device for.

    Raises: ValueError for a class that is not registered.
    """
    target, offers = rules_for(spec).target, spec.instructions
    return replace(
        target,
        offers=offers,
        options=(*target.options, *build_options(offers)),
        past_bytes=max(target.past_bytes, spec.l3_bytes),
    )

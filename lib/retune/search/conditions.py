"""Options and conditions of timing a network's tasks."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Protocol

from retune.core.target import DeviceSpec
from retune.device.measure.workload import MeasureOptions, measuring_conditions
from retune.device.opencl.host import available_cores
from retune.records.conditions import Conditions
from retune.search.task_schedulers import ROUND


class ReadsConstants(Protocol):
    """The facts of a task that conditions follow from: a Task has them, and so has a manifest."""

    @property
    def weight(self) -> int:
        """How often the network runs it."""
        ...

    @property
    def constant_bytes(self) -> int:
        """Of the constants that one run reads."""
        ...


_BUILT_AT_ONCE = 2
"""Candidates of a GPU's batch for each core of this process: building takes the host's time. Larger
batches leave tasks untried: with 256, three minutes on two cores reached three of thirty tasks."""
_MOST_AT_ONCE = 32


def usual_options(
    spec: DeviceSpec,
    *,
    repeats: int | None = None,
    min_repeat_ms: float | None = None,
    cooldown: float | None = None,
    build_deadline: float | None = None,
    run_deadline: float | None = None,
) -> MeasureOptions:
    """How candidates are timed on a device; what is None is what such a device usually gets.

    A GPU's times scatter little, and its neighbours do not disturb it: fewer and shorter repeats.
    One repeat tells whether a candidate is among the fastest.
    Cycles of a simulated accelerator are counted once.
    """
    asked = {
        "repeat": repeats,
        "min_repeat_ms": min_repeat_ms,
        "cooldown_s": cooldown,
        "build_deadline_s": build_deadline,
        "run_deadline_s": run_deadline,
    }
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    return replace(_usual(spec), **given)


def _usual(spec: DeviceSpec) -> MeasureOptions:
    if spec.accelerator:
        return MeasureOptions(repeat=1, disturbed_retries=0)
    if spec.device_class == "gpu":
        return MeasureOptions(repeat=3, min_repeat_ms=0.5, disturbed_retries=0, give_up_factor=1.25)
    return MeasureOptions()


def usual_batch(spec: DeviceSpec) -> int:
    """Candidates of one batch: a round of a task, or what the host's cores build side by side."""
    if spec.device_class == "gpu":
        return max(ROUND, min(_MOST_AT_ONCE, _BUILT_AT_ONCE * available_cores()))
    return ROUND


def network_options(tasks: Iterable[ReadsConstants], options: MeasureOptions) -> MeasureOptions:
    """The options with constants as far away as they are in a network of these tasks."""
    spread = sum(task.weight * task.constant_bytes for task in tasks)
    return replace(options, spread_bytes=spread)


def network_conditions(
    spec: DeviceSpec, tasks: Iterable[ReadsConstants], options: MeasureOptions | None = None
) -> Conditions:
    """The conditions under which a Session times these tasks, all of a network, on a device."""
    return measuring_conditions(spec, network_options(tasks, options or MeasureOptions()))

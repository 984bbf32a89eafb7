"""How the tasks of a network are timed, and under which conditions that is."""

from collections.abc import Iterable
from dataclasses import replace

from retune.core.target import DeviceSpec
from retune.device.workload import MeasureOptions, measuring_conditions
from retune.records.conditions import Conditions
from retune.search.task import Task


def network_options(tasks: Iterable[Task], options: MeasureOptions) -> MeasureOptions:
    """The options with constants as far away as they are in a network of these tasks."""
    spread = sum(task.weight * task.constant_bytes for task in tasks)
    return replace(options, spread_bytes=spread)


def network_conditions(
    spec: DeviceSpec, tasks: Iterable[Task], options: MeasureOptions | None = None
) -> Conditions:
    """The conditions under which a Session times these tasks, all of a network, on a device."""
    return measuring_conditions(spec, network_options(tasks, options or MeasureOptions()))

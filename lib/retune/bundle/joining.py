"""Plans of one network for different sizes, as the variants of one plan.

Read `join_programs`. Inputs, outputs, sizes, kernels of one text and weights of one content are
there once; values between kernels are each variant's own, as they never live at the same time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from retune.bundle.plan import LARGEST_ERROR_NOTE, Alias, NetworkPlan, PlanHost
from retune.bundle.sizes import PlanVariant
from retune.codegen.source import KernelLaunch, KernelText, ProgramBuffer
from retune.core.dims import Condition
from retune.core.keys import content_key

Program = tuple[NetworkPlan, Sequence[Condition]]
"""A plan, and on what conditions it runs."""


def join_programs(programs: Sequence[Program]) -> NetworkPlan:
    """The plan that runs the first of the programs whose conditions the sizes of a run meet.

    They are of one network, and kernels of one name have one text (`build_plan` sees to it).
    Raises: ValueError for others.
    """
    first, _ = programs[0]
    if len(programs) == 1 and not programs[0][1]:
        return first
    joined = _Joined(first)
    for number, (plan, conditions) in enumerate(programs):
        joined.add(plan, tuple(conditions), number)
    return joined.plan()


class _Joined:
    """A plan as it grows, variant by variant."""

    def __init__(self, first: NetworkPlan) -> None:
        self._first = first
        self._kernels: dict[str, KernelText] = {}
        self._buffers: dict[str, ProgramBuffer] = {}
        self._weights: dict[str, np.ndarray] = {}
        self._contents: dict[str, str] = {}
        """Key of a weight's content and form -> its name."""
        self._launches: list[KernelLaunch] = []
        self._hosts: list[PlanHost] = []
        self._aliases: dict[str, Alias] = {}
        self._loops = list(first.loops[:0])
        self._variants: list[PlanVariant] = []
        self._errors: list[str] = []

    def add(self, plan: NetworkPlan, conditions: tuple[Condition, ...], number: int) -> None:
        """The steps of the plan are the next variant."""
        names = {entry.name: self._named(plan, entry, number) for entry in plan.buffers}
        start, start_host = len(self._launches), len(self._hosts)
        for kernel in plan.kernels:
            if self._kernels.setdefault(kernel.name, kernel).text != kernel.text:
                raise ValueError(f"kernel {kernel.name}: expected one text, got two")
        self._launches += [_launch_named(launch, names) for launch in plan.launches]
        self._hosts += [_host_named(host, names, start) for host in plan.hosts]
        for alias in plan.aliases:
            own = replace(alias, value=names[alias.value], of=names[alias.of])
            if self._aliases.setdefault(own.value, own) != own:
                raise ValueError(f"value {own.value}: expected one place in memory, got two")
        self._loops += [
            replace(loop, first=loop.first + start, end=loop.end + start) for loop in plan.loops
        ]
        self._errors.append(plan.notes[LARGEST_ERROR_NOTE])
        self._variants.append(
            PlanVariant(
                conditions=conditions,
                first=start,
                end=len(self._launches),
                first_host=start_host,
                end_host=len(self._hosts),
            )
        )

    def plan(self) -> NetworkPlan:
        """The plan of all variants."""
        notes = {**self._first.notes, LARGEST_ERROR_NOTE: max(self._errors, key=_error)}
        return replace(
            self._first,
            kernels=tuple(self._kernels.values()),
            buffers=tuple(self._buffers.values()),
            launches=tuple(self._launches),
            weights=self._weights,
            notes=notes,
            aliases=tuple(self._aliases.values()),
            hosts=tuple(self._hosts),
            loops=tuple(self._loops),
            variants=tuple(self._variants),
        )

    def _named(self, plan: NetworkPlan, entry: ProgramBuffer, number: int) -> str:
        """The name that a variant's buffer has in the plan, where it is now."""
        name = entry.name
        match entry.role:
            case "input" | "output" | "size":
                pass
            case "weight":
                array = plan.weights[name]
                key = content_key(entry.shape, entry.image, array)
                if key in self._contents:
                    return self._contents[key]
                name = name if name not in self._buffers else f"{name}#{number}"
                self._contents[key], self._weights[name] = name, array
            case "temp":
                name = f"{name}#{number}" if number else name
        own = replace(entry, name=name)
        if self._buffers.setdefault(name, own) != own:
            raise ValueError(f"buffer {name}: expected {self._buffers[name]}, got {own}")
        return name


def _launch_named(launch: KernelLaunch, names: Mapping[str, str]) -> KernelLaunch:
    args = tuple(names[name] for name in launch.args)
    return replace(launch, args=args, writes=tuple(names[name] for name in launch.writes))


def _host_named(host: PlanHost, names: Mapping[str, str], start: int) -> PlanHost:
    return replace(
        host,
        inputs=tuple(names.get(name, name) for name in host.inputs),
        outputs=tuple(names.get(name, name) for name in host.outputs),
        after=host.after + start,
    )


def _error(note: str) -> float:
    """The error that a note of the largest one begins with."""
    return float(note.split(maxsplit=1)[0])

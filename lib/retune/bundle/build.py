"""From a partitioned network and the chosen candidates to a NetworkPlan.

Each group becomes the launches of its task's program, with the program's buffers bound to the
network's values; constants are packed here, once for each way in which they are read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from retune.bundle.plan import Alias, NetworkPlan, PlanBuffer, PlanLaunch
from retune.codegen.lower import lower
from retune.codegen.source import BufferSpec, ProgramSource
from retune.core.keys import content_key
from retune.core.target import DeviceSpec
from retune.graph.graph import Graph
from retune.schedule.estimate import default_candidate
from retune.schedule.space import Candidate
from retune.tune.extract import Network, PlacedGroup
from retune.tune.task import Task


def build_plan(
    network: Network,
    chosen: Mapping[str, Candidate],
    spec: DeviceSpec,
    *,
    model_key: str,
    notes: Mapping[str, str],
) -> NetworkPlan:
    """The plan of a network; tasks without a chosen candidate get the default schedule."""
    sources = {
        task.key: _source(task, chosen.get(task.key), spec) for task in network.tasks.values()
    }
    parts = _Parts(network.graph)
    for placed in network.groups:
        if placed.task_key is None:
            parts.alias(placed.group.outputs[0], placed.group.inputs[0])
        else:
            task = network.tasks[placed.task_key]
            parts.launch(placed, task, sources[placed.task_key])
    parts.interface()
    return NetworkPlan(
        name=network.graph.name,
        model_key=model_key,
        kernels={k.name: k.text for s in sources.values() for k in s.kernels},
        options=next((s.options for s in sources.values()), ()),
        buffers=tuple(parts.buffers.values()),
        launches=tuple(parts.launches),
        inputs=network.graph.inputs,
        outputs=network.graph.outputs,
        weights=parts.weights,
        device=spec,
        notes=notes,
        aliases=tuple(parts.aliases),
    )


def _source(task: Task, candidate: Candidate | None, spec: DeviceSpec) -> ProgramSource:
    space = task.space(spec)
    return lower(space.instantiate(candidate or default_candidate(space, spec)))


@dataclass(slots=True)
class _Parts:
    """The plan as it grows."""

    graph: Graph
    buffers: dict[str, PlanBuffer] = field(default_factory=dict[str, PlanBuffer])
    launches: list[PlanLaunch] = field(default_factory=list[PlanLaunch])
    aliases: list[Alias] = field(default_factory=list[Alias])
    weights: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])

    def interface(self) -> None:
        """Inputs that no kernel reads and outputs that no kernel writes exist all the same."""
        for value in (*self.graph.inputs, *self.graph.outputs):
            self._value(value)

    def alias(self, value: str, of: str) -> None:
        """`value` in the memory of `of`."""
        self._value(of)
        self._value(value)
        self.aliases.append(Alias(value=value, of=of))

    def launch(self, placed: PlacedGroup, task: Task, source: ProgramSource) -> None:
        """The launches of one group."""
        group = placed.group
        values = (*group.inputs, *group.params)
        bound = dict(zip(task.inputs, values, strict=True))
        bound |= dict(zip(task.outputs, group.outputs, strict=True))
        names = {s.name: self._bind(s, bound, group.name) for s in source.buffers}
        for kernel in source.kernels:
            self.launches.append(
                PlanLaunch(
                    kernel=kernel.name,
                    args=tuple(names[a.buffer] for a in kernel.args),
                    writes=tuple(names[a.buffer] for a in kernel.args if a.written),
                    global_size=kernel.global_size,
                    local_size=kernel.local_size,
                    label=group.name,
                    flops=kernel.flops,
                    bytes=kernel.bytes,
                )
            )

    def _bind(self, spec: BufferSpec, bound: Mapping[str, str], group: str) -> str:
        if spec.role == "scratch":
            name = f"{group}/{spec.name}"
            self.buffers[name] = PlanBuffer(
                name=name,
                dtype=spec.dtype,
                elements=spec.elements,
                role="temp",
                shape=(spec.elements,),
            )
            return name
        value = bound[spec.name]
        if value in self.graph.constants:
            return self._weight(value, spec)
        return self._value(value)

    def _weight(self, value: str, spec: BufferSpec) -> str:
        array = self.graph.constants[value]
        name = f"{value}@{content_key(spec.pack)[:8]}" if spec.pack else value
        if name not in self.weights:
            packed = spec.pack.apply(array) if spec.pack else np.ascontiguousarray(array)
            self.weights[name] = packed
            self.buffers[name] = PlanBuffer(
                name=name,
                dtype=str(packed.dtype),
                elements=packed.size,
                role="weight",
                shape=tuple(array.shape),
            )
        return name

    def _value(self, value: str) -> str:
        if value in self.buffers:
            return value
        graph, kind = self.graph, self.graph.types[value]
        if value in graph.constants:
            self.weights[value] = np.ascontiguousarray(graph.constants[value])
        role = (
            "input"
            if value in graph.inputs
            else "output"
            if value in graph.outputs
            else "weight"
            if value in graph.constants
            else "temp"
        )
        self.buffers[value] = PlanBuffer(
            name=value, dtype=kind.dtype, elements=kind.elements, role=role, shape=kind.shape
        )
        return value

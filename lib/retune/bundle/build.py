"""From a partitioned network and the chosen candidates to a NetworkPlan.

Each group becomes the launches of its task's program, with the program's buffers bound to the
network's values; constants are packed here, once for each way in which they are read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from retune.bundle.plan import LARGEST_ERROR_NOTE, Alias, NetworkPlan, PlanBuffer, PlanLaunch
from retune.bundle.slices import Embedded, find_embedded, remaining_parts
from retune.codegen.embed import Slice, embed_output
from retune.codegen.lower import BUILD_OPTIONS, lower
from retune.codegen.source import BufferSpec, KernelSource, ProgramSource
from retune.core.errors import InputError
from retune.core.keys import content_key
from retune.core.target import DeviceSpec
from retune.graph.graph import Graph
from retune.ir.stmt import Program
from retune.schedule.estimate import default_candidate
from retune.schedule.space import Candidate
from retune.search.extract import Network, PlacedGroup
from retune.search.task import Task


def build_plan(
    network: Network,
    chosen: Mapping[str, Candidate],
    spec: DeviceSpec,
    *,
    model_key: str,
    notes: Mapping[str, str],
) -> NetworkPlan:
    """The plan of a network; tasks without a chosen candidate get the default schedule.

    Raises: InputError if the device has no arithmetic for an element type of the network.
    """
    check_types(network.graph, spec)
    sources = _Sources(chosen, spec)
    parts = _Parts(network.graph, find_embedded(network))
    for placed in network.groups:
        if placed.task_key is None:
            parts.alias(placed.group.outputs[0], placed.group.inputs[0])
        else:
            task = network.tasks[placed.task_key]
            inside = parts.embedded.get(placed.group.outputs[0])
            parts.launch(placed, task, sources.of(task, inside.where if inside else None))
    parts.interface()
    return NetworkPlan(
        name=network.graph.name,
        model_key=model_key,
        kernels={k.name: k.text for k in parts.kernels.values()},
        options=BUILD_OPTIONS,
        buffers=tuple(parts.buffers.values()),
        launches=tuple(parts.launches),
        inputs=network.graph.inputs,
        outputs=network.graph.outputs,
        weights=parts.weights,
        device=spec,
        notes={**notes, **sources.notes()},
        aliases=tuple(parts.aliases),
    )


_EXTENSIONS = {"float16": "cl_khr_fp16", "float64": "cl_khr_fp64"}
"""Element type -> the OpenCL extension without which no kernel computes with it."""


def check_types(graph: Graph, spec: DeviceSpec) -> None:
    """Raises: InputError if the device cannot compute with an element type of the graph."""
    for value, kind in graph.types.items():
        extension = _EXTENSIONS.get(kind.dtype)
        if extension is not None and kind.elements and extension not in spec.extensions:
            raise InputError(
                f"{graph.name}: value '{value}' is {kind}; expected types that {spec.name} "
                f"computes with, and it has no {extension}; convert the model to float32, or "
                "choose another device"
            )


class _Sources:
    """OpenCL programs of tasks, each made once for each place of its output."""

    def __init__(self, chosen: Mapping[str, Candidate], spec: DeviceSpec) -> None:
        self._chosen = chosen
        self._spec = spec
        self._programs: dict[str, Program] = {}
        self._errors: dict[str, float] = {}
        self._made: dict[tuple[str, Slice | None], ProgramSource] = {}

    def notes(self) -> dict[str, str]:
        """What `verify` and people should know of the programs made so far."""
        return {LARGEST_ERROR_NOTE: _largest(tuple(self._errors.values()))}

    def of(self, task: Task, where: Slice | None) -> ProgramSource:
        """The task's program; its output inside a wider buffer if `where` says so."""
        key = (task.key, where)
        if key not in self._made:
            program = self._program(task)
            if where is not None:
                program = embed_output(program, program.outputs[0], where)
            self._made[key] = lower(program)
        return self._made[key]

    def _program(self, task: Task) -> Program:
        if task.key not in self._programs:
            space = task.space(self._spec)
            candidate = self._chosen.get(task.key) or default_candidate(space, self._spec)
            self._programs[task.key] = space.instantiate(candidate)
            self._errors[task.key] = space.sketch(candidate.sketch).error
        return self._programs[task.key]


def _largest(errors: Sequence[float]) -> str:
    """The largest error, and in how many tasks it is."""
    largest = max(errors, default=0.0)
    count = errors.count(largest)
    return f"{largest:.0e} in {count} task{'s' * (count > 1)}" if largest else "0"


@dataclass(slots=True)
class _Parts:
    """The plan as it grows."""

    graph: Graph
    embedded: Mapping[str, Embedded]
    kernels: dict[str, KernelSource] = field(default_factory=dict[str, KernelSource])
    buffers: dict[str, PlanBuffer] = field(default_factory=dict[str, PlanBuffer])
    launches: list[PlanLaunch] = field(default_factory=list[PlanLaunch])
    aliases: list[Alias] = field(default_factory=list[Alias])
    weights: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])

    def interface(self) -> None:
        """Inputs that no kernel reads and outputs that no kernel writes exist all the same.

        An output that is a constant lies in the memory of that constant.
        """
        for value in self.graph.outputs:
            array = self.graph.constants.get(value)
            if array is not None and array.size:
                self._value(value)
                self.aliases.append(Alias(value=value, of=self._stored(value, array)))
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
        for kernel in self._needed(placed, source):
            self.kernels[kernel.name] = kernel
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

    def _needed(self, placed: PlacedGroup, source: ProgramSource) -> Sequence[KernelSource]:
        """All kernels, less the copies of a concatenation that its producers spare it."""
        node = placed.group.nodes[0]
        if node.op != "concat":
            return source.kernels
        return [source.kernels[i] for i in remaining_parts(node.inputs, self.embedded)]

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
        values = [bound[name] for name in spec.sources]
        if all(value in self.graph.constants for value in values):
            return self._weight(values, spec)
        return self._value(values[0])

    def _weight(self, values: Sequence[str], spec: BufferSpec) -> str:
        arrays = [self.graph.constants[value] for value in values]
        if spec.pack is None:
            return self._stored(values[0], arrays[0])
        name = f"{'+'.join(values)}@{content_key(spec.pack)[:8]}"
        if name not in self.weights:
            packed = spec.pack.apply(*arrays)
            shape = packed.shape if spec.computed_from else arrays[0].shape
            self._store(name, packed, shape)
        return name

    def _stored(self, value: str, array: np.ndarray) -> str:
        """The weight that holds a constant as it is; an output's name is not a weight's."""
        name = f"{value}@stored" if value in self.graph.outputs else value
        if name not in self.weights:
            self._store(name, np.ascontiguousarray(array), array.shape)
        return name

    def _store(self, name: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
        self.weights[name] = array
        self.buffers[name] = PlanBuffer(
            name=name, dtype=str(array.dtype), elements=array.size, role="weight", shape=shape
        )

    def _value(self, value: str) -> str:
        if value in self.embedded:
            value = self.embedded[value].target
        if value in self.buffers:
            return value
        graph, kind = self.graph, self.graph.types[value]
        if value in graph.outputs:
            role = "output"
        elif value in graph.constants:
            return self._stored(value, graph.constants[value])
        else:
            role = "input" if value in graph.inputs else "temp"
        self.buffers[value] = PlanBuffer(
            name=value, dtype=kind.dtype, elements=kind.elements, role=role, shape=kind.shape
        )
        return value

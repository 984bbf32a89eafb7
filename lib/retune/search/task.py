"""A tuning task: one fused group of a network, or a user's tensor expression, with a workload."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from retune.codegen.lower import lower
from retune.codegen.source import ProgramSource
from retune.codegen.target import Target
from retune.core.dims import Size, SizeValues, at, remembered, sizes_of
from retune.core.dtypes import DType, TensorType, dtype_of
from retune.core.errors import InputError
from retune.core.keys import content_key, short_key
from retune.core.target import DeviceSpec
from retune.device.measure.inputs import random_array
from retune.device.measure.workload import Workload
from retune.graph.evaluate import run_graph
from retune.graph.graph import Graph
from retune.graph.passes.indices import index_counts
from retune.ir.expr import Call, walk
from retune.ir.functions import FUNCTIONS
from retune.ir.interp import run_dag
from retune.ir.merge import merge_axes
from retune.ir.stmt import Program, from_dag
from retune.ir.te import Compute, Dag, at_sizes, stage_flops
from retune.schedule.space import Candidate, Space
from retune.search.defaults import DEFAULT_MAX_ERROR
from retune.targets.spaces import space_of
from retune.targets.vta.packed import INPUTS, MAGNITUDES, Packed
from retune.targets.vta.source import packed_source
from retune.targets.vta.space import space_of as packed_space


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Task:
    """A group that occurs `weight` times in the network, or an expression by itself."""

    key: str
    """Content key of the tensor expression: equal groups are one task."""
    name: str
    """For people: its ops, its window and a part of its key. Unique within a store."""
    op: str
    weight: int
    graph: Graph | None
    """The group alone; its parameters are inputs too. None for an expression by itself."""
    dag: Dag
    """What is scheduled; a group's has merged axes."""
    text: str
    """The tensor expressions as written, before axes were merged."""
    inputs: tuple[str, ...]
    """Placeholder names, in the order of the group's inputs and parameters."""
    outputs: tuple[str, ...]
    input_shapes: tuple[tuple[int, ...], ...]
    output_shape: tuple[int, ...]
    epilogue: tuple[str, ...]
    stride: int | None
    max_error: float = DEFAULT_MAX_ERROR
    """Largest error of the strategies of `space`, as a part of the output's range."""
    own_space: Space | None = None
    """The user's space; None: all that rules and templates know."""
    packed: Packed | None = None
    """What makes it an accelerator's task; None: kernels do it."""
    searched: bool = True
    """False: it is not tuned on this device, beside whose accelerator it runs."""

    @property
    def flops(self) -> int:
        """Arithmetic operations of one run; of an accelerator's those of its products."""
        if self.packed is not None:
            return 2 * self.packed.work.macs(self.packed.config)
        return self.dag.flops

    @property
    def least_bytes(self) -> int:
        """Bytes that one run moves at least: every input, constant and output once."""
        return sum(kind.bytes for kind in (*self._input_types(), *self._output_types()))

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Element types of the inputs and constants, then of the outputs."""
        return tuple(kind.dtype for kind in (*self._input_types(), *self._output_types()))

    @property
    def constant_bytes(self) -> int:
        """Bytes of the constants that one run reads."""
        return _constant_bytes(self)

    @property
    def tunable(self) -> bool:
        """True for a user's expression, and for a group with a reduction: all other groups run at
        memory speed as they are."""
        return self.searched and (self.graph is None or self.reduces)

    @property
    def reduces(self) -> bool:
        """Whether one of its stages is a reduction."""
        return any(isinstance(s.op, Compute) and s.op.reducer for s in self.dag.stages)

    def at(self, values: SizeValues) -> "Task":
        """The task for these sizes, whose key is that of what is made for fixed shapes alike.

        Itself if it depends on none. Raises: KeyError for a size without a value.
        """
        if not self.sizes:
            return self
        fixed = at_sizes(self.dag, values)
        return replace(
            self,
            key=fixed.key,
            graph=self.graph and self.graph.at(values),
            dag=fixed,
            input_shapes=tuple(_shape_at(shape, values) for shape in self.input_shapes),
            output_shape=_shape_at(self.output_shape, values),
        )

    @property
    def sizes(self) -> frozenset[Size]:
        """What it depends on: its extents, and where its parts begin."""
        own = sizes_of(e for shape in (self.output_shape, *self.input_shapes) for e in shape)
        return own if self.graph is None else own | self.graph.sizes_read

    @property
    def counts(self) -> frozenset[Size]:
        """The sizes among them that a step of the network computes."""
        return frozenset(size for size in self.sizes if size.counted)

    @property
    def program(self) -> Program:
        """The unscheduled program."""
        return from_dag(self.dag, f"{self.op}_{self.key[:8]}")

    def space(self, spec: DeviceSpec) -> Space:
        """The user's schedules, or all that the rules and templates for this device know."""
        return self.own_space or _known_space(self, spec)

    def source(self, space: Space, candidate: Candidate, target: Target) -> ProgramSource:
        """What a Runner measures of a candidate of that space.

        Raises: ScheduleError, CodegenError where it has no program.
        """
        if self.packed is None:
            return lower(space.instantiate(candidate), target)
        return packed_source(self.packed.work, dict(candidate.decisions), self.packed.config)

    def workload_key(self, seed: int = 0) -> str:
        """The key of `workload(seed)`, without its arrays."""
        return content_key(self.key, seed)

    def workload(self, seed: int = 0) -> Workload:
        """Random inputs by type, and the outputs that numpy computes from them."""
        if self.packed is not None:
            return self._exact_workload(seed)
        restricted = {entry.name for entry in FUNCTIONS.values() if entry.positive}
        positive = any(
            isinstance(node, Call) and node.function in restricted
            for stage in self.dag.stages
            if isinstance(stage.op, Compute)
            for node in walk(stage.op.body)
        )
        low = 0.5 if positive else -1.0
        counts = self._index_counts()
        arrays = {
            name: _random(kind, low, seed + i, counts.get(name))
            for i, (name, kind) in enumerate(zip(self.inputs, self._input_types(), strict=True))
        }
        outputs = self._reference(arrays)
        allowed = max(dtype_of(array).tolerance for array in outputs.values())
        return Workload(
            key=self.workload_key(seed), inputs=arrays, outputs=outputs, rtol=allowed, atol=allowed
        )

    def _exact_workload(self, seed: int) -> Workload:
        """That of integers, which agree or do not."""
        arrays: dict[str, np.ndarray] = {}
        for number, (name, kind) in enumerate(zip(INPUTS, self._input_types(), strict=False)):
            most = MAGNITUDES.get(name)
            low = None if most is None else -most
            arrays[name] = random_array(kind, low=low, high=most, seed=seed + number)
        outputs = self._reference(arrays)
        return Workload(
            key=self.workload_key(seed), inputs=arrays, outputs=outputs, rtol=0.0, atol=0.0
        )

    def _index_counts(self) -> dict[str, int]:
        """Inputs that hold indices, and how many values they may have."""
        if self.graph is None:
            return {}
        counts = index_counts(self.graph)
        named = zip(self.inputs, self.graph.inputs, strict=True)
        return {name: counts[value] for name, value in named if value in counts}

    def _input_types(self) -> list[TensorType]:
        if self.graph is not None:
            return [self.graph.types[value] for value in self.graph.inputs]
        return [TensorType(t.shape, _dtype(t.dtype)) for t in self.dag.placeholders]

    def _output_types(self) -> list[TensorType]:
        if self.graph is not None:
            return [self.graph.types[value] for value in self.graph.outputs]
        return [TensorType(t.shape, _dtype(t.dtype)) for t in self.dag.outputs]

    def _reference(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by the graph's own operators, or by evaluation of the expression."""
        if self.graph is None:
            values = run_dag(self.dag, arrays)
            return {name: values[name] for name in self.outputs}
        results = run_graph(self.graph, dict(zip(self.graph.inputs, arrays.values(), strict=True)))
        return {
            name: results[value]
            for name, value in zip(self.outputs, self.graph.outputs, strict=True)
        }

    def to_json(self) -> dict[str, object]:
        """What `retune tasks --json` prints."""
        return {
            "key": self.key,
            "name": self.name,
            "op": self.op,
            "weight": self.weight,
            "flops": self.flops,
            "inputs": [list(s) for s in self.input_shapes],
            "output": list(self.output_shape),
            "stride": self.stride,
            "epilogue": list(self.epilogue),
            "expression": self.text,
            **(self.packed.to_json() if self.packed else {}),
        }


@remembered(maxsize=1024)
def _known_space(task: Task, spec: DeviceSpec) -> Space:
    """Made once: every stage of a run asks, and that of a 3x3 convolution takes half a second."""
    if task.packed is not None:
        return packed_space(task.packed.work, task.packed.config)
    return space_of(task.program, task.op, spec, max_error=task.max_error)


@lru_cache(maxsize=1024)
def _constant_bytes(task: Task) -> int:
    """Summed once: the conditions of each task ask all tasks of its network."""
    return sum(
        TensorType(tensor.shape, _dtype(tensor.dtype)).bytes
        for tensor in task.dag.placeholders
        if tensor.buffer.scope == "constant"
    )


def _shape_at(shape: tuple[int, ...], values: SizeValues) -> tuple[int, ...]:
    return tuple(at(extent, values) for extent in shape)


def _random(kind: TensorType, low: float, seed: int, count: int | None) -> np.ndarray:
    if count is not None:
        return random_array(kind, low=0, high=count - 1, seed=seed)
    if kind.dtype.is_float:
        return random_array(kind, low=low, high=low + 1.0 if low > 0 else 1.0, seed=seed)
    return random_array(kind, seed=seed)


def expression_task(dag: Dag, schedules: Callable[[Program], Space] | None = None) -> Task:
    """The task of a tensor expression by itself; its reference is the expression's evaluation.

    `schedules` makes its space from the program of the expression as written. Without it, axes
    that are always walked together are merged, as a network's are, and rules and templates apply.
    """
    scheduled = merge_axes(dag) if schedules is None else dag
    out = dag.outputs[0]
    task = Task(
        key=scheduled.key,
        name=f"{out.name}_{short_key(scheduled.key)}",
        op=_heaviest(dag),
        weight=1,
        graph=None,
        dag=scheduled,
        text=str(dag),
        inputs=tuple(t.name for t in dag.placeholders),
        outputs=tuple(t.name for t in dag.outputs),
        input_shapes=tuple(t.shape for t in dag.placeholders),
        output_shape=out.shape,
        epilogue=(),
        stride=None,
    )
    return task if schedules is None else replace(task, own_space=schedules(task.program))


def _heaviest(dag: Dag) -> str:
    """Name of the stage with the most arithmetic: what a template is looked up by."""
    return max(dag.stages, key=stage_flops).name


def _dtype(name: str) -> DType:
    try:
        return DType(name)
    except ValueError as error:
        raise InputError(str(error)) from None

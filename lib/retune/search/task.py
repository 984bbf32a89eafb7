"""A tuning task: one fused group of a network, as a graph, a tensor expression and a workload."""

from dataclasses import dataclass

import numpy as np

from retune.core.dtypes import TensorType, is_float
from retune.core.keys import content_key
from retune.core.target import DeviceSpec
from retune.device.inputs import random_array
from retune.device.workload import Workload
from retune.graph.evaluate import run_graph
from retune.graph.graph import Graph
from retune.ir.expr import Call, walk
from retune.ir.stmt import Program, from_dag
from retune.ir.te import Compute, Dag
from retune.schedule.cpu import cpu_space
from retune.schedule.space import Space

_POSITIVE = frozenset({"log", "sqrt"})
"""Functions whose argument must be positive for a finite result."""
_TOLERANCE = 1e-4
"""Allowed deviation relative to the reference's range: the order of additions differs."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Task:
    """A group that occurs `weight` times in the network."""

    key: str
    """Content key of the tensor expression: equal groups are one task."""
    name: str
    op: str
    weight: int
    graph: Graph
    """The group alone; its parameters are inputs too."""
    dag: Dag
    """With merged axes: what is scheduled."""
    text: str
    """The tensor expressions as written, before axes were merged."""
    inputs: tuple[str, ...]
    """Placeholder names, in the order of the group's inputs and parameters."""
    outputs: tuple[str, ...]
    input_shapes: tuple[tuple[int, ...], ...]
    output_shape: tuple[int, ...]
    epilogue: tuple[str, ...]
    stride: int | None

    @property
    def flops(self) -> int:
        """Arithmetic operations of one run."""
        return self.dag.flops

    @property
    def tunable(self) -> bool:
        """True when it has a reduction: everything else runs at memory speed as it is."""
        return any(isinstance(s.op, Compute) and s.op.reducer for s in self.dag.stages)

    @property
    def program(self) -> Program:
        """The unscheduled program."""
        return from_dag(self.dag, f"{self.op}_{self.key[:8]}")

    def space(self, spec: DeviceSpec) -> Space:
        """All schedules that the rules for this device class know."""
        return cpu_space(self.program, spec)

    def workload(self, seed: int = 0) -> Workload:
        """Random inputs by type, and the outputs that numpy computes from them."""
        positive = any(
            isinstance(node, Call) and node.function in _POSITIVE
            for stage in self.dag.stages
            if isinstance(stage.op, Compute)
            for node in walk(stage.op.body)
        )
        low = 0.5 if positive else -1.0
        arrays = {
            name: _random(self.graph.types[value], low, seed + i)
            for i, (name, value) in enumerate(zip(self.inputs, self.graph.inputs, strict=True))
        }
        given = dict(zip(self.graph.inputs, arrays.values(), strict=True))
        results = run_graph(self.graph, given)
        outputs = {
            name: results[value]
            for name, value in zip(self.outputs, self.graph.outputs, strict=True)
        }
        return Workload(
            key=content_key(self.key, seed),
            inputs=arrays,
            outputs=outputs,
            rtol=_TOLERANCE,
            atol=_TOLERANCE,
        )

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
        }


def _random(kind: TensorType, low: float, seed: int) -> np.ndarray:
    if is_float(kind.dtype):
        return random_array(kind, low=low, high=low + 1.0 if low > 0 else 1.0, seed=seed)
    return random_array(kind, seed=seed)

"""Programs with sizes: lowered once, and run at several values of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from retune.codegen.lower import lower
from retune.codegen.source import ProgramSource
from retune.codegen.target import Target
from retune.core.dims import Condition, SizeValues, assuming
from retune.core.dtypes import TensorType
from retune.core.target import DeviceSpec
from retune.device.opencl.runtime import Device
from retune.ir.stmt import Program, from_dag
from retune.ir.te import Dag, at_sizes
from retune.schedule.space import Space
from retune.targets.devices import target_of
from tests.support.oracle import Arrays, assert_close, inputs_for, poisoned, reference

MARGIN = 64
"""Elements behind each buffer that no kernel may write."""

Rules = Callable[[Program, DeviceSpec], Space]


@dataclass(frozen=True, slots=True)
class Lowered:
    """A tensor expression with sizes, and kernels for it."""

    dag: Dag
    sources: Mapping[str, ProgramSource]
    """By sketch and decisions."""
    conditions: tuple[Condition, ...]

    @property
    def noted(self) -> list[str]:
        """The conditions as text, in order."""
        return sorted(map(str, self.conditions))

    def serves(self, values: SizeValues) -> bool:
        """Whether the kernels are for these sizes."""
        return all(condition.at(values) for condition in self.conditions)


def lowered(
    make: Callable[[], Dag],
    rules: Rules,
    spec: DeviceSpec,
    at: SizeValues,
    *,
    each: int = 1,
    rng: np.random.Generator | None = None,
    target: Target | None = None,
) -> Lowered:
    """What rules make of it for a device: `each` candidates of each sketch, lowered once."""
    rng = rng or np.random.default_rng(0)
    with assuming(at) as assumed:
        dag = make()
        sources: dict[str, ProgramSource] = {}
        for sketch in rules(from_dag(dag), spec).sketches:
            for row in sketch.sample(each, rng):
                name = f"{sketch.name} {sketch.decided(row)}"
                sources[name] = lower(sketch.instantiate(row), target or target_of(spec))
    return Lowered(dag, sources, assumed.conditions)


def assert_right_at(
    device: Device, made: Lowered, every: Sequence[SizeValues], seed: int = 0
) -> None:
    """All kernels give what numpy says at these sizes, and write nothing else."""
    for values in every:
        assert made.serves(values), f"{values} do not meet {made.noted}"
        dag = at_sizes(made.dag, values)
        inputs = inputs_for(dag, seed)
        expected = reference(dag, inputs)
        for name, source in made.sources.items():
            found = run_at(device, source, inputs, values, dag)
            assert_close(found, expected, f"{name} at {values}\n{source.text}")


def run_at(
    device: Device,
    source: ProgramSource,
    inputs: Mapping[str, np.ndarray],
    values: SizeValues,
    dag: Dag,
) -> Arrays:
    """The outputs at these sizes, with an error where a kernel writes past the end of a buffer."""
    at, given = source.at(values), dict(inputs)
    given |= {size: np.array([values[size]], np.int32) for size in source.sizes}
    memory = {}
    for spec in at.buffers:
        packing = source.packing(spec.name)
        if spec.role in ("input", "weight", "size"):
            arrays = [given[name] for name in packing.sources]
            data = (packing.pack.apply(*arrays) if packing.pack else arrays[0]).reshape(-1)
            assert data.size == spec.elements, f"{spec.name}: {data.size}, not {spec.elements}"
        else:
            data = poisoned(spec.elements, spec.dtype)
        margin = [] if spec.image else [poisoned(MARGIN, spec.dtype)]
        memory[spec.name] = device.upload(np.concatenate([data, *margin]), spec.image)
    program = device.build(source.text, options=source.options)
    device.enqueue(device.prepare_all(program, at.launches, memory))
    device.finish()
    for spec in [b for b in at.buffers if b.role in ("output", "temp")]:
        whole = TensorType((spec.elements + MARGIN,), spec.dtype)  # type: ignore[arg-type]
        behind = device.read(memory[spec.name], whole)[spec.elements :]
        same = np.array_equal(behind, poisoned(MARGIN, spec.dtype), equal_nan=spec.dtype[0] == "f")
        assert same, f"{spec.name}: written past its end at {values}\n{source.text}"
    types = {t.name: TensorType(t.shape, t.dtype) for t in dag.outputs}  # type: ignore[arg-type]
    return {name: device.read(memory[name], type) for name, type in types.items()}

"""Another renderer is another table: kernels of one-item groups as Python, run by numpy."""

import keyword
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from retune.codegen import kernel as ir
from retune.codegen.lower import lower
from retune.codegen.printing import Printer, Renderer
from retune.codegen.target import CPU
from retune.core.target import GENERIC_CPU
from retune.ir.stmt import Program, from_dag
from retune.ir.te import Dag
from retune.targets.cpu.space import cpu_space
from tests.support.dags import conv2d, depthwise, elementwise, reduction, softmax
from tests.support.oracle import assert_close, inputs_for, reference

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "floordiv": "//", "rem": "%", "mod": "%",
    "lt": "<", "le": "<=", "eq": "==", "ne": "!=", "and": "and", "or": "or",
    "sum": "+", "product": "*", "all": "and",
}  # fmt: skip
FORMS = {
    "fma": "({} * {} + {})", "choose": "({1} if {0} else {2})", "long": "{}",
    "select": "np.where({}, {}, {})", "max": "np.maximum({}, {})", "min": "np.minimum({}, {})",
}  # fmt: skip


def operation(value: ir.Operation, to: Printer) -> str:
    args = [to.text(arg) for arg in value.args]
    if value.op in ("splat", "vector"):
        return f"np.zeros({value.lanes}, '{value.dtype}') + np.array([{', '.join(args)}])"
    if value.op == "div":
        return f"({args[0]} {'/' if value.dtype.startswith('float') else '//'} {args[1]})"
    if value.op in INFIX:
        return f"({f' {INFIX[value.op]} '.join(args)})"
    return FORMS.get(value.op, f"np.{value.op}({{}})").format(*args)


def place(at: ir.At, to: Printer) -> str:
    start = f"{to.text(at.base) if at.base else 0} + {at.offset}"
    end = f":{start} + {at.lanes}" if at.lanes > 1 else ""
    return f"{at.memory.name}[{start}{end}]"


PYTHON = Renderer(
    values={
        ir.Literal: lambda v, to: f"np.{v.dtype}({str(v.value)!r})",
        ir.Name: lambda v, to: v.name,
        ir.MemoryLoad: lambda v, to: f"{place(v.at, to)}.copy()",
        ir.Lanes: lambda v, to: f"{to.text(v.value)}[{list(v.numbers)}]",
        ir.Operation: operation,
    },
    statements={
        ir.Declare: lambda s, to: [f"{s.name.name} = {to.text(s.value)}"],
        ir.Registers: lambda s, to: [],
        ir.Array: lambda s, to: [f"{s.memory.name} = np.zeros({s.elements}, '{s.memory.dtype}')"],
        ir.Assign: lambda s, to: [f"{n.name} = {to.text(s.value)}" for n in s.targets],
        ir.Store: lambda s, to: [f"{place(s.at, to)} = {to.text(s.value)}"],
        ir.Prefetch: lambda s, to: [],
        ir.Number: lambda s, to: [f"{s.name.name} = group[{s.axis}]"],
        ir.ForLoop: lambda s, to: [f"for {s.name.name} in range({s.extent}):", *to.inside(s.body)],
        ir.If: lambda s, to: [
            f"if {' and '.join(map(to.text, s.tests))}:",
            *to.inside(s.then),
            *(["else:", *to.inside(s.otherwise)] if s.otherwise else []),
        ],
    },
    kernel=lambda k, body: [
        f"def {k.name}({', '.join(p.memory.name for p in k.parameters)}, group):",
        *(f"  {line}" for line in body),
    ],
    reserved=frozenset([*keyword.kwlist, "np", "group"]),
)


def run(program: Program, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    source = lower(program, replace(CPU, renderer=PYTHON))
    memory: dict[str, np.ndarray] = {}
    for spec in source.buffers:
        packing = source.packing(spec.name)
        made = [np.ravel(inputs[name]) for name in packing.sources if name in inputs]
        packed = packing.pack.apply(*made) if packing.pack else None
        memory[spec.name] = packed if packed is not None else [*made, np.zeros(spec.elements)][0]
    for kernel, launch in source.runs:
        scope: dict[str, Any] = {"np": np}
        exec(kernel.text, scope)  # noqa: S102 - text of our own, which is what is tested
        function: Callable[..., None] = scope[kernel.name]
        for group in product(*map(range, launch.global_size)):
            function(*(memory[name] for name in launch.args), group)
    return memory


@pytest.mark.parametrize(
    "dag",
    [
        elementwise(3, 21),
        reduction(4, 9, "max", first=False),
        softmax(3, 10),
        depthwise(1, 5, 5, 16),
    ],
    ids=["elementwise", "reduction", "softmax", "depthwise"],
)
def test_programs_without_a_schedule(dag: Dag):
    assert_right(dag, from_dag(dag))


def test_tiles_with_vectors_guards_and_versions_of_loops():
    dag = conv2d(1, 6, 6, 16, 16)
    for sketch in cpu_space(from_dag(dag), GENERIC_CPU).sketches:
        (row,) = sketch.sample(1, np.random.default_rng(0))
        assert_right(dag, sketch.instantiate(row))


def assert_right(dag: Dag, program: Program) -> None:
    inputs, shapes = inputs_for(dag), {t.name: t.shape for t in dag.outputs}
    memory = run(program, inputs)
    found = {name: memory[name].reshape(shape) for name, shape in shapes.items()}
    assert_close(found, reference(dag, inputs), str(program))

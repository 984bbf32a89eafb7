"""The judge of every scheduled program: the numpy meaning of the tensor expression.

`assert_same_meaning` runs a loop program in the interpreter, `assert_items_agree` in the one of
work-items, which looks for races, `assert_device_agrees` its generated kernels on a device; all
compare with `run_dag` and name the first index that differs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np

from retune.bundle.plan import NetworkPlan
from retune.codegen.lower import finished, lower
from retune.codegen.source import ProgramSource
from retune.core.dtypes import BOOL, INT7, INT8, UINT8, TensorType, dtype_of, numpy_dtype
from retune.device.opencl.runtime import Device
from retune.ir.interp import run_dag, run_program
from retune.ir.stmt import Program
from retune.ir.te import Dag
from retune.schedule.space import Sketch
from retune.targets.devices import target_of
from tests.support.items import run_items
from tests.support.sampling import drawn

Arrays = dict[str, np.ndarray]
Made = TypeVar("Made", ProgramSource, NetworkPlan)
"""Kernels, and how they are compiled."""


def inputs_for(dag: Dag, seed: int = 0) -> Arrays:
    """Random arrays for the placeholders: any bytes, small integers, else about [-1, 1]."""
    rng = np.random.default_rng(seed)
    arrays: Arrays = {}
    for tensor in dag.placeholders:
        if tensor.dtype.is_float:
            values = rng.uniform(-1.0, 1.0, tensor.shape)
        elif tensor.dtype in (INT7, INT8, UINT8):
            least, most = tensor.dtype.limits
            values = rng.integers(least, most + 1, tensor.shape)
        else:
            values = rng.integers(0, 5, tensor.shape)
        arrays[tensor.name] = np.asarray(values).astype(numpy_dtype(tensor.dtype))
    return arrays


def reference(dag: Dag, inputs: Mapping[str, np.ndarray]) -> Arrays:
    """What the outputs of the tensor expression are."""
    values = run_dag(dag, inputs)
    return {tensor.name: values[tensor.name] for tensor in dag.outputs}


def assert_same_meaning(dag: Dag, program: Program, seed: int = 0) -> None:
    """The loop program gives the values that the tensor expression states."""
    inputs = inputs_for(dag, seed)
    assert_close(run_program(program, inputs), reference(dag, inputs), str(program))


def assert_items_agree(dag: Dag, program: Program, seed: int = 0) -> None:
    """Work-items that run what is printed for the program give these values, and never race."""
    inputs = inputs_for(dag, seed)
    made = run_items(finished(program), inputs, seed)
    assert_close(made, reference(dag, inputs), str(program))


def assert_device_agrees(
    device: Device, dag: Dag, program: Program, seed: int = 0, *, one_of: int = 4
) -> None:
    """The kernels generated for the program give the values that the tensor expression states.

    PoCL optimises one program of so many.
    """
    inputs = inputs_for(dag, seed)
    source = lower(program, target_of(device.spec))
    source = seldom_optimised(source, one_of)
    types = {t.name: TensorType(t.shape, t.dtype) for t in dag.outputs}  # type: ignore[arg-type]
    found = run_source(device, source, inputs, types)
    assert_close(found, reference(dag, inputs), f"{program}\n{source.text}")


def unoptimised(made: Made) -> Made:
    """The program as PoCL compiles it sooner, for GPUs in an eighth of the time."""
    return replace(made, options=(*made.options, "-cl-opt-disable"))


def seldom_optimised(made: Made, one_of: int = 4) -> Made:
    """The program: PoCL optimises one of so many.

    What tests ask is what the text means; each bundle of a user is compared with the model again,
    and optimising takes half of a test's time.
    """
    texts = [kernel.text for kernel in made.kernels]
    return made if drawn(texts, one_of) == 0 else unoptimised(made)


def assert_sketches_agree(device: Device, dag: Dag, sketches: Iterable[Sketch]) -> None:
    """A random candidate of each sketch for a GPU gives the values of the tensor expression.

    What is tested is the text, work-items and barriers: no device that it is for compiles it here.
    So PoCL optimises one sketch of sixteen.
    """
    for sketch in sketches:
        (row,) = sketch.sample(1, np.random.default_rng(1))
        assert_device_agrees(device, dag, sketch.instantiate(row), one_of=16)


def assert_close(found: Arrays, expected: Arrays, context: str) -> None:
    """Equal within the rounding of a reordered float32 sum, or two of a type that is only stored;
    `context` is shown on failure."""
    for name, want in expected.items():
        got, dtype = found[name], dtype_of(want)
        stored = 2 * dtype.roundoff if dtype.is_small_float else 0.0
        assert got.shape == want.shape, f"{name}: shape {got.shape}, expected {want.shape}"
        scale = max(1.0, float(np.abs(want[np.isfinite(want)]).max(initial=0.0)))
        near = max(1e-4, stored), max(1e-5, stored) * scale
        bad = ~np.isclose(got, want, rtol=near[0], atol=near[1], equal_nan=True)
        if bad.any():
            where = tuple(int(i) for i in np.argwhere(bad)[0])
            raise AssertionError(
                f"{name}: {int(bad.sum())} of {bad.size} elements differ, first at {where}: "
                f"got {got[where]}, expected {want[where]}\n{context}"
            )


def run_source(
    device: Device,
    source: ProgramSource,
    inputs: Mapping[str, np.ndarray],
    outputs: Mapping[str, TensorType],
) -> Arrays:
    """The outputs of generated kernels; memory that no kernel wrote reads as NaN or 127s."""
    memory = {}
    for spec in source.buffers:
        if spec.role in ("input", "weight"):
            packing = source.packing(spec.name)
            arrays = [inputs[name] for name in packing.sources]
            data = packing.pack.apply(*arrays) if packing.pack else arrays[0]
            assert data.size == spec.elements
        else:
            data = poisoned(spec.elements, spec.dtype)
        memory[spec.name] = device.upload(data, spec.image)
    program = device.build(source.text, options=source.options)
    device.enqueue(device.prepare_all(program, source.launches, memory))
    device.finish()
    return {name: device.read(memory[name], type) for name, type in outputs.items()}


def poisoned(elements: int, dtype: str) -> np.ndarray:
    """Contents that show up in a result if they are read before they are written."""
    value = np.nan if dtype.startswith("float") else 1 if dtype == BOOL else 127
    return np.full(max(1, elements), value, dtype)

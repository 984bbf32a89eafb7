"""Dot products of bytes and of pairs on PoCL give what the loops that they stand for state."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from retune.codegen.lower import lower
from retune.codegen.target import CPU
from retune.core.dtypes import FLOAT32, INT7, INT8, TensorType
from retune.core.target import GENERIC_CPU
from retune.device.opencl.runtime import Device, open_device
from retune.ir.stmt import from_dag
from retune.ir.te import Dag, placeholder
from retune.ir.verify import verify
from retune.schedule.schedule import Schedule
from retune.targets.cpu.space import cpu_space
from retune.targets.devices import target_of
from tests.support.dags import (
    attended,
    byte_product,
    packed_product,
    pair_product,
    product_of_bytes,
)
from tests.support.oracle import (
    assert_close,
    assert_device_agrees,
    inputs_for,
    reference,
    run_source,
)
from tests.support.properties import seeded
from tests.support.random_schedules import scramble

pytestmark = pytest.mark.device


DOTS = ((4, "dot4", byte_product), (2, "dot2", pair_product))
"""Elements of a pack, the intrinsic, and what it computes."""


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("pocl")


def squares() -> Dag:
    """A matrix of bytes times itself."""
    x = placeholder("x", (6, 8), INT8)
    return product_of_bytes(x, x)


def virtual(s: Schedule) -> None:
    """Two threads side by side within the loop over words."""
    s.bind(s.split("y.j", [2])[1], "vthread")


def guarded(s: Schedule) -> None:
    """Rows past the end are left out, whole dot products at a time."""
    s.bind(s.split("y.i", [4], "guard")[0], "group.0")


def by_items(s: Schedule) -> None:
    """Work-items of one word each."""
    s.bind(s.split("y.j", [3])[1], "local.0")


@pytest.mark.parametrize(
    "dag",
    [byte_product(6, 12, 6), byte_product(6, 12, 6, second=INT7), squares()],
    ids=["product", "narrow", "squares"],
)
@pytest.mark.parametrize("shape", [virtual, guarded, by_items, None])
def test_dot_products(device: Device, dag: Dag, shape: Callable[[Schedule], None] | None):
    s = Schedule(from_dag(dag))
    s.tensorize(s.split("y.k", [4])[1], "dot4")
    if shape is not None:
        shape(s)
    assert " = dot4_" in lower(s.program, CPU).text
    assert_device_agrees(device, dag, s.program)


@pytest.mark.parametrize("instruction", [True, False])
def test_the_largest_sums_fit_halves_of_lanes(device: Device, instruction: bool):
    """32 products of 127 and 15, and of -127 and 15, whether the device has an instruction."""
    dag = packed_product(2, 3, 4, 16, 4, integers=True)
    spec = replace(GENERIC_CPU, instructions=("dot4_halves.avx2",), vector_bits=256)
    sketch = cpu_space(from_dag(dag), spec).sketches[0]
    program = sketch.instantiate(sketch.sample(1, np.random.default_rng(0))[0])
    target = target_of(device.spec) if instruction else CPU
    source = lower(program, target)
    assert " = dot4_halves_ms_8(" in source.text
    inputs = inputs_for(dag)
    inputs["x"] = np.broadcast_to(np.float32([[1], [-1]]), inputs["x"].shape).copy()
    inputs["w"] = np.full_like(inputs["w"], -1)
    wanted = reference(dag, inputs)
    found = run_source(device, source, inputs, {"out": TensorType((2, 16), FLOAT32)})
    assert_close(found, wanted, source.text)
    assert wanted["out"].max() > 0


@pytest.mark.parametrize("seed", range(16))
def test_random_schedules_around_dot_products(device: Device, seed: int):
    choose = seeded(seed)
    pack, name, product = DOTS[seed % len(DOTS)]
    dag = product(1 + choose(6), pack * (1 + choose(3)), 1 + choose(9))
    s = Schedule(from_dag(dag))
    s.tensorize(s.split("y.k", [pack])[1], name)
    scramble(s, choose, 8, verify)
    assert f" = {name}_" in lower(s.program, CPU).text
    assert_device_agrees(device, dag, s.program)


@pytest.mark.parametrize("keys", [True, False])
def test_columns_laid_out_by_packs(device: Device, keys: bool):
    dag, spec = attended(12, 16, 40, keys=keys), replace(GENERIC_CPU, instructions=("dot2.avx512",))
    sketches = cpu_space(from_dag(dag), spec).sketches
    sketch = next(s for s in sketches if ".laid.words" in s.name)
    (row,) = sketch.sample(1, np.random.default_rng(0))
    assert_device_agrees(device, dag, sketch.instantiate(row))

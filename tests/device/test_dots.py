"""Dot products of bytes and of pairs on PoCL give what the loops that they stand for state."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from retune.codegen.lower import lower
from retune.codegen.target import CPU
from retune.core.dtypes import INT7, INT8
from retune.core.target import GENERIC_CPU
from retune.device.opencl.runtime import Device, open_device
from retune.ir.stmt import from_dag
from retune.ir.te import Dag, placeholder
from retune.ir.verify import verify
from retune.schedule.schedule import Schedule
from retune.targets.cpu.space import cpu_space
from tests.support.dags import attended, byte_product, pair_product, product_of_bytes
from tests.support.oracle import assert_device_agrees
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

"""Kernels over types that are only stored agree with numpy, one by one and in vectors."""

import re
import subprocess
import sys

import numpy as np
import pytest

from retune.codegen.lower import lower
from retune.codegen.target import CPU
from retune.core.dtypes import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    INT4,
    INT8,
    UINT4,
    UINT8,
    DType,
    TensorType,
)
from retune.device.opencl.runtime import Device, open_device
from retune.ir.expr import const, select
from retune.ir.interp import run_dag
from retune.ir.stmt import from_dag
from retune.ir.te import Dag, Tensor, compute, placeholder, reduce_axis, stored
from retune.schedule.schedule import Schedule
from tests.support.oracle import run_source

pytestmark = pytest.mark.device

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3.38e38, 1.00390625, 1.01171875]
"""Among them halves between two bfloat16, and what rounds up to infinity."""


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("pocl")


def scaled(dtype: DType) -> tuple[Tensor, Tensor]:
    x = placeholder("x", (4, 64), dtype)
    y = compute("y", (4, 64), lambda i, j: x[i, j] * 1.0, [x])
    return x, y


def found_on(device: Device, s: Schedule, dtype: DType, arrays: dict[str, np.ndarray]):
    types = {"y": TensorType((4, 64), dtype)}
    return run_source(device, lower(s.program, CPU), arrays, types)["y"]


@pytest.mark.parametrize("lanes", [1, 4, 16])
@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16])
def test_values_are_rounded_as_numpy_rounds_them(device: Device, dtype: DType, lanes: int):
    x = placeholder("x", (4, 64))
    y = stored(compute("y", (4, 64), lambda i, j: x[i, j] * 1.0, [x]), dtype)
    s = Schedule(from_dag(Dag((y,))))
    if lanes > 1:
        s.vectorize(s.split("y.j", [lanes])[1])
    values = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    values.flat[: len(SPECIAL)] = SPECIAL
    with np.errstate(over="ignore"):
        expected = values.astype(dtype.numpy)
    got = found_on(device, s, dtype, {"x": values})
    same = np.isnan(expected) == np.isnan(got)
    assert np.all(same)
    np.testing.assert_array_equal(got.astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("lanes", [1, 4, 16])
@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16])
def test_choices_between_elements_and_numbers_are_moved_as_they_lie(
    device: Device, dtype: DType, lanes: int
):
    """As padding is: by a test of a row, and by one of each lane."""
    x, rest = placeholder("x", (4, 64), dtype), const(1.5, FLOAT32)
    inner = compute(
        "y", (4, 64), lambda i, j: select(i < 3, select(j < 37, x[i, j], rest), rest), [x]
    )
    dag = Dag((stored(inner, dtype),))
    s = Schedule(from_dag(dag))
    if lanes > 1:
        s.vectorize(s.split("y.j", [lanes])[1])
    values = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    values.flat[: len(SPECIAL)] = SPECIAL
    with np.errstate(over="ignore"):
        given = values.astype(dtype.numpy)
    expected = np.full((4, 64), 1.5, dtype.numpy)
    expected[:3, :37] = given[:3, :37]
    got = found_on(device, s, dtype, {"x": given})
    np.testing.assert_array_equal(got.view(np.uint16), expected.view(np.uint16))
    (body,) = (k.text.rpartition("__kernel")[0] for k in lower(s.program, CPU).kernels)
    assert not re.search(r"= TO_BFLOAT16|TO_BFLOAT16\w*\(\(|vload_half|vstore_half", body)


@pytest.mark.parametrize("lanes", [1, 4, 16])
@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16])
def test_products_are_summed_in_float32(device: Device, dtype: DType, lanes: int):
    x, w = placeholder("x", (4, 48), dtype), placeholder("w", (48, 64), dtype)
    k = reduce_axis("k", 48)
    sums = compute("t", (4, 64), lambda i, j: x[i, k] * w[k, j], [x, w], reduce=[k])
    y = stored(compute("y", (4, 64), lambda i, j: sums[i, j] + 1.0, [sums]), dtype)
    dag = Dag((y,))
    s = Schedule(from_dag(dag))
    if lanes > 1:
        s.vectorize(s.split("t.j", [lanes])[1])
        s.vectorize(s.split("y.j", [lanes])[1])
    rng = np.random.default_rng(1)
    arrays = {t.name: rng.standard_normal(t.shape).astype(dtype.numpy) for t in (x, w)}
    got = found_on(device, s, dtype, arrays).astype(np.float32)
    expected = run_dag(dag, arrays)["y"].astype(np.float32)
    np.testing.assert_allclose(got, expected, rtol=2.0**-7, atol=1e-2)


@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize(("dtype", "wide"), [(INT4, INT8), (UINT4, UINT8)])
def test_integers_of_four_bits_are_read(device: Device, dtype: DType, wide: DType, lanes: int):
    x = placeholder("x", (4, 64), dtype)
    s = Schedule(from_dag(Dag((compute("y", (4, 64), lambda i, j: x[i, j], [x]),))))
    if lanes > 1:
        s.vectorize(s.split("y.j", [lanes])[1])
    low, high = dtype.limits
    values = np.random.default_rng(2).integers(low, high, (4, 64), endpoint=True)
    got = found_on(device, s, wide, {"x": values.astype(dtype.numpy)})
    np.testing.assert_array_equal(got, values.astype(wide.numpy))
    z = stored(compute("y", (4, 64), lambda i, j: x[i, j], [x]), dtype)
    got = found_on(device, Schedule(from_dag(Dag((z,)))), dtype, {"x": values.astype(dtype.numpy)})
    np.testing.assert_array_equal(got.astype(wide.numpy), values)


@pytest.mark.process
def test_a_new_process_reads_bfloat16():
    """Without `ml_dtypes`, which nothing has loaded in it, numpy does not know the type's name."""
    program = (
        "import sys; from retune.core.dtypes import BFLOAT16, TensorType; "
        "from retune.device.opencl.runtime import open_device; device = open_device('pocl'); "
        "assert 'ml_dtypes' not in sys.modules; "
        "print(device.read(device.allocate(64), TensorType((4,), BFLOAT16)).dtype)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout.strip() == "bfloat16"

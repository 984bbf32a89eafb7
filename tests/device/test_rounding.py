"""Rounding by the processor's instruction gives what IEEE 754 says, in vectors and alone."""

from collections.abc import Callable
from dataclasses import replace
from math import erf, tanh

import numpy as np
import pytest

from retune.codegen.lower import lower
from retune.codegen.target import CPU
from retune.core.dtypes import BFLOAT16, FLOAT32
from retune.core.target import converting
from retune.device.opencl.probe_child import rounds
from retune.device.opencl.runtime import BuildFailed, Device, open_device
from retune.ir.functions import call
from retune.ir.stmt import from_dag
from retune.ir.te import Dag, compute, placeholder, stored
from retune.schedule.schedule import Schedule
from tests.support.oracle import TensorType, assert_device_agrees, run_source

pytestmark = pytest.mark.device

EXPECTED = {"round": np.rint, "floor": np.floor, "ceil": np.ceil}
HALVES = np.arange(-40, 40, dtype=np.float32) / 2
NEAR = np.nextafter(HALVES, np.float32(np.inf))
LARGE = np.array(
    [2.0**22 + 0.5, 2.0**23 - 0.5, 2.0**23 + 1, 2.0**31, 3e38, 1e-38, 0.1, 0.9], np.float32
)
VALUES = np.concatenate([HALVES, NEAR, -NEAR, LARGE, -LARGE]).astype(np.float32)


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("pocl")


@pytest.mark.parametrize("lanes", [1, 4, 16])
@pytest.mark.parametrize("name", EXPECTED)
def test_whole_numbers_of_all_sizes(device: Device, name: str, lanes: int):
    shape = (VALUES.size,)
    x = placeholder("x", shape)
    dag = Dag((compute("y", shape, lambda i: call(name, x[i]), [x]),))
    s = Schedule(from_dag(dag))
    if lanes > 1:
        s.vectorize(s.split("y.i", [lanes])[1])
    source = lower(s.program, CPU)
    found = run_source(device, source, {"x": VALUES}, {"y": TensorType(shape, FLOAT32)})
    np.testing.assert_array_equal(found["y"], EXPECTED[name](VALUES))


@pytest.mark.parametrize(("name", "meaning"), [("erf", erf), ("tanh", tanh)])
def test_odd_functions_of_vectors(device: Device, name: str, meaning: Callable[[float], float]):
    """Within some roundings of float32, with 1 at both ends, signed zeros, and NaN."""
    values = np.linspace(-10, 10, 1009, dtype=np.float32)
    values = np.concatenate([values, [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -3e38]])
    values = values.astype(np.float32)[:1008]
    values[:7] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -3e38]
    x = placeholder("x", values.shape)
    dag = Dag((compute("y", values.shape, lambda i: call(name, x[i]), [x]),))
    s = Schedule(from_dag(dag))
    s.vectorize(s.split("y.i", [16])[1])
    source = lower(s.program, CPU)
    assert f"{name.upper()}_FLOAT16(" in source.text
    found = run_source(device, source, {"x": values}, {"y": TensorType(values.shape, FLOAT32)})["y"]
    expected = np.array([meaning(float(v)) for v in values])
    np.testing.assert_allclose(found, expected, rtol=5e-7)
    assert np.signbit(found[1]) and np.abs(found[np.isfinite(found)]).max() == 1.0


def test_exp_of_vectors(device: Device):
    """Within some roundings of float32 where results are normal, 0 below; infinity and NaN."""
    ends = [0.0, -0.0, np.inf, -np.inf, np.nan, -87.4, -1e30, 88.72283, 88.7229, 3e38, 1e-30]
    values = np.concatenate([ends, np.linspace(-87.33, 88.7, 1008 - len(ends))]).astype(np.float32)
    x = placeholder("x", values.shape)
    s = Schedule(from_dag(Dag((compute("y", values.shape, lambda i: call("exp", x[i]), [x]),))))
    s.vectorize(s.split("y.i", [16])[1])
    source = lower(s.program, CPU)
    assert "EXP_FLOAT16(" in source.text
    found = run_source(device, source, {"x": values}, {"y": TensorType(values.shape, FLOAT32)})["y"]
    with np.errstate(over="ignore"):
        expected = np.exp(values.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(found, np.where(values < -87.34, 0, expected), rtol=4e-7)
    near = np.abs(values) < 20
    np.testing.assert_allclose(found[near], expected[near], rtol=2.2e-7)
    assert found[0] == found[1] == 1.0


def test_bfloat16_by_an_instruction_where_there_is_one(device: Device):
    name = converting(BFLOAT16)
    try:
        found = rounds(device)
    except BuildFailed:  # by the compiler's own backend
        found = False
    assert found == (name in device.spec.instructions)
    x = placeholder("x", (48,))
    y = stored(compute("y", (48,), lambda i: x[i] * 2.0, [x]), BFLOAT16)
    s = Schedule(from_dag(Dag((y,))))
    s.vectorize(s.split("y.i", [16])[1])
    source = lower(s.program, replace(CPU, offers=(name,)))
    assert "vcvtneps2bf16" in source.text
    assert source.kernels[0].intrinsics == (name,)
    assert "vcvtneps2bf16" not in lower(s.program, CPU).text
    if name in device.spec.instructions:
        assert_device_agrees(device, Dag((y,)), s.program)

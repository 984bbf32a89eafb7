"""A type of storage that only this test knows: an entry of the table is all that it takes."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from retune.bundle.build import build_plan
from retune.bundle.format import read_bundle, write_bundle
from retune.bundle.runtime.module import Module
from retune.bundle.verify.compare import tolerance_of, verify
from retune.codegen.lower import lower
from retune.codegen.target import CPU
from retune.core.dtypes import BFLOAT16, ENTRIES, FLOAT8_E4M3FN, FLOAT8_E5M2, DType, TensorType
from retune.device.opencl.runtime import Device, open_device
from retune.frontend.onnx.importer import load_file
from retune.graph.evaluate import run_graph
from retune.graph.passes.pipeline import optimise
from retune.graph.passes.precision import Precision
from retune.ir.stmt import from_dag
from retune.ir.te import Dag, Tensor, compute, placeholder, stored
from retune.schedule.schedule import Schedule
from retune.search.extract import extract
from tests.external.on_device import opened
from tests.support.networks import node
from tests.support.new_types import E3M4, E5M2FNUZ, new_type
from tests.support.oracle import run_source
from tests.support.types import save

pytestmark = pytest.mark.device

SMALL = [BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2, E5M2FNUZ["name"], E3M4["name"]]


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("pocl")


@pytest.fixture(autouse=True)
def new_types() -> Iterator[None]:
    with new_type(E5M2FNUZ), new_type(E3M4):
        yield


def every_number(dtype: DType) -> np.ndarray:
    """All patterns of bits."""
    return np.arange(1 << dtype.bits).astype(f"u{dtype.itemsize}").view(dtype.numpy)


def run(device: Device, made: Tensor, array: np.ndarray, lanes: int) -> np.ndarray:
    s = Schedule(from_dag(Dag((made,))))
    if lanes > 1:
        s.vectorize(s.split("y.i", [lanes])[1])
    types = {"y": TensorType(made.shape, made.dtype)}
    return run_source(device, lower(s.program, CPU), {"x": array}, types)["y"]


def assert_same(found: np.ndarray, expected: np.ndarray) -> None:
    """Signs of zeros included."""
    found, expected = found.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_array_equal(found, expected)
    whole = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found[whole]), np.signbit(expected[whole]))


@pytest.mark.parametrize("lanes", [1, 4, 16])
@pytest.mark.parametrize("name", SMALL)
def test_every_number_is_read(device: Device, name: str, lanes: int):
    values = every_number(DType(name))
    x = placeholder("x", values.shape, DType(name))
    y = compute("y", values.shape, lambda i: x[i] * 1.0, [x])
    assert_same(run(device, y, values, lanes), values.astype(np.float32))


@pytest.mark.parametrize("lanes", [1, 4, 16])
@pytest.mark.parametrize("name", SMALL)
def test_numbers_are_rounded_to_the_nearest(device: Device, name: str, lanes: int):
    """Halves to even; numbers, halves between neighbours, what lies beside them, and others."""
    dtype = DType(name)
    with np.errstate(invalid="ignore"):
        patterns = every_number(dtype).astype(np.float64)
    numbers = np.unique(patterns[np.isfinite(patterns)])
    beyond = numbers[-1] + (numbers[-1] - numbers[-2]) * np.array([0.49, 0.5, 0.51, 1, 2])
    rng = np.random.default_rng(0)
    others = rng.standard_normal(500) * numbers[-1] / 3
    exact = np.concatenate([numbers, (numbers[1:] + numbers[:-1]) / 2, beyond, -beyond, others])
    with np.errstate(all="ignore"):
        near = exact.astype(np.float32)
        beside = [np.nextafter(near, np.float32(side)) for side in (np.inf, -np.inf)]
        special = np.array([0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-30], np.float32)
        values = np.concatenate([near, *beside, special])
        values = np.concatenate([values, np.zeros(-len(values) % 16, np.float32)])
        expected = values.astype(dtype.numpy)
    x = placeholder("x", values.shape)
    y = stored(compute("y", values.shape, lambda i: x[i] * 1.0, [x]), dtype)
    assert_same(run(device, y, values, lanes), expected)


def test_a_network_of_a_new_type_is_imported_bundled_and_run(tmp_path: Path):
    """Weights, inputs and outputs lie in memory so, on a device that keeps what is small."""
    name = E5M2FNUZ["name"]
    dtype, number = DType(name), TensorProto.FLOAT8E5M2FNUZ
    rng = np.random.default_rng(0)
    nodes = [
        node("Cast", ["x"], ["wide"], to=TensorProto.FLOAT),
        node("Cast", ["w"], ["weight"], to=TensorProto.FLOAT),
        node("MatMul", ["wide", "weight"], ["product"]),
        node("Relu", ["product"], ["z"]),
        node("Cast", ["z"], ["y"], to=number),
        node("Transpose", ["x"], ["turned"]),
        node("Identity", ["w"], ["kept"]),
    ]
    path = save(
        tmp_path / "net.onnx",
        nodes,
        {"x": (number, [4, 32])},
        {"z": TensorProto.FLOAT, "y": number, "turned": number, "kept": number},
        {"w": rng.standard_normal((32, 16)).astype(dtype.numpy)},
    )
    graph = load_file(path)
    network = extract(optimise(graph, precision=Precision(own=frozenset({dtype}))))
    device = opened("profile:mali-g76@pocl")
    plan = build_plan(network, {}, device.spec, model_key="m", notes={})
    assert dtype in {b.dtype for b in plan.buffers if b.role == "weight"}
    assert tolerance_of(plan) == 5 * dtype.tolerance
    module = Module(read_bundle(write_bundle(plan, tmp_path / "module")), device)
    assert {module.inputs["x"].dtype, module.outputs["y"].dtype} == {dtype}
    feeds = {"x": rng.standard_normal((4, 32)).astype(dtype.numpy)}
    expected, found = run_graph(graph, feeds), module.run(feeds)
    for output, array in expected.items():
        assert found[output].dtype == array.dtype
        np.testing.assert_allclose(
            found[output].astype(np.float32), array.astype(np.float32), rtol=1e-5, atol=1e-5
        )
    outcome = verify(module, lambda arrays: run_graph(graph, arrays), module.random_inputs)
    assert outcome.passed, outcome


def test_the_table_is_as_it_was_between_tests():
    with pytest.raises(ValueError, match="expected a new name, got that of an entry"):
        new_type(E3M4).__enter__()
    assert E3M4["name"] in ENTRIES

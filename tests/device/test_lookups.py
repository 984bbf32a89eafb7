"""Every byte finds its own in a table, by the processor's permutations or byte by byte."""

from dataclasses import replace

import numpy as np
import pytest

from retune.bundle.build import build_plan
from retune.bundle.runtime.module import Module
from retune.codegen.lower import lower
from retune.codegen.target import CPU
from retune.core.dtypes import FLOAT32, INT8, INT64, UINT8, TensorType
from retune.core.errors import InputError
from retune.device.opencl.runtime import Device, open_device
from retune.graph.graph import GraphBuilder
from retune.search.extract import extract
from tests.support.lookups import by_lanes, looked_up
from tests.support.oracle import run_source

pytestmark = pytest.mark.device


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("pocl")


@pytest.mark.parametrize("feature", ["__AVX512BW__", "ANOTHER"])
@pytest.mark.parametrize("table", [UINT8, INT8])
@pytest.mark.parametrize("codes", [UINT8, INT8])
def test_tables_of_bytes(device: Device, codes: str, table: str, feature: str):
    rng = np.random.default_rng(3)
    elements = rng.permutation(256).astype(np.uint8).view(table)
    least = int(np.iinfo(codes).min)
    x = (rng.permutation(256) + least).astype(codes)
    source = lower(by_lanes(looked_up(codes, table, count=256), 16).program, CPU)
    (kernel,) = source.kernels
    assert "__AVX512BW__" in kernel.text
    text = kernel.text.replace("__AVX512BW__", feature)
    source = replace(source, kernels=(replace(kernel, text=text),))
    made = {"y": TensorType((256,), UINT8 if table == UINT8 else INT8)}
    found = run_source(device, source, {"x": x, "t": elements}, made)["y"]
    np.testing.assert_array_equal(found, elements[x.astype(int) - least])


def test_rows_that_a_wide_index_adds_up_are_vectors(device: Device):
    """What all lanes share may be of a type that has no vectors."""
    build = GraphBuilder("net")
    shapes = {"x": (1, 4, 48), "places": (1, 9), "updates": (1, 9, 48)}
    for name, shape in shapes.items():
        build.input(name, TensorType(shape, INT64 if name == "places" else FLOAT32))
    build.add("fold_rows", list(shapes), {"reduction": "add"}, outputs=["y"])
    network = extract(build.finish(["y"]))
    plan = build_plan(network, {}, device.spec, model_key="", notes={})
    assert f"? vload{device.spec.vector_lanes(48)}(" in plan.text
    rng = np.random.default_rng(5)
    x, updates = (rng.standard_normal(shapes[n]).astype(np.float32) for n in ("x", "updates"))
    places = rng.integers(0, 4, shapes["places"])
    expected = x.copy()
    np.add.at(expected[0], places[0], updates[0])
    found = Module(plan, device).run({"x": x, "places": places, "updates": updates})["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_nothing_outside_is_read(device: Device):
    """Indices that are inputs are refused; those that are computed read the nearest element."""
    build, table = GraphBuilder("net"), np.arange(35, dtype=np.float32).reshape(5, 7)
    build.input("ids", TensorType((2, 7), INT64))
    build.input("n", TensorType((2, 7), INT64))
    build.constant("table", table)
    build.add("gather", ["table", "ids"], {"axis": 0}, outputs=["rows"])
    build.add("multiply", ["n", "n"], outputs=["far"])
    build.add("negative", ["far"], outputs=["below"])
    build.add("gather", ["table", "far"], {"axis": 1}, outputs=["columns"])
    build.add("gather_elements", ["table", "below"], {"axis": 0}, outputs=["elements"])
    network = extract(build.finish(["rows", "columns", "elements"]))
    module = Module(build_plan(network, {}, device.spec, model_key="", notes={}), device)
    ids, n = np.arange(-7, 7).reshape(2, 7) % 5 - 5, np.array([[0, 1, 2, 9, 99, 1 << 15, 3]] * 2)
    found = module.run({"ids": ids, "n": n})
    below = np.maximum(-n * n, -5)
    np.testing.assert_array_equal(found["rows"], table[ids])
    np.testing.assert_array_equal(found["columns"], table[:, np.minimum(n * n, 6)])
    np.testing.assert_array_equal(found["elements"], np.take_along_axis(table, below, 0))
    for wrong in (5, -6, 1 << 40):
        ids[1, 3] = wrong
        with pytest.raises(InputError, match=rf"ids: expected indices from -5 to 4; got {wrong};"):
            module.run({"ids": ids, "n": n})

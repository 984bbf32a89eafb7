"""Networks whose inputs and outputs are of other types than float32, on PoCL, as a user runs them.

PoCL's CPU has no float16: such networks are of float32 inside. Devices that have it keep it in
memory; profiles of these are played.
"""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from retune.bundle.build import build_plan
from retune.bundle.format import write_bundle
from retune.bundle.plan import NetworkPlan
from retune.bundle.runtime.module import Module
from retune.bundle.verify.compare import tolerance_of, verify
from retune.bundle.verify.peers import open_peer
from retune.core.dtypes import FLOAT16
from retune.core.errors import InputError
from retune.frontend.onnx.importer import load_file
from retune.graph.passes.pipeline import Layout, optimise
from retune.graph.passes.precision import Precision
from retune.search.extract import extract
from tests.external.on_device import compile_graph, compile_network, pocl
from tests.support.networks import node
from tests.support.types import half_network, save

pytestmark = pytest.mark.device


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_a_network_of_float16_agrees_with_onnxruntime(tmp_path: Path, layout: Layout):
    path = half_network(tmp_path / "net.onnx")
    module = compile_graph(load_file(path), layout)
    assert {entry.dtype for entry in (*module.inputs.values(), *module.outputs.values())} == {
        "float16"
    }
    outcome = verify(module, open_peer("onnxruntime", path), module.random_inputs, samples=2)
    assert outcome.passed, outcome


@pytest.mark.parametrize("profile", ["mali-g76", "adreno-6xx"])
def test_float16_stays_in_memory_where_devices_have_it(tmp_path: Path, profile: str):
    """With local memory, and without; no kernel computes with it, and none needs an extension."""
    path = half_network(tmp_path / "net.onnx")
    network = extract(optimise(load_file(path), precision=Precision(own=frozenset({FLOAT16}))))
    module = compile_network(network, device=f"profile:{profile}@pocl")
    plan = module.plan
    assert {b.dtype for b in plan.buffers if b.role == "weight"} == {"float16"}
    assert tolerance_of(plan) == 1e-2
    outcome = verify(module, open_peer("onnxruntime", path), module.random_inputs, samples=2)
    assert outcome.max_rel_range <= 1e-3, outcome


def test_float16_goes_through_casts_copies_and_constants(tmp_path: Path):
    half, single = TensorProto.FLOAT16, TensorProto.FLOAT
    nodes = [
        node("Cast", ["x"], ["a"], to=single),
        node("Mul", ["a", "a"], ["squares"]),
        node("Cast", ["squares"], ["y"], to=half),
        node("Transpose", ["x"], ["turned"]),
        node("Reshape", ["x", "flat"], ["row"]),
        node("Identity", ["w"], ["stored"]),
        node("Cast", ["x"], ["whole"], to=TensorProto.INT32),
        node("Cast", ["z"], ["narrow"], to=half),
    ]
    outputs = dict.fromkeys(("y", "turned", "row", "stored", "narrow"), half)
    path = save(
        tmp_path / "net.onnx",
        nodes,
        {"x": (half, [3, 5]), "z": (single, [7])},
        {**outputs, "whole": TensorProto.INT32},
        {"w": np.float16([1, 2, 3]), "flat": np.array([15])},
    )
    module = compile_graph(load_file(path))
    expected = open_peer("onnxruntime", path)
    feeds = module.random_inputs() | {"z": np.float32([0, -0.0, 1e-8, 1e5, np.inf, 2049, 0.1])}
    found = module.run(feeds)
    for name, array in expected(feeds).items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
        assert found[name].dtype == array.dtype


def embedding_network(path: Path) -> Path:
    """What language models have: ids, a mask, a truth value, a scalar; scores, a choice, a flag."""
    whole, truth, single = TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT
    rng = np.random.default_rng(1)
    nodes = [
        node("Gather", ["table", "ids"], ["words"], axis=0),
        node("Gather", ["kinds", "kind"], ["sorts"], axis=0),
        node("Add", ["words", "sorts"], ["both"]),
        node("Where", ["keep", "both", "zero"], ["kept"]),
        node("Mul", ["kept", "scale"], ["scaled"]),
        node("MatMul", ["scaled", "w"], ["scores"]),
        node("ReduceMax", ["scores"], ["best"], axes=[2], keepdims=0),
        node("Greater", ["best", "zero"], ["good"]),
        node("Cast", ["good"], ["count"], to=TensorProto.INT64),
        node("Add", ["ids", "count"], ["next"]),
    ]
    return save(
        path,
        nodes,
        {
            "ids": (whole, [1, 6]),
            "kind": (TensorProto.INT32, [1, 6]),
            "keep": (truth, [1, 6, 1]),
            "scale": (single, []),
        },
        {"scores": single, "good": truth, "next": whole},
        {
            "table": rng.standard_normal((500, 8)).astype(np.float32),
            "kinds": rng.standard_normal((2, 8)).astype(np.float32),
            "zero": np.float32(0).reshape(()),
            "w": rng.standard_normal((8, 11)).astype(np.float32),
        },
    )


def test_whole_numbers_truth_values_and_scalars_go_in_and_out(tmp_path: Path):
    path = embedding_network(tmp_path / "net.onnx")
    made = compile_graph(load_file(path))
    assert made.plan.counts == {"ids": 500, "kind": 2}
    write_bundle(_plan(path), tmp_path / "module")
    module = Module.load(tmp_path / "module")
    feeds = module.random_inputs()
    assert feeds["ids"].max() < 500
    assert feeds["kind"].max() < 2
    assert (feeds["keep"].dtype, feeds["scale"].shape) == (np.bool_, ())
    outcome = verify(module, open_peer("onnxruntime", path), module.random_inputs, samples=3)
    assert outcome.passed, outcome
    assert len(module.benchmark(repeat=2, warmup=1)) == 2
    assert module.profile(repeat=1)


def test_wrong_inputs_of_these_types_are_named(tmp_path: Path):
    module = compile_graph(load_file(embedding_network(tmp_path / "net.onnx")))
    feeds = module.random_inputs()
    for name, wrong, message in (
        ("ids", feeds["ids"].astype(np.int32), r"input ids: expected int64\[1, 6\]; got int32"),
        ("scale", np.ones(1, np.float32), r"input scale: expected float32\[\]; got float32\[1\]"),
        ("keep", np.ones((1, 6, 1), np.uint8), r"input keep: expected bool\[1, 6, 1\]; got uint8"),
    ):
        with pytest.raises(InputError, match=message):
            module.run({**feeds, name: wrong})
    assert module.run({**feeds, "scale": np.float32(2)})  # type: ignore[dict-item]


def _plan(path: Path) -> NetworkPlan:
    network = extract(optimise(load_file(path)))
    return build_plan(network, {}, pocl().spec, model_key="m", notes={})

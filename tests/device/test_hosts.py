"""Networks with host steps on PoCL: alone, in parts, beside onnxruntime, raced and profiled."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from retune.bundle.build import build_finalists, build_plan
from retune.bundle.format import pack_zip, write_bundle
from retune.bundle.plan import Form, NetworkPlan
from retune.bundle.runtime.forms import best_form
from retune.bundle.runtime.module import Module
from retune.bundle.verify.by_parts import parts_of
from retune.bundle.verify.compare import compare, verify
from retune.bundle.verify.in_network import open_finalists
from retune.bundle.verify.peers import Predict, numpy_peer, open_peer, open_reference
from retune.cli.commands.bench import bench
from retune.cli.commands.verify import verify as check
from retune.core.dtypes import INT64, TensorType
from retune.core.errors import InputError
from retune.device.measure.ceilings import Ceilings
from retune.device.opencl.runtime import Device, open_device
from retune.frontend.host.step import host_attrs
from retune.frontend.onnx.importer import load_file
from retune.graph.evaluate import random_inputs, run_graph
from retune.graph.graph import GraphBuilder
from retune.graph.passes.pipeline import optimise
from retune.ops.registry import HOST
from retune.search.extract import Network, extract
from tests.support.host import NONZERO, SPLIT, model
from tests.support.host_networks import NETWORKS, HostNetwork, detector

pytestmark = pytest.mark.device

Arrays = Mapping[str, np.ndarray]


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("pocl")


def network_of(made: HostNetwork) -> Network:
    return extract(optimise(made.graph))


def plan_of(made: HostNetwork, device: Device, form: Form = "persistent") -> NetworkPlan:
    plan = build_plan(network_of(made), {}, device.spec, model_key="", notes={})
    return replace(plan, form=form)


@pytest.mark.parametrize(
    ("name", "form"),
    [*((name, "persistent") for name in NETWORKS), ("both", "inline")],
)
def test_a_network_agrees_with_its_numpy_meaning(
    name: str, form: Form, tmp_path: Path, device: Device
):
    made = NETWORKS[name](tmp_path)
    module = Module(plan_of(made, device, form), device)
    assert module.form == form
    for seed in range(3):
        inputs = random_inputs(made.graph, seed)
        found = module.run(inputs)
        assert list(found) == list(made.graph.outputs)
        for value, expected in run_graph(made.graph, inputs).items():
            assert found[value].dtype == expected.dtype
            np.testing.assert_allclose(found[value], expected, rtol=1e-4, atol=1e-5)


def test_launches_one_by_one(tmp_path: Path, device: Device, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("retune.bundle.runtime.executor.can_persist", lambda device: False)
    made = NETWORKS["both"](tmp_path)
    module = Module(plan_of(made, device, "queued"), device)
    assert module.form == "queued"
    assert verify(module, open_peer("onnxruntime", made.path), module.random_inputs).passed


@pytest.mark.parametrize("zipped", [False, True])
def test_a_bundle_runs_from_disk(device: Device, tmp_path: Path, zipped: bool):
    made = NETWORKS["both"](tmp_path)
    path = write_bundle(plan_of(made, device), tmp_path / "module")
    path = pack_zip(path, tmp_path / "module.zip") if zipped else path
    module = Module.load(path, device)
    outcome = verify(module, open_reference(made.path, lambda: made.graph), module.random_inputs)
    assert outcome.passed and not outcome.by_parts, outcome


def test_sizes_depend_on_the_inputs(tmp_path: Path, device: Device):
    module = Module(plan_of(detector(tmp_path), device), device)
    chosen, _ = module.outputs
    assert str(module.outputs[chosen]) == "int64[?, 3]"
    sizes = {len(module.run(module.random_inputs(seed))[chosen]) for seed in range(8)}
    assert len(sizes) > 1


def test_outputs_of_two_runs_are_arrays_of_their_own(tmp_path: Path, device: Device):
    module = Module(plan_of(NETWORKS["ranked"](tmp_path), device), device)
    first = module.run(module.random_inputs(0))
    kept = {name: array.copy() for name, array in first.items()}
    for array in module.run(module.random_inputs(1)).values():
        array[...] = 0
    for name, array in first.items():
        np.testing.assert_array_equal(array, kept[name])


def in_other_order(reference: Predict) -> Predict:
    """A reference whose rounding exchanges two boxes: what it makes is as right as before."""

    def predict(inputs: Arrays) -> Arrays:
        outputs = {name: np.array(array) for name, array in reference(inputs).items()}
        for array in outputs.values():
            if len(array) > 1:
                array[:2] = array[1::-1].copy()
        return outputs

    return predict


@pytest.mark.parametrize("name", ["detector", "both"])
def test_where_a_choice_jumps_the_parts_decide(name: str, tmp_path: Path, device: Device):
    made = NETWORKS[name](tmp_path)
    module = Module(plan_of(made, device), device)
    other = in_other_order(open_peer("onnxruntime", made.path))
    assert not verify(module, other, module.random_inputs, samples=2).passed
    parts = parts_of(module, made.path, made.graph)
    outcome = verify(module, other, module.random_inputs, samples=2, parts=parts)
    assert outcome.passed and outcome.by_parts, outcome
    assert len(outcome.outputs) >= 4  # both that the host reads, and both that it makes


def test_without_onnxruntime_the_parts_are_numpy_s(
    tmp_path: Path, device: Device, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("retune.bundle.verify.by_parts.has_onnxruntime", lambda: False)
    made = NETWORKS["both"](tmp_path)
    module = Module(plan_of(made, device), device)
    other = in_other_order(numpy_peer(made.graph))
    parts = parts_of(module, made.path, made.graph)
    outcome = verify(module, other, module.random_inputs, samples=2, parts=parts)
    assert outcome.passed and outcome.by_parts, outcome


def test_a_host_step_that_does_something_else_is_found(tmp_path: Path, device: Device):
    made = detector(tmp_path)
    plan = plan_of(made, device)
    changed = onnx.ModelProto.FromString(plan.hosts[0].model)
    (node,) = [node for node in changed.graph.node if node.op_type == "NonMaxSuppression"]
    del node.attribute[:]  # the boxes' centres are taken for corners
    host = replace(plan.hosts[0], model=changed.SerializeToString())
    module = Module(replace(plan, hosts=(host,)), device)
    reference = open_peer("onnxruntime", made.path)
    assert not verify(module, reference, module.random_inputs).passed
    parts = parts_of(module, made.path, made.graph)
    assert not verify(module, reference, module.random_inputs, parts=parts).passed


def test_a_device_part_that_does_something_else_is_found(tmp_path: Path, device: Device):
    made = detector(tmp_path)
    plan = plan_of(made, device)
    weights = {n: a * np.float32(1.01) if a.ndim else a for n, a in plan.weights.items()}
    module = Module(replace(plan, weights=weights), device)
    reference = open_peer("onnxruntime", made.path)
    parts = parts_of(module, made.path, made.graph)
    outcome = verify(module, reference, module.random_inputs, parts=parts)
    assert outcome.by_parts and not outcome.passed


def test_a_profile_has_a_row_for_each_step(tmp_path: Path, device: Device):
    module = Module(plan_of(NETWORKS["both"](tmp_path), device), device)
    rows = module.profile(repeat=2, ceilings=Ceilings(device))
    assert [row.host for row in rows] == [hasattr(s, "model") for s in module.plan.steps]
    hosts = [row for row in rows if row.host]
    assert [row.kernel for row in hosts] == ["TopK", "NonMaxSuppression, Gather, Squeeze"]
    assert all(row.median_s > 0 and row.flops == 0 and row.roofline is None for row in hosts)
    assert sum(row.share for row in rows) == pytest.approx(1)


def test_the_command_line_shows_host_steps(
    tmp_path: Path, device: Device, capsys: pytest.CaptureFixture[str]
):
    path = write_bundle(plan_of(NETWORKS["ranked"](tmp_path), device), tmp_path / "module")
    bench(path, repeat=1, profile=True)
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "on the host" in line]
    assert row.split()[:4] == ["on", "the", "host:", "TopK"]
    assert row.split()[-3:] == ["-", "-", "-"]


@pytest.mark.parametrize("name", ["detector", "both"])
def test_an_imported_network_agrees_as_a_whole_and_in_parts(
    name: str, tmp_path: Path, device: Device, capsys: pytest.CaptureFixture[str]
):
    made = NETWORKS[name](tmp_path)
    graph = load_file(made.path)
    plan = build_plan(extract(optimise(graph)), {}, device.spec, model_key="", notes={})
    path = write_bundle(plan, tmp_path / "module")
    check(path, str(made.path), samples="2")
    assert "agrees with onnxruntime" in capsys.readouterr().out
    module, inputs = Module.load(path), random_inputs(graph)
    parts = parts_of(module, made.path, graph)
    assert parts is not None
    found = [compare(p.name, p.got, p.expected) for p in parts(inputs, module.run(inputs))]
    assert len(found) >= 4 and max(row.max_rel_range for row in found) < 1e-5, found


def test_the_form_is_found_by_whole_calls(tmp_path: Path, device: Device):
    plan = best_form(plan_of(NETWORKS["ranked"](tmp_path), device), device)
    assert plan.form in ("persistent", "inline")


@pytest.mark.parametrize("name", NETWORKS)
def test_the_device_s_part_is_raced(name: str, tmp_path: Path, device: Device):
    network = network_of(NETWORKS[name](tmp_path))
    plan = build_finalists(network, {}, device.spec, model_key="", notes={})
    finalists = open_finalists(plan, device)
    assert finalists.resolved
    seconds = finalists.times(np.zeros((2, len(plan.slots)), np.int64))
    assert seconds.shape == (2, len(plan.slots)) and (seconds.sum(axis=1) > 0).all()
    made = {value for host in plan.plan.hosts for value in host.writes}
    assert finalists.outputs().keys() == set(plan.plan.outputs) - made


def test_a_network_of_host_steps_only(device: Device):
    build = GraphBuilder("net")
    build.input("x", TensorType((2, 3)))
    found = TensorType((2, -1), INT64)
    build.add(HOST, ["x"], host_attrs(model(NONZERO), [found]), outputs=["found"])
    graph = build.finish(["found"]).verify()
    plan = build_plan(extract(optimise(graph)), {}, device.spec, model_key="", notes={})
    module = Module(plan, device)
    x = np.array([[0, 2, 0], [1, 0, 3]], np.float32)
    np.testing.assert_array_equal(module.run({"x": x})["found"], [[0, 1, 1], [1, 0, 2]])
    with pytest.raises(InputError, match=r"input x: expected float32\[2, 3\]"):
        module.run({"x": x[:1]})


def test_shapes_and_constants_around_a_host_step(device: Device):
    """A reshaped input, a constant, a reshape between two steps, and one of an output."""
    build = GraphBuilder("net")
    build.input("x", TensorType((4,)))
    wide = build.add("reshape", ["x"], {"shape": (1, 4)}, outputs=["wide"])
    stored = build.constant("stored", np.arange(4, dtype=np.float32).reshape(1, 4))
    attrs = host_attrs(model(SPLIT), [TensorType((1, 2))] * 2)
    build.add(HOST, [wide, stored], attrs, outputs=["low", "high"])
    pair = build.add("concat", ["high", "low"], {"axis": 1}, outputs=["pair"])
    build.add(HOST, [pair, wide], attrs, outputs=["low2", "high2"])
    flat = build.add("reshape", ["high2"], {"shape": (2,)}, outputs=["flat"])
    graph = build.finish([flat, "low2", "low"]).verify()
    plan = build_plan(extract(optimise(graph)), {}, device.spec, model_key="", notes={})
    module = Module(plan, device)
    inputs = random_inputs(graph)
    for name, expected in run_graph(graph, inputs).items():
        np.testing.assert_allclose(module.run(inputs)[name], expected, rtol=1e-6)

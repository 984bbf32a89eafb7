"""Host steps in plans, files and memory: kept as they are, and refused where they are not sound."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from retune.bundle.build import build_plan
from retune.bundle.format import pack_zip, read_bundle, write_bundle
from retune.bundle.invariants import verify_plan
from retune.bundle.memory import plan_memory, temp_blocks
from retune.bundle.plan import NetworkPlan, PlanHost
from retune.bundle.runtime.placement import ARENA, INTERFACE, lay_out
from retune.codegen.source import KernelLaunch
from retune.core.dtypes import FLOAT64, INT64, TensorType
from retune.core.errors import RecordError, VerifyError
from retune.core.target import GENERIC_CPU
from retune.frontend.host.step import host_attrs
from retune.graph.graph import GraphBuilder
from retune.ops.registry import HOST
from retune.search.extract import extract
from tests.support.host import NONZERO, SPLIT, model
from tests.support.host_networks import NETWORKS, detector
from tests.support.hosts import plan_of


@pytest.fixture(scope="module")
def hosted(tmp_path_factory: pytest.TempPathFactory) -> NetworkPlan:
    """The network with two host steps, one of them in its middle."""
    return plan_of("both", tmp_path_factory.mktemp("both"))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_plan_with_host_steps_is_valid(name: str, tmp_path: Path):
    verify_plan(plan_of(name, tmp_path))


def test_a_plan_runs_in_parts(hosted: NetworkPlan):
    first, second = hosted.parts
    assert 0 == first.first < first.end == second.first < second.end == len(hosted.launches)
    titles = [[host.opened.title for host in part.hosts] for part in hosted.parts]
    assert titles == [["TopK"], ["NonMaxSuppression, Gather, Squeeze"]]
    kinds = [type(step) for step in hosted.steps]
    assert kinds.count(PlanHost) == 2 and kinds.count(KernelLaunch) == len(hosted.launches)


def test_host_steps_at_the_end_leave_the_device_one_part(tmp_path: Path):
    (part,) = plan_of("detector", tmp_path).parts
    assert part.end > 0 and len(part.hosts) == 1


def test_what_crosses_has_memory_of_its_own(hosted: NetworkPlan):
    """The arena is not told when host steps run."""
    storage = lay_out(hosted, plan_memory(hosted))
    crossing = {v for host in hosted.hosts for v in (*host.read, *host.writes)}
    placed = {value: storage.memory[value] for value in crossing if value in storage.memory}
    assert {place.base for place in placed.values()} == {INTERFACE}
    shared = [place for place in storage.memory.values() if place.base == INTERFACE]
    spans = sorted({(place.offset, place.offset + place.bytes) for place in shared})
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert not crossing & {block.name for block in temp_blocks(hosted)}
    assert any(place.base == ARENA for place in storage.memory.values())


def test_what_stays_on_the_host_has_no_memory_on_the_device(tmp_path: Path):
    plan = plan_of("detector", tmp_path)
    places = lay_out(plan, plan_memory(plan)).memory
    assert not places.keys() & set(plan.outputs)
    assert plan.buffer(plan.outputs[0]).shape == (-1, 3)
    inputs = sum(plan.buffer(name).bytes for name in (*plan.inputs, *plan.hosts[0].inputs))
    assert plan_memory(plan).io_bytes == inputs


@pytest.mark.parametrize("zipped", [False, True])
def test_host_steps_come_back(hosted: NetworkPlan, tmp_path: Path, zipped: bool):
    folder = write_bundle(hosted, tmp_path / "module")
    path = pack_zip(folder, tmp_path / "module.zip") if zipped else folder
    assert read_bundle(path).hosts == hosted.hosts
    manifest = json.loads((folder / "module.json").read_text())
    assert [entry["ops"] for entry in manifest["hosts"]] == [
        ["TopK"],
        ["NonMaxSuppression", "Gather", "Squeeze"],
    ]
    assert (folder / "host1.onnx").read_bytes() == hosted.hosts[1].model


def test_only_bundles_with_host_steps_are_of_the_new_format(
    hosted: NetworkPlan, plan: NetworkPlan, tmp_path: Path
):
    folders = [write_bundle(p, tmp_path / p.name) for p in (hosted, plan)]
    manifests = [json.loads((folder / "module.json").read_text()) for folder in folders]
    assert [manifest["format_version"] for manifest in manifests] == [2, 1]


def test_a_changed_model_is_found(hosted: NetworkPlan, tmp_path: Path):
    folder = write_bundle(hosted, tmp_path / "module")
    path = folder / "host0.onnx"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(RecordError, match=r"host0\.onnx: expected content with hash"):
        read_bundle(folder)
    path.unlink()
    with pytest.raises(RecordError, match=r"host0\.onnx: expected a part of that name"):
        read_bundle(folder)


def _model(text: str, *types: TensorType) -> bytes:
    return host_attrs(model(text), types)["model"]  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": b"junk"}, "expected a model that is a host step; got .*not an ONNX model"),
        ({"model": _model(NONZERO, TensorType((2, -1), INT64))}, "expected 1 outputs: y; got"),
        ({"model": _model(SPLIT, *[TensorType((1, 2))] * 2)}, "expected 2 inputs: x, z; got"),
        ({"inputs": ("nowhere",)}, "expected names of buffers of the plan; got nowhere"),
        ({"after": 99}, "expected a position from 0 to .*; got 99"),
        ({"after": 0}, "written by an earlier step; got a read of it"),
        ({"outputs": ("x0", "")}, r"output x0 of float32\[1, 8\]"),
    ],
)
def test_a_host_step_that_is_not_sound_is_refused(
    hosted: NetworkPlan, fields: dict[str, object], message: str
):
    first, second = hosted.hosts
    changed = replace(hosted, hosts=(replace(first, **fields), second))  # type: ignore[arg-type]
    with pytest.raises(VerifyError, match=message):
        verify_plan(changed)


def test_another_type_than_the_model_s_is_refused(
    hosted: NetworkPlan, with_buffer: Callable[..., NetworkPlan]
):
    places = hosted.hosts[0].outputs
    made = next(name for name in places if name)
    with pytest.raises(VerifyError, match=r"output .* of float32\[1, 8\]; got float32\(8, 1\)"):
        verify_plan(with_buffer(hosted, made, shape=(8, 1)))


def test_two_writers_are_refused(hosted: NetworkPlan):
    twice = (hosted.hosts[0], *hosted.hosts)
    with pytest.raises(VerifyError, match="expected nothing else that writes"):
        verify_plan(replace(hosted, hosts=twice))


def test_only_host_steps_make_values_of_unknown_extents(
    plan: NetworkPlan, with_buffer: Callable[..., NetworkPlan], tmp_path: Path
):
    with pytest.raises(VerifyError, match="buffer eight: expected known extents, or no elements"):
        verify_plan(with_buffer(plan, "eight", shape=(-1, 4), elements=0))
    detected = plan_of("detector", tmp_path)
    chosen = detected.outputs[0]
    first = replace(detected.launches[0], args=(chosen, *detected.launches[0].args[1:]))
    read = replace(detected, launches=(first, *detected.launches[1:]))
    with pytest.raises(VerifyError, match="expected known extents of what is read"):
        verify_plan(read)


def test_a_step_may_read_inputs_and_constants():
    build = GraphBuilder("net")
    build.input("x", TensorType((1, 4)))
    stored = build.constant("stored", np.ones((1, 4), np.float32))
    halves = ["low", "high"]
    types = [TensorType((1, 2))] * 2
    build.add(HOST, ["x", stored], host_attrs(model(SPLIT), types), outputs=halves)
    plan = build_plan(extract(build.finish(["high"])), {}, GENERIC_CPU, model_key="", notes={})
    verify_plan(plan)
    assert plan.hosts[0].outputs == ("", "high") and not plan.launches


def test_types_of_the_host_need_no_arithmetic_of_the_device():
    build = GraphBuilder("net")
    build.input("x", TensorType((2, 3), FLOAT64))
    text = NONZERO.replace("float", "double")
    found = TensorType((2, -1), INT64)
    build.add(HOST, ["x"], host_attrs(model(text), [found]), outputs=["found"])
    network = extract(build.finish(["found"]))
    verify_plan(build_plan(network, {}, GENERIC_CPU, model_key="", notes={}))


def test_a_detector_is_small(tmp_path: Path):
    """The model of a host step holds no weights of the device's part."""
    assert len(plan_of("detector", tmp_path).hosts[0].model) < 1000
    assert detector(tmp_path).path.stat().st_size > 1000

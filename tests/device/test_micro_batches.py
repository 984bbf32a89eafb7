"""Bundles whose first layers run for some images at a time."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from retune.api import tune_network
from retune.bundle.export.program import export_c
from retune.bundle.format import read_bundle
from retune.bundle.plan import Form, NetworkPlan
from retune.bundle.runtime.module import Module
from retune.core.target import DeviceSpec
from retune.device.opencl.runtime import open_device
from retune.device.opening import spec_of
from retune.frontend.zoo.writer import open_axes
from retune.pipeline import network
from retune.pipeline.manifest import Selection
from retune.pipeline.network import open_network, stage_extract, stage_import
from retune.pipeline.programs import stage_compile_programs
from retune.pipeline.request import TuneRequest
from retune.pipeline.sizes import tuned_requests, usual_request
from tests.device.c_programs import build, outputs_of
from tests.support.batches import images, narrowing

BATCH = 8


def small_cache() -> DeviceSpec:
    """A device with two threads and 800 KB of cache."""
    return replace(spec_of("pocl"), l3_bytes=800_000, compute_units=2)


@pytest.fixture
def request_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TuneRequest:
    """Of a batch of 256 KiB an image, on a device with a small cache."""
    cache = small_cache()
    monkeypatch.setattr(network, "spec_of", lambda _: cache)
    onnx.save(narrowing(BATCH, 64), tmp_path / "net.onnx")
    return TuneRequest(model=str(tmp_path / "net.onnx"), out="", work=str(tmp_path / "work"))


def test_the_network_is_in_micro_batches_for_the_cache(
    request_: TuneRequest, monkeypatch: pytest.MonkeyPatch
):
    imported = stage_import(request_)
    graph = open_network(request_).network.graph
    assert images(graph, "conv2d") == {2: 2 * 4, BATCH: 3}
    few = stage_extract(request_, imported)
    large = replace(spec_of("pocl"), l3_bytes=1 << 30)
    monkeypatch.setattr(network, "spec_of", lambda _: large)
    assert stage_import(request_) == imported
    assert images(open_network(request_).network.graph, "conv2d") == {BATCH: 5}
    whole = stage_extract(request_, imported)
    assert sum(t.weight for t in few.tasks) > sum(t.weight for t in whole.tasks)
    assert few.micro_batches == ((2, 4),) and whole.micro_batches == ()


def test_a_bundle_in_micro_batches_agrees_with_onnxruntime(request_: TuneRequest, tmp_path: Path):
    tune_network(request_.model, out=tmp_path, trials=0, records=tmp_path / "records")
    data = np.random.default_rng(0).standard_normal((BATCH, 8, 64, 64), np.float32)
    expected = onnxruntime.InferenceSession(request_.model).run(None, {"data": data})[0]
    with Module.load(tmp_path / "module") as module:
        np.testing.assert_allclose(module.run(data)[0], np.asarray(expected), rtol=0, atol=1e-4)
        plan = module.plan
        steps = zip(plan.launches, plan.repeats, strict=True)
        assert sum(times for step, times in steps if "conv2d" in step.label) == 2 * 4 + 3
        assert [row.times for row in module.profile(1)] == list(plan.repeats)


MOST = 9
SIZES = [1, 2, 3, 8, MOST, 1]
"""More than one are micro-batches of two images, and what is left."""


@pytest.fixture(scope="module")
def ranged(tmp_path_factory: pytest.TempPathFactory) -> NetworkPlan:
    """Of the bundle for one image to some, on a device with a small cache."""
    folder, cache = tmp_path_factory.mktemp("ranged"), small_cache()
    onnx.save(open_axes(narrowing(BATCH, 64), {0: "n"}), folder / "net.onnx")
    request = TuneRequest(
        model=str(folder / "net.onnx"), out="", work=folder / "work", shapes={"n": f"1..{MOST}"}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "spec_of", lambda _: cache)
        chosen = tuple(Selection(sizes=sizes, target="") for sizes, _ in tuned_requests(request))
        imported = stage_import(usual_request(request))
        made = stage_compile_programs(request, imported, chosen, "untuned")
    return read_bundle(made.file(made.module))


@pytest.fixture(scope="module")
def expected() -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Of each number of images: these, and what onnxruntime makes of them."""
    model = open_axes(narrowing(BATCH, 64), {0: "n"}).SerializeToString()
    session, found = onnxruntime.InferenceSession(model), {}
    for count in SIZES:
        data = np.random.default_rng(count).standard_normal((count, 8, 64, 64), np.float32)
        found[count] = data, np.asarray(session.run(None, {"data": data})[0])
    return found


@pytest.mark.parametrize("form", ["persistent", "inline", "queued"])
def test_any_number_of_images_in_every_form(
    ranged: NetworkPlan, expected: dict[int, tuple[np.ndarray, np.ndarray]], form: Form
) -> None:
    plan = replace(ranged, form=form)
    assert [str(loop.times) for loop in plan.loops] == ["(n // 2)", "n - 2*(n // 2)"]
    device = open_device("pocl")
    if form == "queued":
        device.__dict__["has_atomics"] = False  # what workers need
    module = Module(plan, device)
    assert module.form == form
    for count in SIZES:
        data, wanted = expected[count]
        np.testing.assert_allclose(module.run(data)[0], wanted, rtol=0, atol=1e-4)
        assert len(module.profile(1, {"data": data})) == len(plan.at({"n": count}).launches)
        np.testing.assert_allclose(module.run(data)[0], wanted, rtol=0, atol=1e-4)


@pytest.mark.process
@pytest.mark.parametrize("form", ["persistent", "inline", "queued"])
def test_a_program_in_c_for_any_number_of_images(
    ranged: NetworkPlan,
    expected: dict[int, tuple[np.ndarray, np.ndarray]],
    tmp_path: Path,
    form: Form,
) -> None:
    defines = ["PASS_FOR_GPU"] if form == "queued" else []
    build(export_c(replace(ranged, form=form), tmp_path / "c"), *defines)
    for count in (1, 2, MOST):
        data, wanted = expected[count]
        found = outputs_of(tmp_path / "c", {"data": data}, ["out"], "--size", f"n={count}")
        np.testing.assert_allclose(found["out"], wanted, rtol=0, atol=1e-4)

"""Networks whose extents depend on data: kernels run behind the host steps that find them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks.two_stage import detector
from retune.bundle.build import build_plan
from retune.bundle.format import read_bundle, write_bundle
from retune.bundle.plan import Form
from retune.bundle.runtime.module import Module
from retune.bundle.verify.peers import open_peer
from retune.core.dims import apart
from retune.core.errors import InputError
from retune.core.target import GENERIC_CPU, GENERIC_GPU, DeviceSpec
from retune.device.opencl.runtime import Device, open_device
from retune.frontend.onnx import counts
from retune.frontend.onnx.importer import import_model, load_file
from retune.graph.evaluate import run_graph
from retune.graph.passes.pipeline import optimise
from retune.search.extract import extract
from tests.support.counted import NETWORKS, SHARES, plan_of
from tests.support.host import model

pytestmark = pytest.mark.device


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("pocl")


@pytest.mark.parametrize(
    ("name", "form", "spec"),
    [
        ("chosen", "persistent", GENERIC_CPU),
        ("compressed", "inline", GENERIC_CPU),
        ("distinct", "queued", GENERIC_GPU),
        ("cut", "persistent", GENERIC_CPU),
    ],
)
def test_any_count_is_right(
    name: str, form: Form, spec: DeviceSpec, tmp_path: Path, device: Device
) -> None:
    made, feeds = NETWORKS[name]
    write_bundle(replace(plan_of(made, spec), form=form), tmp_path / "b")
    module = Module(read_bundle(tmp_path / "b"), device)
    assert module.form == form
    plain, rng = import_model(made), np.random.default_rng(7)
    for share in SHARES * 2:
        inputs = feeds(rng, share)
        found, expected = module.run(inputs), run_graph(plain, inputs)
        for value, array in expected.items():
            np.testing.assert_allclose(found[value], array, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_second_stage_runs_on_kernels(tmp_path: Path, device: Device) -> None:
    onnx.save(detector(64, (8, 16), proposals=12, hidden=16), tmp_path / "d.onnx")
    with apart() as assumed:
        network = extract(optimise(load_file(tmp_path / "d.onnx", counts=True)))
        plan = build_plan(network, {}, device.spec, model_key="", notes={})
    assert not assumed.conditions and network.host_steps == ("NonMaxSuppression",)
    module, peer = Module(plan, device), open_peer("onnxruntime", tmp_path / "d.onnx")
    rng, kept = np.random.default_rng(5), set[int]()
    for scale in (0.0, 0.1, 0.3, 1.0, 3.0):
        image = (scale * rng.standard_normal((1, 3, 64, 64))).astype(np.float32)
        found, expected = module.run({"image": image}), peer({"image": image})
        kept.add(len(next(iter(found.values()))))
        for value, array in expected.items():
            np.testing.assert_allclose(found[value], array, rtol=1e-3, atol=1e-3)
    assert len(kept) > 1
    assert [step.host for step in module.profile(1)].count(True) == 1


def test_a_count_beyond_its_range_is_refused(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "MOST_NUMBERED", 8)
    text = """
    <ir_version: 8, opset_import: ["": 17]>
    numbered (int64 limit) => (float[n] y) <int64 zero = {0}, int64 one = {1}>
    { v = Range (zero, limit, one) f = Cast <to = 1> (v) y = Sqrt (f) }"""
    module = Module(plan_of(model(text), GENERIC_CPU), device)
    assert module.run({"limit": np.array(8)})["y"].shape == (8,)
    with pytest.raises(InputError, match=r"expected count_v from 0 to 8; it found 9"):
        module.run({"limit": np.array(9)})

"""A bundle whose first layers run for some images at a time."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from retune.api import tune_network
from retune.bundle.runtime.module import Module
from retune.device.opening import spec_of
from retune.pipeline import network
from retune.pipeline.network import open_network, stage_extract, stage_import
from retune.pipeline.request import TuneRequest
from tests.support.batches import images, narrowing

BATCH = 8


@pytest.fixture
def request_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TuneRequest:
    """Of a batch of 256 KiB an image, on a device with two threads and 800 KB of cache."""
    cache = replace(spec_of("pocl"), l3_bytes=800_000, compute_units=2)
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


def test_a_bundle_in_micro_batches_agrees_with_onnxruntime(request_: TuneRequest, tmp_path: Path):
    tune_network(request_.model, out=tmp_path, trials=0, records=tmp_path / "records")
    data = np.random.default_rng(0).standard_normal((BATCH, 8, 64, 64), np.float32)
    expected = onnxruntime.InferenceSession(request_.model).run(None, {"data": data})[0]
    with Module.load(tmp_path / "module") as module:
        np.testing.assert_allclose(module.run(data)[0], np.asarray(expected), rtol=0, atol=1e-4)
        parts = [step for step in module.plan.launches if step.label.startswith("conv2d")]
        assert len(parts) == 2 * 4 + 3

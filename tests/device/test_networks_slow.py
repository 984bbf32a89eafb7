"""Every light: and zoo: network, and the original light files, on PoCL. Minutes each.

Run with `make test-slow`, or one with
`.venv/bin/python -m pytest -m slow tests/device/test_networks_slow.py -k squeezenet`.
"""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from retune.bundle.verify.compare import verify
from retune.bundle.verify.peers import open_peer
from retune.frontend.models import resolve_model
from retune.frontend.onnx.importer import load_file
from retune.frontend.zoo import LIGHT, ZOO
from tests.external.on_device import compile_graph

pytestmark = [pytest.mark.slow, pytest.mark.device]

FILES = Path(onnx.__file__).parent / "backend/test/data/light"
MODELS = [*(f"light:{name}" for name in LIGHT), *(f"zoo:{name}" for name in ZOO)]


@pytest.mark.parametrize("spec", MODELS)
def test_an_untuned_network_agrees_with_onnxruntime(spec: str, tmp_path: Path):
    path = resolve_model(spec, tmp_path)
    module = compile_graph(load_file(path))
    outcome = verify(module, open_peer("onnxruntime", path), module.random_inputs, samples=2)
    assert outcome.passed, outcome


@pytest.mark.parametrize("name", ["mobilenet", "resnet18_v1", "squeezenet_v1.1"])
def test_other_batches_and_sizes_agree_in_nchw(name: str, tmp_path: Path):
    path = resolve_model(f"zoo:{name}", tmp_path, {"data": (2, 3, 97, 131)})
    module = compile_graph(load_file(path), "NCHW")
    outcome = verify(module, open_peer("onnxruntime", path), module.random_inputs, samples=1)
    assert outcome.passed, outcome


@pytest.mark.parametrize("path", sorted(FILES.glob("*.onnx")), ids=lambda path: path.stem)
def test_an_original_file_gives_the_output_shipped_with_it(path: Path):
    module = compile_graph(load_file(path))
    ((name, kind),) = module.inputs.items()
    ramp = (np.arange(kind.elements).reshape(kind.shape) / kind.elements).astype(np.float32)
    stored = onnx.TensorProto.FromString((FILES / f"{path.stem}_output_0.pb").read_bytes())
    (output,) = module.run({name: ramp}).values()
    np.testing.assert_allclose(output, numpy_helper.to_array(stored), rtol=1e-3, atol=1e-7)

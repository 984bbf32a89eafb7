"""A small network of each family of today's architectures agrees with onnxruntime on PoCL."""

from pathlib import Path

import pytest

from retune.bundle.verify.compare import verify
from retune.bundle.verify.peers import open_peer
from retune.frontend.onnx.importer import load_file
from retune.graph.passes.pipeline import Layout
from tests.external.on_device import compile_graph
from tests.support.device_networks import write
from tests.support.families import FAMILIES
from tests.support.sampling import one_of_each

pytestmark = pytest.mark.device

LAYOUTS: tuple[Layout, ...] = ("NHWC", "NCHW")


@pytest.mark.parametrize(("name", "layout"), one_of_each(FAMILIES, LAYOUTS))
def test_a_family_agrees_with_onnxruntime(name: str, layout: Layout, tmp_path: Path):
    path = write(name, tmp_path, FAMILIES)
    module = compile_graph(load_file(path), layout)
    outcome = verify(module, open_peer("onnxruntime", path), module.random_inputs, samples=1)
    assert outcome.passed, outcome

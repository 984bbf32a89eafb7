"""Networks that nobody tuned for: default schedules on PoCL agree with onnxruntime.

The large networks are in `test_networks_slow.py`.
"""

from pathlib import Path

import pytest

from retune.bundle.verify.compare import verify
from retune.bundle.verify.peers import open_peer
from retune.frontend.onnx.importer import load_file
from retune.graph.passes.pipeline import Layout, optimise
from retune.search.extract import extract
from retune.search.layout.assignment import uniform_layout, with_layouts
from tests.external.on_device import compile_graph, compile_network
from tests.support.device_networks import NETWORKS, write
from tests.support.sampling import one_of_each

pytestmark = pytest.mark.device

LAYOUTS: tuple[Layout, ...] = ("NHWC", "NCHW")
BLOCKED = ("grouped", "depthwise", "dense_block", "bottleneck", "pools", "neighbours", "long_rows",
           "blocks_joined", "beside_a_constant", "element_by_element")  # fmt: skip
"""Networks whose values can lie in blocks, among all that cannot. The gate runs them so alone."""


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        *one_of_each([name for name in NETWORKS if name not in BLOCKED], LAYOUTS),
        *(pytest.param(n, o, marks=pytest.mark.slow) for n in BLOCKED for o in LAYOUTS),
    ],
)
def test_a_network_agrees_with_onnxruntime(name: str, layout: Layout, tmp_path: Path):
    path = write(name, tmp_path)
    module = compile_graph(load_file(path), layout)
    outcome = verify(module, open_peer("onnxruntime", path), module.random_inputs, samples=2)
    assert outcome.passed, outcome


@pytest.mark.parametrize("name", BLOCKED)
def test_a_network_in_blocks_of_channels_agrees_with_onnxruntime(name: str, tmp_path: Path):
    path = write(name, tmp_path)
    network = extract(optimise(load_file(path)))
    module = compile_network(with_layouts(network, uniform_layout(network, "NCHW16c")))
    outcome = verify(module, open_peer("onnxruntime", path), module.random_inputs, samples=2)
    assert outcome.passed, outcome

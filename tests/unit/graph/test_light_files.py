"""The nine networks of the onnx package give the outputs that are shipped with them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from retune.frontend.onnx.importer import load_file
from retune.graph.evaluate import run_graph

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
LARGE = {"light_vgg19", "light_densenet121", "light_inception_v2"}
FILES = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem in LARGE else [])
    for path in sorted(LIGHT.glob("*.onnx"))
]


@pytest.mark.parametrize("path", FILES)
def test_a_light_network_gives_its_stored_output(path: Path):
    graph = load_file(path)
    (name,) = graph.inputs
    shape = graph.types[name].shape
    count = int(np.prod(shape))
    ramp = (np.arange(count).reshape(shape) / count).astype(np.float32)
    stored = onnx.TensorProto.FromString((LIGHT / f"{path.stem}_output_0.pb").read_bytes())
    expected = numpy_helper.to_array(stored)
    assert np.ptp(expected) == 0, "its classes are alike, as its weights are"
    (softmax,) = (node for node in graph.nodes if node.op == "softmax")
    (scores,) = run_graph(replace(graph, outputs=softmax.inputs[:1]), {name: ramp}).values()
    assert scores.size == expected.size
    assert np.ptp(scores) <= 1e-5 * np.abs(scores).max(), "rounding, which softmax would enlarge"

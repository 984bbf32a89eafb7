"""Files that onnxruntime's tools wrote are imported, and mean what onnxruntime computes."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from retune.core.errors import ModelError
from retune.frontend.onnx.importer import load_file
from retune.graph.evaluate import run_graph
from tests.support.device_networks import NETWORKS, write
from tests.support.tool_files import FILES

Level = onnxruntime.GraphOptimizationLevel


def fed(session: onnxruntime.InferenceSession, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random inputs: floats, indices of at most 1, and truth values."""
    kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(bool)": np.bool_}
    return {
        entry.name: rng.standard_normal(entry.shape).astype(np.float32)
        if entry.type == "tensor(float)"
        else rng.integers(0, 2, entry.shape).astype(kinds[entry.type])
        for entry in session.get_inputs()
    }


def assert_as_session(path: Path, session: onnxruntime.InferenceSession, seed: int) -> None:
    """The file's graph computes what the session does."""
    inputs = fed(session, np.random.default_rng(seed))
    names = [entry.name for entry in session.get_outputs()]
    found = run_graph(load_file(path), inputs)
    for name, array in zip(names, session.run(names, inputs), strict=True):
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("path", sorted(FILES.iterdir()), ids=lambda path: path.stem)
def test_files_of_optimiser_and_quantizer(path: Path, seed: int) -> None:
    domains = {node.domain for node in onnx.load(path).graph.node}
    assert "com.microsoft" in domains
    assert_as_session(path, onnxruntime.InferenceSession(path), seed)


def optimised(name: str, folder: Path, level: Level) -> tuple[Path, onnxruntime.InferenceSession]:
    """The network as onnxruntime saves it at that level, and the session that runs it."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(write(name, folder), options)
    return folder / "optimised.onnx", session


FUSED = [
    "activations", "attention", "gated", "grouped", "odd_image", "pre_activation",
    "signals_and_volumes", "square_windows",
]  # fmt: skip
"""Networks that the optimiser puts operators of its own into, of several kinds."""


@pytest.mark.parametrize("name", FUSED)
def test_networks_that_onnxruntime_optimised(name: str, tmp_path: Path, seed: int) -> None:
    path, session = optimised(name, tmp_path, Level.ORT_ENABLE_EXTENDED)
    assert any(node.domain for node in onnx.load(path).graph.node)
    assert_as_session(path, session, seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in FUSED])
def test_all_networks_that_onnxruntime_optimised(name: str, tmp_path: Path, seed: int) -> None:
    assert_as_session(*optimised(name, tmp_path, Level.ORT_ENABLE_EXTENDED), seed)


def test_a_network_in_the_layout_of_this_machine_is_refused(tmp_path: Path) -> None:
    path, _ = optimised("dilated", tmp_path, Level.ORT_ENABLE_ALL)
    with pytest.raises(ModelError, match="save the optimised model at ORT_ENABLE_EXTENDED"):
        load_file(path)

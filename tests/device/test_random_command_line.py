"""Random networks as a user tunes them, from the command line, in each layout of activations."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from retune.cli.main import run_command
from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import random_inputs, run_graph
from tests.device.test_random_networks import assert_same
from tests.support.random_networks import random_model
from tests.support.random_values import random_values

pytestmark = [pytest.mark.device, pytest.mark.process, pytest.mark.slow]


def tuned(model: onnx.ModelProto, folder: Path, layout: str) -> Path:
    """The bundle that `retune tune` publishes, which it compared with onnxruntime."""
    onnx.save(model, folder / "model.onnx")
    places = [f"--{name}={folder / name}" for name in ("out", "work", "records")]
    arguments = ["--trials=0", f"--layout={layout}", "--no-prefect", *places]
    assert run_command(["tune", str(folder / "model.onnx"), *arguments]) == 0
    return folder / "out" / "module"


def ran(bundle: Path, feeds: dict[str, np.ndarray], folder: Path) -> dict[str, np.ndarray]:
    """The outputs that `retune run` writes."""
    np.savez(folder / "in.npz", **feeds)
    files = ["--input", str(folder / "in.npz"), "--output", str(folder / "out.npz")]
    assert run_command(["run", str(bundle), *files]) == 0
    with np.load(folder / "out.npz") as found:
        return dict(found)


@pytest.mark.parametrize("layout", ["NCHW", "NCHW16c"])
@pytest.mark.parametrize("seed", range(400, 404))
def test_a_random_network(seed: int, layout: str, tmp_path: Path):
    model = random_model(seed, 6)
    graph = import_model(model)
    feeds = random_inputs(graph, seed)
    found = ran(tuned(model, tmp_path, layout), feeds, tmp_path)
    assert_same(found, run_graph(graph, feeds), f"seed {seed}, {layout}")


@pytest.mark.parametrize(("seed", "layout"), [(1, "NCHW"), (2, "NCHW16c")])
def test_random_special_values(seed: int, layout: str, tmp_path: Path):
    model, feeds = random_values(seed, peer=True)
    found = ran(tuned(model, tmp_path, layout), feeds, tmp_path)
    assert_same(found, run_graph(import_model(model), feeds), f"seed {seed}, {layout}")

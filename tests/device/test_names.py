"""Networks whose values have odd names, from the file to a run of the bundle on PoCL."""

import html
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from retune.bundle.build import build_plan
from retune.bundle.format import pack_zip, write_bundle
from retune.cli.commands.run import arrays_data, read_arrays
from retune.cli.main import run_command
from retune.frontend.onnx.importer import load_file
from retune.graph.evaluate import run_graph
from retune.graph.passes.pipeline import optimise
from retune.search.extract import extract
from tests.external.on_device import pocl
from tests.support.networks import model
from tests.support.onnx_files import NAMES

pytestmark = pytest.mark.device


def network(path: Path, name: str) -> Path:
    """relu(conv(x) + x): every name of its own, made of `name`."""
    weights = {
        name: np.full((3, 3, 1, 1), 0.5, np.float32),
        f"{name}b": np.ones(3, np.float32),
    }
    own = {key: f"{name}/{key}{name}" for key in ("x", "c", "s", "y")}
    nodes = [
        helper.make_node("Conv", [own["x"], *weights], [own["c"]], name=name),
        helper.make_node("Add", [own["c"], own["x"]], [own["s"]], name=name),
        helper.make_node("Relu", [own["s"]], [own["y"]], name=name),
    ]
    onnx.save(model(nodes, {own["x"]: [1, 3, 4, 4]}, [own["y"], own["c"]], weights), path)
    return path


@pytest.mark.parametrize(
    ("name", "zipped"),
    [pytest.param(name, n % 2 == 1, id=str(n)) for n, name in enumerate(NAMES)],
)
def test_a_network_of_odd_names_runs_from_its_bundle(name: str, zipped: bool, tmp_path: Path):
    graph = load_file(network(tmp_path / "net.onnx", name[:9_000]))
    plan = build_plan(extract(optimise(graph)), {}, pocl().spec, model_key="m", notes={})
    folder = write_bundle(plan, tmp_path / "module")
    feeds = {value: np.ones(graph.types[value].shape, np.float32) for value in graph.inputs}
    (tmp_path / "in.npz").write_bytes(arrays_data(feeds))
    options = ["--input", str(tmp_path / "in.npz"), "--output", str(tmp_path / "out.npz")]
    module = pack_zip(folder, tmp_path / "module.zip") if zipped else folder
    assert run_command(["run", str(module), *options]) == 0
    found = read_arrays(tmp_path / "out.npz")
    assert list(found) == list(graph.outputs)
    for value, expected in run_graph(graph, feeds).items():
        np.testing.assert_allclose(found[value], expected, rtol=1e-6)


@pytest.mark.slow
def test_a_file_of_an_odd_name_is_tuned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    stem = 'it\'s "a b" 重み {x} 100% $y;=,'
    network(tmp_path / f"{stem}.onnx", "w")
    arguments = ["tune", f"{stem}.onnx", "--out", f"{stem} out", "--trials", "1", "--no-prefect"]
    assert run_command(arguments) == 0, capsys.readouterr().err
    report = (tmp_path / f"{stem} out" / "report.html").read_text(encoding="utf-8")
    assert f"{stem}.onnx" in html.unescape(report)
    assert run_command(["records", "summary"]) == 0
    assert "1" in capsys.readouterr().out

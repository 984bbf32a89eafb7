"""Zoo and light models: the same file each time, sane values, readable by onnxruntime."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from retune.core.errors import InputError
from retune.core.keys import file_key
from retune.frontend.models import check_model, load_model, resolve_model
from retune.frontend.onnx.importer import load_file
from retune.frontend.zoo import LIGHT, ZOO
from retune.graph.evaluate import random_inputs, run_graph
from retune.graph.passes.pipeline import optimise

QUICK: list[tuple[str, tuple[int, ...] | None]] = [
    ("zoo:mlp", None),
    ("zoo:kws", (2, 40, 49)),
    ("zoo:mobilenet", (2, 3, 64, 64)),
    ("zoo:resnet18_v1", (1, 3, 64, 64)),
    ("zoo:squeezenet_v1.1", (1, 3, 67, 67)),
    ("light:shufflenet", None),
]
LARGE = [
    *(f"zoo:{name}" for name in ZOO),
    *(f"light:{name}" for name in LIGHT),
]


def check(path: Path, layouts: tuple[str, ...]) -> None:
    """The file's outputs agree with onnxruntime and have sane values."""
    graph = load_file(path)
    inputs = random_inputs(graph, 11)
    session = onnxruntime.InferenceSession(str(path))
    names = [output.name for output in session.get_outputs()]
    expected = dict(zip(names, session.run(names, inputs), strict=True))
    for network in (graph, *(optimise(graph, layout) for layout in layouts)):
        for name, array in run_graph(network, inputs).items():
            spread = float(np.ptp(expected[name]))
            assert float(np.abs(array - expected[name]).max()) < 1e-5 * spread, name
    for name, array in expected.items():
        if "prob" in name or "softmax" in name:
            assert array.max() < 0.9
            assert 1e-2 < np.log(array).std() < 1e2
        else:
            assert 1e-2 < array.std() < 1e3


@pytest.mark.parametrize(("spec", "shape"), QUICK, ids=[spec for spec, _ in QUICK])
def test_a_model_agrees_with_onnxruntime(spec, shape, models: Path):
    path = resolve_model(spec, models, {"data": shape} if shape else None)
    check(path, ("NHWC",))


@pytest.mark.slow
@pytest.mark.parametrize("spec", LARGE)
def test_every_model_in_full_size_agrees_with_onnxruntime(spec, models: Path):
    path = resolve_model(spec, models)
    check(path, ("NCHW", "NHWC"))
    path.unlink()


def test_a_model_is_written_once_and_the_same_each_time(tmp_path: Path):
    first = resolve_model("zoo:mlp", tmp_path / "a")
    written = first.stat().st_mtime_ns
    assert resolve_model("zoo:mlp", tmp_path / "a").stat().st_mtime_ns == written
    assert file_key(resolve_model("zoo:mlp", tmp_path / "b")) == file_key(first)
    assert [entry.name for entry in (tmp_path / "a").iterdir()] == [first.name]


def test_a_light_model_answers_to_its_file_name_too(tmp_path: Path):
    paths = {
        resolve_model(f"light:{name}", tmp_path) for name in ("squeezenet", "light_squeezenet")
    }
    assert len(paths) == 1


def test_light_weights_differ_from_channel_to_channel(models: Path):
    graph = load_model("light:squeezenet", cache_dir=models)
    for name, array in graph.constants.items():
        assert array.std() > 0, name


def test_ssd_anchors_are_inside_the_image(models: Path):
    graph = load_model("zoo:ssd_resnet50_512", {"data": (1, 3, 128, 128)}, models)
    anchors = run_graph(graph, random_inputs(graph))["anchors"]
    assert anchors.shape == (1, graph.types["offsets"].shape[1], 4)
    assert anchors[..., :2].min() > 0
    assert anchors[..., :2].max() < 128


def test_a_model_is_checked_without_being_built(tmp_path: Path):
    file = tmp_path / "net.onnx"
    file.write_bytes(b"")
    check_model(str(file))
    check_model("zoo:kws", {"data": (2, 40, 49)})
    check_model("light:light_squeezenet")


@pytest.mark.parametrize(
    ("model", "shapes", "words"),
    [
        ("zoo:kwz", {}, "did you mean zoo:kws"),
        ("zoo:kws", {"data": (1, 1, 1)}, "has one input, data=N,40,L"),
        ("zoo:kws", {"x": (1, 40, 9)}, "; got x=1,40,9$"),
        ("light:x", {}, "light:x is not known"),
        ("no.onnx", {}, "no.onnx: expected an ONNX file, .* got no file"),
        (".", {}, "got a folder"),
    ],
)
def test_a_model_that_is_none_says_so(model: str, shapes: dict[str, tuple[int, ...]], words: str):
    with pytest.raises(InputError, match=words):
        check_model(model, shapes)
